#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of the newest kernel source that Debian carries, in sid, experimental or the suite that kernel.pin names, as a
# tar archive. tests/lint/series.sh --newest looks whether the series apply to it.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=kernel.pin
. "$lab_dir/kernel.pin"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

# newest_of SUITE: VERSION SUITE PACKAGE, of the source with the highest version there
newest_of() {
    local package
    package=$("$lab_dir/isolated-apt.sh" "$1" apt-cache pkgnames linux-source- | grep -xE 'linux-source-[0-9.]+' | sort -V | tail -n 1)
    [[ -z $package ]] || printf '%s %s %s\n' "$(newest_version "$1" "$package")" "$1" "$package"
}

main() {
    local pinned=$version version suite=$suite package archive work
    read_index sid experimental "$suite"
    read -r version suite package < <({ newest_of sid && newest_of experimental && newest_of "$suite"; } | sort -V | tail -n 1)
    [[ -n $package ]] || die "Debian has no package linux-source"
    note "the newest kernel source of Debian is $package $version of $suite"
    if [[ $version == "$pinned" ]]; then
        "$lab_dir/kernel-source.sh"
        return
    fi
    archive=$cache_dir/kernel-source/newest/$package-$version.tar.xz
    lock newest-source
    if [[ ! -e $archive ]]; then
        note "fetching $package $version of $suite (about 170 MB) ..."
        work=$cache_dir/kernel-source/newest
        rm -rf "$work"
        download "$suite" "$work" "$package=$version"
        dpkg-deb --fsys-tarfile "$work"/*.deb | tar -xO --wildcards './usr/src/linux-source-*.tar.xz' >"$archive.new"
        rm "$work"/*.deb
        mv "$archive.new" "$archive"
    fi
    printf '%s\n' "$archive"
}

main
