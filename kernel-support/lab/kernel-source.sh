#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of the kernel source: a tar archive, or a directory where GPURX_KERNEL_SOURCE names one.
# Without that variable it is Debian's linux-source package of the series in kernel.pin, fetched once and checked.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=kernel.pin
. "$lab_dir/kernel.pin"

from_environment() {
    local source
    source=$(realpath -e -- "$GPURX_KERNEL_SOURCE" 2>/dev/null) || die "GPURX_KERNEL_SOURCE=$GPURX_KERNEL_SOURCE: no such file or directory"
    if [[ -d $source && ! -e $source/Kbuild ]]; then
        die "GPURX_KERNEL_SOURCE=$source is not a kernel source tree"
    fi
    printf '%s\n' "$source"
}

isolated() { "$lab_dir/isolated-apt.sh" "$suite" "$@"; }

# The version to fetch: the one we tested, else the newest of the series.
available_version() {
    local newest
    if isolated apt-cache madison "$package" | grep -qF " $version "; then
        printf '%s\n' "$version"
        return
    fi
    newest=$(isolated apt-cache madison "$package" | awk -F' *[|] *' '{print $2}' | sort -V | tail -n 1)
    [[ $newest == "$series".* ]] || die "$suite has no $package (set GPURX_KERNEL_SOURCE to a $series source tree or archive)"
    note "note: $suite now has $package $newest; the lab was tested with $version"
    printf '%s\n' "$newest"
}

# expected_sha256 VERSION: pinned for the tested version, else from the signed index.
expected_sha256() {
    if [[ $1 == "$version" ]]; then
        printf '%s\n' "$sha256"
    else
        isolated apt-cache show "$package=$1" | sed -n 's/^SHA256: //p' | head -n 1
    fi
}

fetch() {
    local directory=$1 wanted expected deb work
    note "asking the Debian mirror for $package ..."
    isolated apt-get -qq update >&2 || die "the mirror does not answer (set GPURX_KERNEL_SOURCE to a $series source tree or archive)"
    wanted=$(available_version)
    expected=$(expected_sha256 "$wanted")
    [[ -n $expected ]] || die "no checksum for $package $wanted"

    work=$directory/fetch
    rm -rf "$work"
    mkdir -p "$work"
    note "fetching $package $wanted (about 170 MB) ..."
    (cd "$work" && isolated apt-get -qq download "$package=$wanted" >&2)
    deb=("$work"/*.deb)
    [[ $(sha256_of "${deb[0]}") == "$expected" ]] || die "checksum of ${deb[0]##*/}: got $(sha256_of "${deb[0]}"), want $expected"

    dpkg-deb --fsys-tarfile "${deb[0]}" | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' >"$work/source.tar.xz"
    sha256_of "$work/source.tar.xz" >"$work/source.sha256"
    printf '%s\n' "$wanted" >"$work/version"
    mv "$work/version" "$work/source.sha256" "$directory/"
    mv "$work/source.tar.xz" "$directory/linux.tar.xz"
    rm -rf "$work"
}

main() {
    if [[ -n ${GPURX_KERNEL_SOURCE:-} ]]; then
        from_environment
        return
    fi
    local directory=$cache_dir/kernel-source/$package
    local archive=$directory/linux.tar.xz
    if [[ ! -e $archive ]]; then
        mkdir -p "$directory"
        lock kernel-source
        # Another run may have fetched it while this one waited.
        [[ -e $archive ]] || fetch "$directory"
    fi
    printf '%s\n' "$archive"
}

main
