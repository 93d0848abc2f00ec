#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One boot of the lab with a part of all that receives over devmem and zcrx: the way of the demo, the cases of lab_tests with the tag
# [smoke], a server of public headers alone, gpurx-fetch, and the Python package:  smoke.sh [--kernel KERNEL]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly build=$PWD/build/test
readonly fake_cuda=$build/tests/fake_cuda gpurxd=$build/framework/tools/gpurxd/gpurxd

# in_guest PYTHON: a failure of one part does not end the others.
in_guest() {
    local status=0 file=$gpurxd transport
    for transport in devmem zcrx; do
        echo "==== demo over $transport"
        if GPURX_RECEIVE_FILE=$build/samples/receive_file/receive_file \
            samples/demo.sh --in-guest "$file" "$(sha256sum "$file" | cut -d' ' -f1)" "$transport"; then
            echo "ok - the file arrived over $transport"
        else
            echo "not ok - the file arrived over $transport"
            status=1
        fi
    done
    echo "==== lab_tests"
    "$build/tests/lab_tests" --durations yes "[smoke]" || status=1
    echo "==== lab_tests over zcrx"
    GPURX_LAB_TRANSPORT=zcrx "$build/tests/lab_tests" --durations yes "[smoke][transfer],[zcrx],[move]" || status=1
    echo "==== server"
    if "$build/tests/server" dms0; then
        echo "ok - a server of public headers alone"
    else
        echo "not ok - a server of public headers alone"
        status=1
    fi
    echo "==== gpurx-fetch"
    python3 -u tests/ingest/lab_test.py "$build/samples/gpurx-fetch/gpurx-fetch" "$gpurxd" "$fake_cuda" Devmem.test_object || status=1
    echo "==== Python"
    LD_LIBRARY_PATH=$fake_cuda "$1/bin/python" -u tests/python/in_lab.py "$gpurxd" OverDevmem.test_weights_from_a_server || status=1
    return "$status"
}

main() {
    local kernel=debian python
    [[ ${1:-} != --kernel ]] || { kernel=$2 && shift 2; }
    (($# == 0)) || { echo "usage: smoke.sh [--kernel KERNEL]" >&2 && exit 2; }
    # The guest has no network to fetch them, and may have another home.
    GPURX_TEST_NGINX=$(tests/ingest/nginx.sh)
    GPURX_TEST_PYTHON=$(tests/python/environment.sh)
    export GPURX_TEST_NGINX GPURX_TEST_PYTHON
    python=$(tests/python/run.sh --install)
    tests/build.sh lab_tests ingest_lab receive_file server
    ./run lab --kernel "$kernel" --timeout 1800 -- tests/lab/smoke.sh --in-guest "$PWD/$python"
}

if [[ ${1:-} == --in-guest ]]; then
    in_guest "$2"
else
    main "$@"
fi
