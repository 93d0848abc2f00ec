#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of the kernel source: a tar archive, or a directory where GPURX_KERNEL_SOURCE names one.
# Without that variable it is Debian's linux-source package of the series in kernel.pin, fetched once and checked.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=kernel.pin
. "$lab_dir/kernel.pin"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

from_environment() {
    local source
    source=$(realpath -e -- "$GPURX_KERNEL_SOURCE" 2>/dev/null) || die "GPURX_KERNEL_SOURCE=$GPURX_KERNEL_SOURCE: no such file or directory"
    if [[ -d $source && ! -e $source/Kbuild ]]; then
        die "GPURX_KERNEL_SOURCE=$source is not a kernel source tree"
    fi
    printf '%s\n' "$source"
}

# The version to fetch: the one we tested, else the newest of the series.
available_version() {
    local versions newest
    versions=$(package_versions "$suite" "$package")
    if grep -qxF -e "$version" <<<"$versions"; then
        printf '%s\n' "$version"
        return
    fi
    newest=$(tail -n 1 <<<"$versions")
    [[ $newest == "$series".* ]] || die "$suite has no $package (set GPURX_KERNEL_SOURCE to a $series source tree or archive)"
    note "note: $suite now has $package $newest; the lab was tested with $version"
    printf '%s\n' "$newest"
}

fetch() {
    local directory=$1 wanted deb work
    note "asking the Debian mirror for $package ..."
    (read_index "$suite") || die "no kernel source (set GPURX_KERNEL_SOURCE to a $series source tree or archive)"
    wanted=$(available_version)

    work=$directory/fetch
    rm -rf "$work"
    mkdir -p "$work"
    note "fetching $package $wanted (about 170 MB) ..."
    download "$suite" "$work" "$package=$wanted"
    deb=("$work"/*.deb)
    [[ $wanted != "$version" || $(sha256_of "${deb[0]}") == "$sha256" ]] ||
        die "checksum of ${deb[0]##*/}: got $(sha256_of "${deb[0]}"), want $sha256"

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
