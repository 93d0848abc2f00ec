#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Build the kernel tree's own tests of NICs from the source of a kernel of the lab, and print the directory they are in.
# run-selftests.sh runs them in the guest.
#
#   selftests.sh [KERNEL]                              as kernel.sh takes it; debian by default
#
#   DIRECTORY/tools/testing/selftests/drivers/net/...   the tests, with the layout they expect
#   DIRECTORY/bin                                       programs for the front of PATH
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

# ethtool before 6.19 lacks options that the tests use; liburing before 2.15 lacks zero-copy receive.
ethtool_suite=sid ethtool_minimum=1:6.19
liburing_suite=sid liburing_minimum=2.15

# What of the tree the tests need. MAINTAINERS: by it the code generator finds the top of the tree.
tree_parts=(MAINTAINERS Makefile Kbuild Kconfig scripts include arch/x86 tools Documentation/netlink)

# fetch_package SUITE PACKAGE MINIMUM DIRECTORY: unpack the newest PACKAGE of SUITE into DIRECTORY.
fetch_package() {
    local suite=$1 package=$2 minimum=$3 directory=$4 version
    read_index "$suite"
    version=$(newest_version "$suite" "$package")
    [[ -n $version ]] || die "$suite has no package $package"
    dpkg --compare-versions "$version" ge "$minimum" || die "$package in $suite is $version; $minimum is needed"
    unpack_packages "$suite" "$directory" "$package=$version"
}

# What of the tests is compiled, by directory under tools/testing/selftests; what a tree does not have is left out.
declare -A compiled=(
    [drivers/net/hw]='ncdevmem iou-zcrx toeplitz nk_forward.bpf.o nk_primary_rx_redirect.bpf.o'
    [drivers/net]='napi_id_helper'
    [net/lib]='csum gro xdp_helper xdp_dummy.bpf.o xdp_native.bpf.o'
)

# compiled_files TESTS DIRECTORY: the paths of what is compiled there
compiled_files() {
    local name
    for name in ${compiled[$2]}; do
        [[ ! -e $1/$2/${name%.o}.c ]] || printf '%s\n' "$1/$2/$name"
    done
}

build_tests() {
    local tree=$1 work=$2 clang tests headers directory files
    clang=$(command -v clang-14 || command -v clang)
    tests=$tree/tools/testing/selftests
    headers="-isystem $work/headers/include"
    # The code generator needs the distribution's Python, which has its modules.
    export PATH=/usr/bin:$PATH

    timeout 300 make -C "$tree" -s -j"$(nproc)" O="$work/objects" INSTALL_HDR_PATH="$work/headers" headers_install
    # Only the archive, so that it is linked in. The kernel's headers come before those liburing was configured with.
    mkdir -p "$work/liburing-static"
    cp "$work"/liburing/usr/lib/*/liburing.a "$work/liburing-static/"
    for directory in "${!compiled[@]}"; do
        mapfile -t files < <(compiled_files "$tests" "$directory")
        CPATH=$work/liburing/usr/include LIBRARY_PATH=$work/liburing-static timeout 300 \
            make -C "$tests/$directory" -j"$(nproc)" SHELL=/bin/bash CLANG="$clang" HAS_IOURING_ZCRX=y KHDR_INCLUDES="$headers" \
            USERCFLAGS="$headers" OUTPUT="$tests/$directory" "${files[@]}"
    done
}

collect() {
    local tree=$1 work=$2 out=$3 name directory files=()
    local base=tools/testing/selftests
    for directory in "${!compiled[@]}"; do
        mapfile -t -O ${#files[@]} files < <(cd "$tree" && compiled_files $base "$directory")
    done
    (cd "$tree" && cp -a --parents $base/drivers/net/*.py $base/drivers/net/lib $base/drivers/net/hw/*.py \
        $base/drivers/net/hw/lib $base/net/lib/py "${files[@]}" tools/net/ynl/pyynl Documentation/netlink/specs "$out/")
    # It spins for as long as it waits: where there is one CPU it must let the sender have it.
    name=$out/$base/drivers/net/hw/toeplitz
    mv "$name" "$name.elf"
    # shellcheck disable=SC2016  # the script's shell expands it
    printf '#!/bin/sh\nexec nice -n 19 "$0.elf" "$@"\n' >"$name"
    chmod +x "$name"
    mkdir -p "$out/bin"
    # The package has a script of this name too, for /etc/network.
    name=$(find "$work/ethtool" -path '*/sbin/ethtool' -type f | head -n 1)
    cp "$name" "$out/bin/ethtool"
    make_runnable "$ethtool_suite" "$out/bin/ethtool"
    # The tests wait for udev, which neither the guest nor every host has.
    printf '#!/bin/sh\nexit 0\n' >"$out/bin/udevadm"
    chmod +x "$out/bin/udevadm"
}

main() {
    local source id out work
    "$lab_dir/packages.sh" selftests
    # In the cache the name of the directory stands for what is in it.
    source=$("$lab_dir/kernel.sh" --source "${1:-debian}")
    id=$({ printf '%s\n' "$source"; cat "${BASH_SOURCE[0]}"; } | sha256_of_text | cut -c1-16)
    out=$cache_dir/selftests/$id
    lock selftests
    if [[ ! -e $out/complete ]]; then
        rm -rf "$out"
        work=$(mktemp -d "$cache_dir/selftests-work.XXXX")
        mkdir -p "$out"
        note "building the kernel tree's own tests, about one minute (log: $out/build.log)"
        {
            fetch_package "$ethtool_suite" ethtool "$ethtool_minimum" "$work/ethtool"
            fetch_package "$liburing_suite" liburing-dev "$liburing_minimum" "$work/liburing"
            mkdir "$work/tree"
            (cd "$source" && cp -a --parents "${tree_parts[@]}" "$work/tree/")
        } >&2
        build_tests "$work/tree" "$work" >"$out/build.log" 2>&1 || {
            tail -n 30 "$out/build.log" >&2
            die "the kernel tree's tests do not build; the log is $out/build.log"
        }
        collect "$work/tree" "$work" "$out"
        rm -rf "$work"
        touch "$out/complete"
    fi
    printf '%s\n' "$out"
}

main "$@"
