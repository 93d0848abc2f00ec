#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The framework's own tests against devmemsim, in the lab:
#   run.sh [--kernel KERNEL] [--tokens automatic|array|xarray] [CATCH2-ARGUMENT...]
# GPURX_TEST_KILLS: how many receivers lab/kill.cpp kills (50).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
export GPURX_TEST_TOKENS=automatic
while (($# >= 2)); do
    case $1 in
        --kernel) kernel=$2 ;;
        --tokens) GPURX_TEST_TOKENS=$2 ;;
        *) break ;;
    esac
    shift 2
done

tests/build.sh lab_tests
./run lab --kernel "$kernel" --timeout 800 -- build/dev/tests/lab_tests --durations yes "$@"
