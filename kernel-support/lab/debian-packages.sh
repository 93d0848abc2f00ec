# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash disable=SC2154
# Sourced after lib.sh: packages of any Debian suite, unpacked into a directory instead of installed, and made to run there.

# package_versions SUITE PACKAGE: print what SUITE has, the oldest first. Read whole: apt-cache does not like a reader
# that leaves.
package_versions() {
    "$lab_dir/isolated-apt.sh" "$1" apt-cache madison "$2" | awk -F' *[|] *' '{print $2}' | sort -uV
}

newest_version() { package_versions "$@" | tail -n 1; }

# read_index SUITE...: fetch the package lists of SUITE.
read_index() {
    local suite
    for suite; do
        "$lab_dir/isolated-apt.sh" "$suite" apt-get -qq update >&2 || die "the Debian mirror does not answer"
    done
}

# download SUITE DIRECTORY PACKAGE[=VERSION]...: apt checks the signature of the index, and by it each file.
download() {
    local suite=$1 directory=$2
    shift 2
    mkdir -p "$directory"
    (cd "$directory" && "$lab_dir/isolated-apt.sh" "$suite" apt-get -qq download "$@" >&2) ||
        die "cannot fetch from $suite: $*"
}

# unpack_packages SUITE DIRECTORY PACKAGE[=VERSION]...: what `dpkg -i` would put under / goes under DIRECTORY.
unpack_packages() {
    local directory=$2 deb
    download "$1" "$directory/download" "${@:3}"
    for deb in "$directory"/download/*.deb; do
        dpkg-deb -x "$deb" "$directory"
    done
    rm -r "$directory/download"
}

# c_library SUITE: print the directory of SUITE's C library, unpacked once. In a subshell: two who want it may come at once.
c_library() (
    local directory=$cache_dir/libc6/$1
    local libraries=$directory/usr/lib/x86_64-linux-gnu
    lock "libc6-$1"
    if [[ ! -e $libraries/ld-linux-x86-64.so.2 ]]; then
        rm -rf "$directory" "$directory.new"
        unpack_packages "$1" "$directory.new" libc6
        mv "$directory.new" "$directory"
    fi
    printf '%s\n' "$libraries"
)

# make_runnable SUITE PROGRAM...: a program that wants a newer C library than this machine's gets a script in its place,
# which starts it with the one of SUITE. Other libraries are this machine's.
make_runnable() {
    local suite=$1 program libraries
    shift
    for program; do
        # The dynamic loader names versions that it misses on stderr, libraries on stdout.
        [[ $(ldd "$program" 2>&1 || true) == *"not found"* ]] || continue
        libraries=$(c_library "$suite")
        mv "$program" "$program.elf"
        cat >"$program" <<EOF
#!/bin/sh
exec $libraries/ld-linux-x86-64.so.2 --library-path $libraries:/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu \\
    $program.elf "\$@"
EOF
        chmod +x "$program"
    done
}

# program_of SUITE PACKAGE PROGRAM: print where PROGRAM of PACKAGE is, unpacked once and made to run here.
program_of() (
    local directory=$cache_dir/$2 program=$cache_dir/$2/$3
    lock "$2"
    if [[ ! -e $directory/complete ]]; then
        note "fetching $2 ..."
        rm -rf "$directory"
        read_index "$1"
        unpack_packages "$1" "$directory" "$2"
        make_runnable "$1" "$program"
        "$program" --version >&2 || die "$2 of $1 does not run on this machine"
        touch "$directory/complete"
    fi
    printf '%s\n' "$program"
)
