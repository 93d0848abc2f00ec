#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The scripts in framework/tools/bpftrace, run in the lab's guest while a session receives:  run.sh [--kernel KERNEL]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
if [[ ${1:-} == --kernel ]]; then
    kernel=$2
fi

kernel-support/lab/packages.sh trace
tests/build.sh lab_tests
./run lab --kernel "$kernel" --timeout 560 -- tests/bpftrace/guest.py
