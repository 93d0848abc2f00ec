#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Fetch one of Debian's own kernels and what modules for it are built with, or find it in the cache, and print the
# directory it is in. Nothing is compiled or installed:
#
#   debian-kernel.sh [--path | --modules] debian|debian-7.2|debian-experimental
#
#   DIRECTORY/vmlinux          what the guest boots: the kernel of the package, out of its compression
#   DIRECTORY/build            the headers, for out-of-tree modules
#   DIRECTORY/make-arguments   what `make -C DIRECTORY/build` needs on this machine, one argument a line
#   DIRECTORY/release          as `uname -r` says it
#
# --path prints where it is or would be, and fetches nothing. --modules fetches the kernel's modules too (23 MB), and
# prints a directory for `modprobe --dirname`. The flavour is "cloud": what a virtual machine needs is built in, and it
# is the smallest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=kernel.pin
. "$lab_dir/kernel.pin"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

flavour=cloud-amd64

# available_release: the release in kernel.pin, else the newest of its series.
available_release() {
    local suite=$1 series=$2 pinned=$3 names newest
    names=$("$lab_dir/isolated-apt.sh" "$suite" apt-cache pkgnames linux-headers- | sed -n "s/^linux-headers-\([0-9].*\)-$flavour\$/\1/p")
    if grep -qxF -e "$pinned" <<<"$names"; then
        printf '%s\n' "$pinned"
        return
    fi
    newest=$(if [[ $series == - ]]; then printf '%s\n' "$names"; else grep "^${series//./\\.}[.+~]" <<<"$names"; fi | sort -V | tail -n 1)
    [[ -n $newest ]] || die "$suite has no kernel of the series '$series' for $flavour ('-' stands for any)"
    [[ $pinned == - ]] || note "note: $suite now has Linux $newest; the lab was tested with $pinned"
    printf '%s\n' "$newest"
}

# uncompress VMLINUZ VMLINUX. Where a bzImage keeps its kernel: Documentation/arch/x86/boot.rst, "payload_offset"; the
# last four bytes of the payload are its size when it is out.
uncompress() {
    local image=$1 sectors offset length
    sectors=$(od -An -tu1 -j $((0x1f1)) -N 1 "$image")
    offset=$(od -An -tu4 -j $((0x248)) -N 4 "$image")
    length=$(od -An -tu4 -j $((0x24c)) -N 4 "$image")
    head -c $(((sectors + 1) * 512 + offset + length - 4)) "$image" | tail -c $((length - 4)) >"$2.zst"
    zstd -dqf --rm "$2.zst" -o "$2" || die "the kernel in ${image##*/} is not compressed with zstd"
}

compiler_knows() { gcc "$1" -E -x c /dev/null >/dev/null 2>&1; }

# The kernel's compiler is newer than Debian 12's, and its pahole may be absent.
make_arguments() {
    printf '%s\n' CROSS_COMPILE= CONFIG_DEBUG_INFO_BTF_MODULES=
    compiler_knows -fmin-function-alignment=16 || printf '%s\n' CONFIG_CC_HAS_MIN_FUNCTION_ALIGNMENT=
}

# __counted_by is what gcc 15 brought; the headers use it where the kernel's compiler had it.
fit_headers() {
    local headers=$1 root=$2
    sed -i "s|/usr/src/|$root/usr/src/|g" "$headers/Makefile"
    if ! printf 'struct s { int n; int a[] __attribute__((counted_by(n))); };' | gcc -Werror -x c -c - -o /dev/null 2>/dev/null; then
        sed -i '/CONFIG_CC_HAS_COUNTED_BY/d' "$headers/include/generated/autoconf.h"
    fi
}

fetch() {
    local directory=$1 suite=$2 series=$3 pinned=$4 libc_suite=$5 release headers kbuild program
    note "asking the Debian mirror for its kernel ..."
    read_index "$suite" "$libc_suite"
    release=$(available_release "$suite" "$series" "$pinned")
    note "fetching Linux $release-$flavour and its headers (about 28 MB) ..."
    unpack_packages "$suite" "$directory" "linux-binary-$release-$flavour" "linux-headers-$release-$flavour" \
        "linux-headers-$release-common" "linux-kbuild-$release"
    headers=$directory/usr/src/linux-headers-$release-$flavour
    kbuild=$directory/usr/lib/linux-kbuild-$release
    for program in scripts/mod/modpost.real-lsb-64 tools/objtool/objtool.real-x86 tools/bpf/resolve_btfids/resolve_btfids scripts/basic/fixdep; do
        [[ ! -e $kbuild/$program ]] || make_runnable "$libc_suite" "$kbuild/$program"
    done
    fit_headers "$headers" "$directory"
    ln -s "$headers" "$directory/build"
    uncompress "$directory/usr/lib/modules/$release-$flavour/vmlinuz" "$directory/vmlinux"
    make_arguments >"$directory/make-arguments"
    printf '%s\n' "$release-$flavour" >"$directory/release"
}

# fetch_modules DIRECTORY SUITE: the modules of the kernel in DIRECTORY
fetch_modules() {
    local release directory=$1/modules
    release=$(<"$1/release")
    [[ ! -e $directory/lib/modules/$release/modules.dep.bin ]] || return 0
    rm -rf "$directory" "$directory.new"
    note "fetching the modules of Linux $release (23 MB) ..."
    unpack_packages "$2" "$directory.new" "linux-modules-$release" "linux-base-$release"
    ln -s usr/lib "$directory.new/lib"
    depmod --basedir "$directory.new" "$release" || die "depmod does not read the modules of $release"
    mv "$directory.new" "$directory"
}

main() {
    local want=kernel kernel directory id suite series pinned libc_suite
    [[ ${1:-} == --path || ${1:-} == --modules ]] && want=${1#--} && shift
    kernel=${1:-}
    [[ $# == 1 && -n $kernel && -v debian_kernels[$kernel] ]] ||
        die "usage: debian-kernel.sh [--path | --modules] $(printf '%s\n' "${!debian_kernels[@]}" | sort | paste -sd '|')"
    read -r suite series pinned libc_suite <<<"${debian_kernels[$kernel]}"
    id=$({ printf '%s\n' "${debian_kernels[$kernel]}"; gcc --version | head -n 1; cat "${BASH_SOURCE[0]}"; } | sha256_of_text | cut -c1-16)
    directory=$cache_dir/kernel/$kernel-$id
    if [[ $want != path && ! -e $directory/complete ]]; then
        "$lab_dir/packages.sh" module
        lock "kernel-$kernel"
        if [[ ! -e $directory/complete ]]; then
            rm -rf "$directory"
            fetch "$directory" "$suite" "$series" "$pinned" "$libc_suite"
            touch "$directory/complete"
        fi
    fi
    if [[ $want == modules ]]; then
        lock "modules-$kernel"
        fetch_modules "$directory" "$suite"
        directory+=/modules
    fi
    printf '%s\n' "$directory"
}

main "$@"
