#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where a CPython of each version is, on a line of its own:  3.14 PATH, or 3.12 - WHY THERE IS NONE.
#
#   cpython.sh VERSION...
#
# This machine's, with venv; else that of a Debian suite, unpacked in the cache with the libraries that it asks for, the C
# library among them: it runs on a machine whose own is older, and nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. kernel-support/lab/debian-packages.sh

declare -A suite_of=([3.11]=bookworm [3.13]=trixie [3.14]=testing [3.15]=testing)

makes_environments() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# here VERSION: print this machine's, if it has one that environments can be made of.
here() {
    local python
    for python in "$(type -P "python$1" || true)" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if [[ -x $python ]] && makes_environments "$python"; then
            printf '%s\n' "$python"
            return
        fi
    done
}

# packages_of SUITE VERSION...: print what they are in, what they ask for of libraries and pip's wheels, and what the
# extension asks for.
packages_of() {
    local suite=$1 version
    local -a own=()
    shift
    for version; do
        own+=("python$version-minimal" "libpython$version-minimal" "libpython$version-stdlib" "python$version-venv")
    done
    {
        printf '%s\n' "${own[@]}" libstdc++6 libgcc-s1
        "$lab_dir/isolated-apt.sh" "$suite" apt-cache depends "${own[@]}" |
            awk '$1 ~ /Depends:$/ && $2 ~ /^z?lib|-whl$/ { print $2 }'
    } | sort -u
}

# start_by_its_own_libraries DIRECTORY PROGRAM: PROGRAM becomes a script. By its name Python finds the rest of itself, or of an
# environment.
start_by_its_own_libraries() {
    local libraries=$1/lib/x86_64-linux-gnu:$1/usr/lib/x86_64-linux-gnu loader
    loader=$(find "$1" -path '*/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2')
    mv "$2" "$2.elf"
    cat >"$2" <<EOF
#!/bin/sh
exec $loader --library-path $libraries --argv0 "\$0" $2.elf "\$@"
EOF
    chmod +x "$2"
}

# unpack SUITE DIRECTORY VERSION...
unpack() {
    local suite=$1 directory=$2 version
    local -a packages
    shift 2
    rm -rf "$directory"
    "$lab_dir/isolated-apt.sh" "$suite" apt-get -qq -o Acquire::IndexTargets::deb-src::Sources::DefaultEnabled=false \
        -o APT::Update::Error-Mode=any update ||
        die "the package list of Debian's $suite cannot be fetched: see $log"
    mapfile -t packages < <(packages_of "$suite" "$@")
    unpack_packages "$suite" "$directory" "${packages[@]}"
    # Debian's venv takes pip from there.
    sed -i "s|/usr/share/python-wheels|$directory&|g" "$directory"/usr/lib/python3*/_sysconfig*
    for version; do
        start_by_its_own_libraries "$directory" "$directory/usr/bin/python$version"
        makes_environments "$directory/usr/bin/python$version" || die "python$version of $suite does not run here"
    done
    touch "$directory/complete"
}

# from_debian SUITE VERSION...: their lines.
from_debian() {
    local suite=$1 directory log version status=0
    shift
    directory=$cache_dir/cpython/$suite$(printf -- '-%s' "$@")
    log=$directory.log
    lock "cpython-$suite"
    if [[ ! -e $directory/complete ]]; then
        note "fetching CPython $* of Debian's $suite (about 30 MB with the list of packages) ..."
        # Not `if unpack`, in which set -e would have no meaning.
        set +e
        (set -e && unpack "$suite" "$directory" "$@") >"$log" 2>&1
        status=$?
        set -e
    fi
    for version; do
        if ((status == 0)); then
            printf '%s %s\n' "$version" "$directory/usr/bin/python$version"
        else
            printf '%s - %s\n' "$version" "$(tail -n 1 "$log" | sed 's/^error: //')"
        fi
    done
}

main() {
    local version suite python
    local -a versions
    local -A missing=()
    for version; do
        python=$(here "$version")
        suite=${suite_of[$version]:-}
        if [[ -n $python ]]; then
            printf '%s %s\n' "$version" "$python"
        elif [[ $(uname -m) != x86_64 || -z $suite ]]; then
            printf '%s - %s\n' "$version" "this machine has none with venv, and no current suite of Debian carries it"
        else
            missing[$suite]+="$version "
        fi
    done
    mkdir -p "$cache_dir/cpython"
    for suite in "${!missing[@]}"; do
        read -ra versions <<<"${missing[$suite]}"
        from_debian "$suite" "${versions[@]}"
    done
}

main "$@"
