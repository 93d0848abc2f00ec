#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Build Debian packages of Linux 7.3 with series of patches, for a machine that has a NIC:
#
#   debs.sh [--config FILE] DIRECTORY [SERIES...]
#
# DIRECTORY, new or empty, gets the source tree and the packages. SERIES: names of folders here, in the order in which they
# apply; without one it is Linux as it is, to measure before. FILE is the configuration to start from: that of the running
# kernel by default. What device memory needs is set in it, and options that it lacks get their defaults.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../lab/lib.sh"

usage='usage: debs.sh [--config FILE] DIRECTORY [SERIES...]'

# Certificates and debug information of a distribution's configuration are files of that distribution, and gigabytes.
configure() {
    local tree=$1 config=$2
    cp "$config" "$tree/.config"
    "$tree/scripts/config" --file "$tree/.config" -e DMA_SHARED_BUFFER -e UDMABUF -e DMABUF_HEAPS -e DMABUF_HEAPS_SYSTEM \
        -e PAGE_POOL_STATS -e DEBUG_INFO_NONE -d DEBUG_INFO_BTF --set-str SYSTEM_TRUSTED_KEYS '' --set-str SYSTEM_REVOCATION_KEYS ''
    make -s -C "$tree" olddefconfig
    grep -qx 'CONFIG_NET_DEVMEM=y' "$tree/.config" || die "device memory is not in the configuration $config"
}

main() {
    local config directory tree name log source
    config=/boot/config-$(uname -r)
    if [[ ${1:-} == --config && $# -ge 2 ]]; then
        config=$2
        shift 2
    fi
    [[ $# -ge 1 && $1 != -* ]] || die "$usage"
    [[ -r $config ]] || die "no configuration $config: name one with --config FILE"
    directory=$(realpath -m -- "$1")
    tree=$directory/linux log=$directory/build.log
    shift
    for name; do
        [[ -e $series_dir/$name/series ]] || die "no series '$name' (the branch: $branch_series)"
    done
    [[ -z $(ls -A "$directory" 2>/dev/null) ]] || die "$directory is not empty"
    "$lab_dir/packages.sh" kernel kernel-debs
    source=$("$lab_dir/kernel-source.sh")
    note "unpacking the kernel source ..."
    unpack_patched "$source" "$tree" < <(patches_of "$@")
    configure "$tree" "$config"
    note "building the packages (log: $log); a distribution's configuration takes long"
    name=$(IFS=-; printf '%s' "gpurx${*:+-$*}")
    make -C "$tree" -j"$(nproc)" CC='ccache gcc' LOCALVERSION="-$name" bindeb-pkg >"$log" 2>&1 &
    wait_for "building the packages" $! || {
        tail -n 30 "$log" >&2
        die "the packages do not build; the log is $log"
    }
    printf '%s\n' "$directory"/*.deb
}

main "$@"
