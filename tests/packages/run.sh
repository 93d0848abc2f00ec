#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Debian packages as a user gets them: built for a release, looked at, installed in a clean root of it, used and removed.
#
#   run.sh RELEASE                  bookworm (Debian 12) or trixie (Debian 13)
#
# For the release of this machine they are those of `./run packages`; for the other one they are built in a root of it, by the
# same script, as libraries have other names there. The roots are kept in the cache (root.sh). Prints TAP.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. kernel-support/lab/debian-packages.sh
. tests/packages/root.sh

failed=0

# check NAME COMMAND...: one line of TAP, and of what goes wrong the end.
check() {
    local name=$1 start=$SECONDS
    shift
    # Not `if "$@"`, in which set -e would have no meaning.
    set +e
    (set -e && "$@") >"$work/log" 2>&1
    local status=$?
    set -e
    if ((status == 0)); then
        printf 'ok - %s: %s (%d s)\n' "$release" "$name" $((SECONDS - start))
    else
        printf 'not ok - %s: %s\n' "$release" "$name"
        tail -n 20 "$work/log" | sed 's/^/# /'
        failed=1
    fi
}

# build_here: for the release of this machine.
build_here() {
    ./run packages >&2
    rm -rf "$out"
    mkdir -p "$out"
    cp build/packages/*.deb "$out"
}

install_builders() {
    share "$repo_dir" "$1/src" ro
    inside "$1" /src/kernel-support/lab/packages.sh build debian
    umount "$1/src"
}

# build_inside: in a root of the release; sources, CUDA and nanobind are this machine's, and cannot be written there.
build_inside() {
    local at=$work/builder builders environment nanobind cuda
    local -a options=(-DGPURX_CUDA=OFF) cache=()
    builders=$(layer "$release" "builders-$(sha256_of kernel-support/lab/packages.sh | cut -c1-8)" install_builders -- "$base")
    environment=$(tests/python/environment.sh)
    nanobind=$(realpath "$("$environment/bin/python" -m nanobind --cmake_dir)/../..")
    cuda=$(cmake/cuda-toolkit.sh)
    assemble "$at" "$work/builder.upper" "$builders" "$base"
    share "$repo_dir" "$at/src" ro
    share "$nanobind" "$at/python" ro
    mkdir -p "build/packages-$release"
    share "build/packages-$release" "$at/build"
    if [[ -n $cuda ]]; then
        share "$cuda" "$at/cuda" ro
        options=(-DGPURX_CUDA=ON -DGPURX_CUDA_ROOT=/cuda)
    fi
    if command -v ccache >/dev/null; then
        share "$(ccache --get-config cache_dir)" "$at/ccache"
        cache=(env CCACHE_DIR=/ccache)
    fi
    inside "$at" "${cache[@]}" /src/cmake/packages/build.sh /build/objects /build/out -Dnanobind_DIR=/python/nanobind/cmake "${options[@]}" \
        >"build/packages-$release.log" 2>&1 || die "$(tail -n 20 "build/packages-$release.log")"
    rm -rf "$out"
    mkdir -p "$out"
    cp "build/packages-$release"/out/*.deb "$out"
    disassemble "$at"
}

build() {
    if [[ $(os_release VERSION_CODENAME) == "$release" ]]; then
        build_here
    else
        build_inside
    fi
}

# packages_of ROOT NAME...: as apt wants to have files named: by path.
packages_of() {
    local root=$1 name file
    shift
    for name; do
        for file in "$out/$name"_*.deb; do
            [[ -e $file ]] || die "there is no package $name"
            cp "$file" "$root/tmp"
            printf '/tmp/%s\n' "${file##*/}"
        done
    done
}

# install_in ROOT NAME...: by apt, with what they ask for and nothing else.
install_in() {
    local -a files
    mapfile -t files < <(packages_of "$@")
    add_packages "$1" "${files[@]}"
}

# What the tools need is in their packages' dependencies: nothing else is there.
use_tools() {
    local program
    install_in "$at" "${libraries[@]}" gpurx-tools gpurxd
    for program in gpurx-doctor gpurx-fetch gpurx-perf gpurx-run gpurxd; do
        [[ $(alone "$at" "$program" --version) == "$program $version" ]]
    done
}

use_python() {
    install_in "$at" python3-gpurx
    share "$repo_dir/tests" "$at/mnt" ro
    alone "$at" python3 -B /mnt/packages/in_root.py "$version"
}

use_module() {
    install_in "$at" devmemsim-dkms
    [[ $(inside "$at" dkms status -m devmemsim) == "devmemsim/0.1: added" ]]
}

# The newest headers of the kernels that the module is for; Debian 13's own kernel is older than that.
install_headers() {
    local headers
    printf 'deb %s trixie-backports main\n' "$(debian_mirror)" >>"$1/etc/apt/sources.list"
    inside "$1" apt-get -qq update
    headers=$(inside "$1" apt-cache search --names-only '^linux-headers-7[.0-9]*[+]deb13-amd64$' | cut -d' ' -f1 | sort -V | tail -n 1)
    [[ -n $headers ]] || die "trixie-backports has no headers of a kernel 7"
    add_packages "$1" --target-release trixie-backports "$headers"
}

