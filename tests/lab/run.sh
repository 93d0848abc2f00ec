#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The framework's own tests against devmemsim, in the lab:
#   run.sh [--kernel KERNEL] [--transport devmem|zcrx] [CATCH2-ARGUMENT...]
# --transport zcrx: the sessions of the tests have it, and the tests of what only devmem has are left out.
# GPURX_TEST_KILLS: how many receivers lab/kill.cpp kills (50), and clients lab/gpurxd_restart.cpp (8).
# GPURX_TEST_SECONDS: for how long the guest may run (2700).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
transport=devmem
while [[ ${1:-} == --kernel || ${1:-} == --transport ]]; do
    if [[ $1 == --kernel ]]; then kernel=$2; else transport=$2; fi
    shift 2
done
# Its tokens and control messages, gpurxd, leased queues, the texts of its errors, and the users that a doctor names.
if [[ $transport == zcrx && $# == 0 ]]; then
    set -- "~[gpurxd]~[lease]~[tokens]~[socket_odds]~[errors]~[doctor]"
    echo "lab: over zcrx, without the tests of gpurxd, leases, tokens, socket_odds, errors and doctor"
fi

tests/build.sh lab_tests
./run lab --kernel "$kernel" --timeout "${GPURX_TEST_SECONDS:-2700}" -- env GPURX_LAB_TRANSPORT="$transport" \
    build/test/tests/lab_tests --durations yes "$@"
