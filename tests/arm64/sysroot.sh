#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the directory with what gpurx needs of Debian 12 for aarch64, unpacked once in the cache. Nothing is installed.
#
#   sysroot.sh             the root: headers and libraries
#   sysroot.sh emulator    the program that runs those of aarch64 here
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. kernel-support/lab/debian-packages.sh

# With all that they ask for.
bookworm=(libc6-dev libstdc++-12-dev libfmt-dev libisal-dev libmnl-dev libcli11-dev libssl-dev libpython3-dev)
# By themselves: Debian 12 has older ones, or none.
backports=(libcatch2-dev libboost1.83-dev libboost-{container,json,system,url}1.83-dev libboost-{container,json,system,url}1.83.0)

# closure SUITE PACKAGE...: print them and all that they ask for.
closure() {
    "$lab_dir/isolated-apt.sh" "$1" apt-get -qq -s --no-install-recommends install "${@:2}" | awk '$1 == "Inst" { print $2 }'
}

# make DIRECTORY
make() {
    local -a packages
    local link
    export GPURX_DEBIAN_ARCHITECTURE=arm64
    read_index bookworm bookworm-backports
    mapfile -t packages < <(closure bookworm "${bookworm[@]}")
    unpack_packages bookworm "$1" "${packages[@]}"
    unpack_packages bookworm-backports "$1" "${backports[@]}"
    # Absolute links would lead out of it.
    while read -r link; do
        ln -sfr "$1$(readlink "$link")" "$link"
    done < <(find "$1" -lname '/*')
    touch "$1/complete"
}

main() {
    local directory
    if [[ ${1:-} == emulator ]]; then
        program_of trixie qemu-user usr/bin/qemu-aarch64
        return
    fi
    directory=$cache_dir/arm64-$(sha256_of tests/arm64/sysroot.sh | cut -c1-16)
    lock arm64
    if [[ ! -e $directory/complete ]]; then
        note "fetching Debian's packages for aarch64 (65 MB) ..."
        rm -rf "$directory"
        make "$directory"
    fi
    printf '%s\n' "$directory"
}

main "$@"
