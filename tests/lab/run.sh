#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The framework's own tests against devmemsim, in the lab:  run.sh [CATCH2-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake --preset dev >/dev/null
cmake --build build/dev --target lab_tests
./run lab --timeout 800 -- build/dev/tests/lab_tests --durations yes "$@"
