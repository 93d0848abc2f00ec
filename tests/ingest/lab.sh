#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpurx-fetch over devmem, from nginx, in the lab:  lab.sh [--kernel KERNEL]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
[[ ${1:-} != --kernel ]] || { kernel=$2 && shift 2; }
(($# == 0)) || { echo "usage: lab.sh [--kernel KERNEL]" >&2 && exit 2; }

# The guest has no network to fetch them, and may have another home.
GPURX_TEST_NGINX=$(tests/ingest/nginx.sh)
GPURX_TEST_PYTHON=$(tests/python/environment.sh)
export GPURX_TEST_NGINX GPURX_TEST_PYTHON

tests/build.sh ingest_lab
./run lab --kernel "$kernel" --timeout 900 -- python3 -u tests/ingest/lab_test.py \
    build/test/samples/gpurx-fetch/gpurx-fetch build/test/framework/tools/gpurxd/gpurxd build/test/tests/fake_cuda
