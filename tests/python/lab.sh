#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package over devmem, in the lab:  lab.sh [--kernel KERNEL]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
[[ ${1:-} != --kernel ]] || { kernel=$2 && shift 2; }
(($# == 0)) || { echo "usage: lab.sh [--kernel KERNEL]" >&2 && exit 2; }

# Another run would install it anew while a guest has it open.
. kernel-support/lab/lib.sh
lock "python-lab$(printf '%s' "$PWD" | tr / -)"

# Optimised: a test has a limit of memory, in which the code counts.
python=$(tests/python/run.sh --wheel --install)
tests/build.sh gpurxd >/dev/null
./run lab --kernel "$kernel" --timeout 600 -- env "LD_LIBRARY_PATH=$PWD/build/test/tests/fake_cuda" \
    "$PWD/$python/bin/python" -u tests/python/in_lab.py build/test/framework/tools/gpurxd/gpurxd
