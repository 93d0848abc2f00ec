#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package as a user gets it: installed by pip, offline, into an environment of its own under build/python, and
# tested with transport copy on loopback, on a GPU or else on the fake CUDA driver:  run.sh [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. tests/python/layer.sh

main() {
    local environment python=build/python/venv cuda=AUTO
    environment=$(tests/python/environment.sh)
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    layer "$environment" "$python"
    lend_torch "$python"
    # No network, and no copy of the build environment: all that the build needs is in the environment.
    PATH=$environment/bin:$PATH "$environment/bin/python" -m pip --python "$python/bin/python" install --quiet --no-input \
        --disable-pip-version-check --no-index --no-deps --no-build-isolation --force-reinstall \
        -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_CUDA="$cuda" \
        -Ccmake.define.GPURX_STATIC_OPENSSL=ON .
    # What the tests talk to.
    local -a targets=(tensor_source)
    [[ $cuda == AUTO ]] || targets+=(fake_cuda)
    tests/build.sh -DGPURX_CUDA="$cuda" "${targets[@]}" >/dev/null
    "$python/bin/python" tests/gpu/has_gpu.py ||
        export LD_LIBRARY_PATH=$PWD/build/dev/tests/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    "$python/bin/python" -m pytest -q -p no:cacheprovider tests/python "$@"
}

main "$@"
