#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages for the release of this machine, under build/packages:
#
#   packages.sh
#
# On Debian 12 they ask for libraries of its backports, as building them does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

report() {
    local deb
    for deb in "$1"/*.deb; do
        printf '%s: %s, %d KiB installed\n' "$deb" "$(numfmt --to=iec-i --suffix=B "$(stat -c %s "$deb")")" \
            "$(dpkg-deb -f "$deb" Installed-Size)"
    done
}

main() {
    local environment nanobind cuda=OFF start=$SECONDS log=build/packages.log
    (($# == 0)) || die "usage: packages.sh"
    "$lab_dir/packages.sh" build debian
    [[ -z $(cmake/cuda-toolkit.sh) ]] || cuda=ON
    environment=$(tests/python/environment.sh)
    nanobind=$("$environment/bin/python" -m nanobind --cmake_dir)
    lock "packages$(printf '%s' "$PWD" | tr / -)"
    mkdir -p build
    cmake/packages/build.sh build/packages-build build/packages "-Dnanobind_DIR=$nanobind" "-DGPURX_CUDA=$cuda" >"$log" 2>&1 &
    wait_for "building the packages" $! || {
        tail -n 40 "$log" >&2
        die "cannot build the packages; the whole log is $log"
    }
    report build/packages
    printf 'for %s, with%s code for GPUs; %d s\n' "$(os_release PRETTY_NAME)" "$([[ $cuda == ON ]] || echo out)" $((SECONDS - start))
}

main "$@"
