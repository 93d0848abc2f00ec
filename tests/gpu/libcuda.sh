#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Is what the library expects of a CUDA driver true of NVIDIA's own, without a GPU? Takes Debian's libcuda1 (non-free), if
# apt knows it here, without installing it: all functions are there, cuInit says that there is no GPU and why, and a
# process that has loaded it ends as it should.
#
#   libcuda.sh [FOLDER]        of a libcuda.so.1, instead of Debian's
#   libcuda.sh --suite SUITE   Debian's of that suite, by an apt of its own: where this machine's does not know non-free
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

there=build/libcuda
package=libcuda1
suite=

# packages TOOL ARGUMENTS...: the machine's apt-get or apt-cache, or those of --suite.
packages() {
    if [[ -z $suite ]]; then
        "$@"
    else
        GPURX_DEBIAN_COMPONENT=non-free "$lab_dir/isolated-apt.sh" "$suite" "$@"
    fi
}

# unpack: sets folder, where Debian's libcuda.so.1 is now; false where apt does not know the package.
unpack() {
    local version library
    [[ -z $suite ]] || packages apt-get update >/dev/null
    version=$(packages apt-cache policy "$package" 2>/dev/null | sed -n 's/^ *Candidate: //p')
    [[ -n $version && $version != '(none)' ]] || return 1
    if [[ ! -e $there/$version ]]; then
        rm -rf "$there"
        mkdir -p "$there/deb"
        (cd "$there/deb" && packages apt-get download --quiet "$package=$version" >/dev/null)
        dpkg-deb --extract "$there"/deb/*.deb "$there/files"
        touch "$there/$version"
    fi
    library=$(find "$there/files" -name 'libcuda.so.*' -type f | head -n 1)
    [[ -n $library ]] || die "$package $version has no libcuda.so"
    folder=$PWD/${library%/*}
    [[ -e $folder/libcuda.so.1 ]] || ln -s "${library##*/}" "$folder/libcuda.so.1"
    echo "$package $version"
}

main() {
    local folder=
    case ${1:-} in
        --suite) suite=${2:?usage: libcuda.sh --suite SUITE} ;;
        *) folder=${1:-} ;;
    esac
    if [[ -z $(cmake/cuda-toolkit.sh --path) ]]; then
        echo "SKIP libcuda: the CUDA toolkit, whose cuda.h names the functions, is not on this machine"
        exit 0
    fi
    if [[ -z $folder ]] && ! unpack; then
        echo "SKIP libcuda: apt knows no package $package here; it is in Debian's non-free"
        exit 0
    fi
    tests/build.sh -DGPURX_CUDA=ON libcuda_check >/dev/null
    LD_LIBRARY_PATH=$folder timeout 60 build/test/tests/libcuda_check
}

main "$@"
