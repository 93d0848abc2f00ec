#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run bench [NAME]`: builds what a benchmark needs and runs it. Without a name: all of them.
# Steps are joined by && because a function called on the left of || runs without errexit.
# Exit code: 0; 3 if a bar falls short; another if a benchmark could not run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/kernel-support/lab/lib.sh"
benchmarks=(overhead tokens connect ingest)

build() {
    "$root/kernel-support/lab/packages.sh" build lab &&
        cmake --preset release -S "$root" >/dev/null &&
        cmake --build "$root/build/release" --target "$@" >&2
}

run_overhead() {
    local programs=$root/build/release/tests/bench worst=0
    build overhead_bench gpu_batch_bench || return
    python3 "$root/tests/bench/gpu_batch.py" "$programs/gpu_batch_bench" || worst=$?
    python3 "$root/tests/bench/overhead.py" "$programs/overhead_bench" "$@" || worst=$?
    return "$worst"
}

run_tokens() {
    build tokens_bench &&
        python3 "$root/tests/bench/tokens.py" "$root/build/release/tests/bench/tokens/tokens_bench" "$@"
}

# Not among those that run without a name: it measures prototypes, and has no bars.
run_rfc() {
    build rfc_bench &&
        python3 "$root/tests/bench/rfc.py" "$root/build/release/tests/bench/rfc/rfc_bench" "$@"
}

run_connect() {
    build connect_bench &&
        python3 "$root/tests/bench/connect.py" "$root/build/release/tests/bench/connect_bench" "$@"
}

# What gpurx-fetch is compared with.
require_curl() {
    command -v curl >/dev/null || {
        note "missing: curl (to compare gpurx-fetch with)" &&
            as_root apt-get -qq update >&2 &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install curl >&2
    }
}

run_ingest() {
    build ingest_bench && require_curl && "$root/tests/ingest/nginx.sh" >/dev/null &&
        python3 "$root/tests/bench/ingest.py" "$root/build/release" "$@"
}

main() {
    local names=("${1:-all}") worst=0 name
    shift || true
    [[ ${names[0]} == all ]] && names=("${benchmarks[@]}")
    for name in "${names[@]}"; do
        if ! declare -F "run_$name" >/dev/null; then
            echo "bench: no benchmark named '$name'; there are: ${benchmarks[*]} rfc" >&2
            exit 2
        fi
        "run_$name" "$@" || worst=$?
    done
    exit "$worst"
}

main "$@"