# Where there are headers, installing makes the module, and removing takes it away.
make_module() {
    local module=$work/module headers modules
    headers=$(layer "$release" headers install_headers -- "$base")
    assemble "$module" "$work/module.upper" "$headers" "$base"
    install_in "$module" devmemsim-dkms
    [[ $(inside "$module" dkms status -m devmemsim) == "devmemsim/0.1, 7."*": installed" ]]
    modules=$(find "$module/lib/modules/" -name 'devmemsim.ko*')
    [[ -n $modules ]]
    inside "$module" dpkg --remove devmemsim-dkms
    [[ -z $(find "$module/lib/modules/" "$module/var/lib/dkms" -name 'devmemsim*') ]]
    disassemble "$module"
}

# left_over ROOT: what has a name of ours.
left_over() {
    find "$1" \( -path "$1/proc" -o -path "$1/sys" -o -path "$1/mnt" -o -path "$1/tmp" -o -path "$1/var/cache/apt" -o -path "$1/var/log" \) -prune -o \
        \( -name '*gpurx*' -o -name '*devmemsim*' \) -print
}

# Until they are purged dpkg keeps a record of packages with a postrm: shared libraries, which cpack gives one for ldconfig,
# and gpurxd, whose folder of settings stays as long.
remove() {
    local left kept='(/var/lib/dpkg/info/(libgpurx|gpurxd)[^/]*|/etc/gpurx)$'
    local -a ours=("${libraries[@]}" gpurx-tools gpurxd python3-gpurx devmemsim-dkms)
    [[ -n $(left_over "$at") ]]
    inside "$at" apt-get -q -y remove "${ours[@]}"
    left=$(left_over "$at" | grep -Ev "$kept" || true)
    [[ -z $left ]] || die "left over: $left"
    inside "$at" dpkg --purge "${libraries[@]}" gpurxd
    left=$(left_over "$at")
    [[ -z $left ]] || die "left over by purge: $left"
    left=$(inside "$at" dpkg-query -W)
    [[ $left != *gpurx* && $left != *devmemsim* ]] || die "dpkg knows them still: $left"
}

install_compiler() { add_packages "$1" g++ cmake make pkg-config; }

# In a root that has a compiler and nothing else of what compiling gpurx needs.
use_dev() {
    local consumer=$work/consumer compilers
    compilers=$(layer "$release" compilers install_compiler -- "$base")
    assemble "$consumer" "$work/consumer.upper" "$compilers" "$base"
    install_in "$consumer" "${libraries[@]}" libgpurx-dev
    share "$repo_dir/tests/package" "$consumer/mnt" ro
    inside "$consumer" cmake -S /mnt/find_package -B /tmp/build -DCMAKE_BUILD_TYPE=Debug
    inside "$consumer" cmake --build /tmp/build --parallel
    [[ $(alone "$consumer" /tmp/build/consumer) == "4096 bytes received"* ]]
    # shellcheck disable=SC2016
    inside "$consumer" sh -ec 'g++ -std=c++20 -o /tmp/by-pkg-config /mnt/main.cpp $(pkg-config --cflags --libs gpurx)'
    [[ $(alone "$consumer" /tmp/by-pkg-config) == "4096 bytes received"* ]]
    disassemble "$consumer"
}

main() {
    local why
    release=${1:-}
    [[ $release == bookworm || $release == trixie ]] || die "usage: run.sh bookworm|trixie"
    if [[ -z ${GPURX_OWN_MOUNTS:-} ]]; then
        unshare --mount true 2>/dev/null || { echo "ok - packages # SKIP no mount namespace can be made here" && exit 0; }
        GPURX_OWN_MOUNTS=1 exec unshare --mount "$0" "$@"
    fi
    why=$(why_no_roots "$release")
    [[ -z $why ]] || { echo "ok - packages # SKIP $why" && exit 0; }

    lock "packages-test-$release"
    # On a disk: an overlay's upper layer in a tmpfs would hold what apt installs in memory. What was killed has left its own.
    rm -rf --one-file-system "$roots/$release/work".*
    mkdir -p "$roots/$release"
    work=$(mktemp -d "$roots/$release/work.XXXXXX")
    # shellcheck disable=SC2064
    trap "umount -R '$work'/* 2>/dev/null || true; rm -rf --one-file-system '$work'" EXIT
    out=build/packages-$release.out
    version=$(sed -n 's/^ *VERSION \([0-9.]*\)$/\1/p' CMakeLists.txt)
    base=$(base_root "$release")

    check "they are built" build
    ((failed == 0)) || exit 1
    libraries=("libgpurx${version%.*}" "libgpurx-ingest${version%.*}")
    tests/packages/contents.py "$out" "$repo_dir" "$HOME/" "$work" /build/objects /src/framework /src/samples || failed=1
    at=$work/root
    assemble "$at" "$work/root.upper" "$base"
    check "the tools run where nothing else is" use_tools
    check "the tools, completions and Python work" use_python
    check "devmemsim-dkms gives its sources to dkms" use_module
    if [[ $release == trixie ]]; then
        check "devmemsim is made for a kernel whose headers are there" make_module
    else
        echo "ok - $release: devmemsim is made for a kernel # SKIP it needs a kernel 7.2 or later, and Debian 12 has no headers of one"
    fi
    check "nothing is left when they are removed" remove
    disassemble "$at"
    check "a program finds the library by CMake, and by pkg-config" use_dev
    exit "$failed"
}

main "$@"
