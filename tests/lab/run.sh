#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The framework's own tests against devmemsim, in the lab:
#   run.sh [--kernel KERNEL] [CATCH2-ARGUMENT...]
# GPURX_TEST_KILLS: how many receivers lab/kill.cpp kills (50), and clients lab/gpurxd_restart.cpp (8).
# GPURX_TEST_SECONDS: for how long the guest may run (2700).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
if [[ ${1:-} == --kernel ]]; then
    kernel=$2
    shift 2
fi

tests/build.sh lab_tests
./run lab --kernel "$kernel" --timeout "${GPURX_TEST_SECONDS:-2700}" -- build/test/tests/lab_tests --durations yes "$@"
