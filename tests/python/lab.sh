#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package over a transport, in the lab:  lab.sh [--kernel KERNEL] [--transport devmem|zcrx]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
transport=devmem
while [[ ${1:-} == --kernel || ${1:-} == --transport ]]; do
    if [[ $1 == --kernel ]]; then kernel=$2; else transport=$2; fi
    shift 2
done
(($# == 0)) || { echo "usage: lab.sh [--kernel KERNEL] [--transport devmem|zcrx]" >&2 && exit 2; }

# Another run would install it anew while a guest has it open.
. kernel-support/lab/lib.sh
lock "python-lab$(printf '%s' "$PWD" | tr / -)"

# Optimised: a test has a limit of memory, in which the code counts.
python=$(tests/python/run.sh --wheel --install)
tests/build.sh gpurxd >/dev/null
./run lab --kernel "$kernel" --timeout 600 -- env GPURX_LAB_TRANSPORT="$transport" "LD_LIBRARY_PATH=$PWD/build/test/tests/fake_cuda" \
    "$PWD/$python/bin/python" -u tests/python/in_lab.py build/test/framework/tools/gpurxd/gpurxd
