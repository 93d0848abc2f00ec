# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For sourcing, at the root of the repository:  prepare   makes $python a Python with DLIO and this package, and $with_s3 one with
# an S3 server.
. tests/python/layer.sh

prepare() {
    local build root raw cuda=AUTO
    build=$(tests/python/environment.sh)
    root=$(tests/dlio/environment.sh)
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    python=$PWD/build/dlio/venv/bin/python
    # shellcheck disable=SC2034
    with_s3=$build/bin/python
    layer "$root" build/dlio/venv
    raw=$(mktemp -d)
    PATH=$build/bin:$PATH "$build/bin/python" -m pip wheel --quiet --no-input --disable-pip-version-check --no-index \
        --no-deps --no-build-isolation -Ccmake.define.GPURX_WERROR=ON -Ccmake.define.GPURX_CUDA="$cuda" \
        -Ccmake.define.GPURX_STATIC_OPENSSL=ON -w "$raw" .
    "$build/bin/python" -m pip --python "$python" install --quiet --no-input --disable-pip-version-check --no-index \
        --no-deps --force-reinstall "$raw"/gpurx-*.whl
    rm -rf "$raw"
    export PYTHONPATH=$PWD/tests/dlio/stub
    # Where mpi4py finds MPI, which is not in the layer above.
    export LD_LIBRARY_PATH=$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
