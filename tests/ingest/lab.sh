#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpurx-fetch over a transport, from nginx, in the lab:  lab.sh [--kernel KERNEL] [--transport devmem|zcrx]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=debian
transport=devmem
while [[ ${1:-} == --kernel || ${1:-} == --transport ]]; do
    if [[ $1 == --kernel ]]; then kernel=$2; else transport=$2; fi
    shift 2
done
(($# == 0)) || { echo "usage: lab.sh [--kernel KERNEL] [--transport devmem|zcrx]" >&2 && exit 2; }

# The guest has no network to fetch them, and may have another home.
GPURX_TEST_NGINX=$(tests/ingest/nginx.sh)
GPURX_TEST_PYTHON=$(tests/python/environment.sh)
export GPURX_TEST_NGINX GPURX_TEST_PYTHON

tests/build.sh ingest_lab
./run lab --kernel "$kernel" --timeout 900 -- env GPURX_LAB_TRANSPORT="$transport" python3 -u tests/ingest/lab_test.py \
    build/test/samples/gpurx-fetch/gpurx-fetch build/test/framework/tools/gpurxd/gpurxd build/test/tests/fake_cuda
