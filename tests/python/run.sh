#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package as a user gets it: installed by pip, offline, into an environment of its own under build/python, and
# tested with transport copy on loopback, on a GPU or else on the fake CUDA driver:  run.sh [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

# A virtual environment of its own, that sees what the other one has.
layer() {
    local under=$1 over=$2
    [[ -x $over/bin/python && $(<"$over/under") == "$under" ]] 2>/dev/null || {
        rm -rf "$over"
        "$under/bin/python" -m venv --without-pip "$over"
        printf '%s\n' "$under" >"$over/under"
    }
    "$under/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$("$over/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/environment.pth"
}

main() {
    local environment python=build/python/venv cuda=AUTO
    environment=$(tests/python/environment.sh)
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    layer "$environment" "$python"
    # No network, and no copy of the build environment: all that the build needs is in the environment.
    PATH=$environment/bin:$PATH "$environment/bin/python" -m pip --python "$python/bin/python" install --quiet --no-input \
        --disable-pip-version-check --no-index --no-deps --no-build-isolation --force-reinstall \
        -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_CUDA="$cuda" ./framework/python
    # What the tests talk to.
    local -a targets=(tensor_source)
    [[ $cuda == AUTO ]] || targets+=(fake_cuda)
    tests/build.sh -DGPURX_CUDA="$cuda" "${targets[@]}" >/dev/null
    [[ -e /dev/nvidiactl ]] || export LD_LIBRARY_PATH=$PWD/build/dev/tests/fake_cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    "$python/bin/python" -m pytest -q -p no:cacheprovider tests/python "$@"
}

main "$@"
