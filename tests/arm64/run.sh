#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-compile the library, tools, samples and the Python wheel for aarch64, and check that the results are for it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

build=build/arm64
targets=(gpurx gpurx_ingest gpurx-doctor gpurx-perf gpurxd samples)

# check_machine FILE...: each is for aarch64, an archive in each of its objects.
check_machine() {
    local file machines
    for file; do
        machines=$(readelf -h "$file" | sed -n 's/^ *Machine: *//p' | sort -u)
        [[ $machines == AArch64 ]] || die "$file is for ${machines:-no machine}, not for AArch64"
        printf '%s: %s\n' "$file" "$machines"
    done
}

# programs: what the targets have linked
programs() { find "$build/framework" "$build/samples" -type f \( -name 'lib*.a' -o -executable \) ! -path '*/CMakeFiles/*'; }

# wheel CUDA: the platform and the headers of aarch64, the interpreter of this machine.
wheel() {
    local environment sysroot module
    environment=$(tests/python/environment.sh)
    sysroot=$(tests/arm64/sysroot.sh)
    rm -rf "$build/wheel"
    PATH=$environment/bin:$PATH _PYTHON_HOST_PLATFORM=linux-aarch64 python -m pip wheel --quiet --no-input \
        --disable-pip-version-check --no-index --no-deps --no-build-isolation -Ccmake.python-hints=false \
        -Ccmake.toolchain-file="$PWD/tests/arm64/toolchain.cmake" -Ccmake.define.GPURX_CUDA="$1" \
        -Ccmake.define.Python_INCLUDE_DIR="$(echo "$sysroot"/usr/include/python3.*)" \
        -Ccmake.define.nanobind_DIR="$("$environment/bin/python" -m nanobind --cmake_dir)" \
        -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_STATIC_OPENSSL=ON -w "$build/wheel" .
    module=$build/wheel/gpurx/_native.abi3.so
    [[ -e $(echo "$build"/wheel/gpurx-*-cp310-abi3-linux_aarch64.whl) ]] || die "the tag of the wheel is wrong: $(ls "$build/wheel")"
    python3 -m zipfile -e "$build"/wheel/gpurx-*.whl "$build/wheel"
    [[ -e $module ]] || die "the wheel has no $module"
    check_machine "$module"
}

main() {
    local cuda=AUTO
    local -a linked
    [[ -z $(cmake/cuda-toolkit.sh) ]] || cuda=ON
    cmake --preset arm64 -DGPURX_CUDA="$cuda"
    cmake --build "$build" --target "${targets[@]}"
    mapfile -t linked < <(programs)
    ((${#linked[@]} > ${#targets[@]})) || die "only these were built: ${linked[*]}"
    check_machine "${linked[@]}"
    wheel "$cuda"
}

main "$@"
