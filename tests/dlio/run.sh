#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpurx as a storage library of DLIO, in DLIO's own benchmark, on the CPU:  run.sh [PYTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/dlio/prepare.sh

main() {
    prepare
    PYTHONPATH+=:$PWD/tests/python "$python" -m pytest -q -p no:cacheprovider -p conftest tests/dlio "$@"
}

main "$@"
