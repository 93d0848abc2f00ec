#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the Python package with transport copy on loopback, on a GPU or else on the fake CUDA driver:
#
#   run.sh [--wheel] [--install] [PYTEST-ARGUMENT...]
#
# The package is that of the preset test; with --wheel, as a user gets it: optimised, and installed by pip, offline. It is
# in the environment build/python/venv or build/python/installed. --install runs no test and prints that environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. tests/python/layer.sh

wheel=0 install=0
while [[ ${1:-} == --wheel || ${1:-} == --install ]]; do
    printf -v "${1#--}" 1
    shift
done

# install_wheel ENVIRONMENT: no network, and no copy of the build environment: all that the build needs is there.
install_wheel() {
    PATH=$1/bin:$PATH "$1/bin/python" -m pip --python "$python/bin/python" install --quiet --no-input \
        --disable-pip-version-check --no-index --no-deps --no-build-isolation --force-reinstall \
        -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_CUDA="$cuda" \
        -Ccmake.define.GPURX_STATIC_OPENSSL=ON .
}

# use_build: the package that the preset test has built
use_build() {
    local packages
    packages=$("$python/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    printf '%s\n' "$PWD/build/test/python" >"$packages/gpurx.pth"
}

main() {
    local environment python=build/python/venv cuda=AUTO
    environment=$(tests/python/environment.sh)
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    # The programs that the tests talk to.
    local -a targets=(tensor_source)
    [[ $cuda == AUTO ]] || targets+=(fake_cuda)
    if ((wheel)); then
        python=build/python/installed
    else
        targets+=(_native)
    fi
    tests/build.sh -DGPURX_CUDA="$cuda" -DGPURX_TEST_PYTHON="$environment" "${targets[@]}" >&2
    layer "$environment" "$python"
    lend_torch "$python"
    if ((wheel)); then
        install_wheel "$environment" >&2
    else
        use_build
    fi
    if ((install)); then
        printf '%s\n' "$python"
        return
    fi
    "$python/bin/python" tests/gpu/has_gpu.py ||
        export LD_LIBRARY_PATH=$PWD/build/test/tests/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    "$python/bin/python" -m pytest -q -p no:cacheprovider tests/python "$@"
}

main "$@"
