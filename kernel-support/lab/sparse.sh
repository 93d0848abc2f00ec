#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of a sparse that Linux 7.3 accepts for C=1: built from Debian's source, because the package of Debian 12
# (and 13) is too old for it, and newer packages want a newer libc.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

suite=sid minimum=0.6.5~rc1

isolated() { "$lab_dir/isolated-apt.sh" "$suite" apt-get -qq "$@" >&2; }

main() {
    local out=$cache_dir/sparse/$minimum work version
    lock sparse
    if [[ ! -x $out/sparse ]]; then
        "$lab_dir/packages.sh" kernel
        work=$out.new
        rm -rf "$work"
        mkdir -p "$work/source"
        note "building sparse ..."
        isolated update
        # apt checks what it fetches against the signed index
        (cd "$work" && isolated source --download-only sparse)
        version=$(sed -n 's/^Version: //p' "$work"/sparse_*.dsc)
        dpkg --compare-versions "$version" ge "$minimum" || die "sparse in $suite is $version; $minimum is needed"
        tar -xf "$work"/sparse_*.orig.tar.* -C "$work/source" --strip-components=1
        make -s -C "$work/source" -j"$(nproc)" HAVE_LLVM=no HAVE_GTK=no HAVE_SQLITE=no HAVE_LIBXML=no sparse >"$work/build.log" 2>&1 || {
            tail -n 30 "$work/build.log" >&2
            die "sparse does not build"
        }
        mkdir -p "$out"
        cp "$work/source/sparse" "$out/sparse"
        rm -rf "$work"
    fi
    printf '%s\n' "$out/sparse"
}

main
