#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run bench [NAME]`: builds what a benchmark needs and runs it. Without a name: all of them.
# Steps are joined by && because a function called on the left of || runs without errexit.
# Exit code: 0; 3 if a bar falls short; another if a benchmark could not run.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
. "$root/kernel-support/lab/lib.sh"
. "$root/tests/python/layer.sh"
benchmarks=(overhead including gather give-back copy tokens connect tap perf ingest)

build() {
    "$root/kernel-support/lab/packages.sh" build tests lab &&
        cmake --preset release -DGPURX_BUILD_TESTS=ON -S "$root" >/dev/null &&
        cmake --build "$root/build/release" --target "$@" >&2
}

run_overhead() {
    local programs=$root/build/release/tests/bench worst=0
    build overhead_bench gpu_batch_bench || return
    python3 "$root/tests/bench/gpu_batch.py" "$programs/gpu_batch_bench" || worst=$?
    python3 "$root/tests/bench/overhead.py" "$programs/overhead_bench" "$@" || worst=$?
    return "$worst"
}

# Counted, without a GPU.
run_gather() {
    build gather_bench && python3 "$root/tests/bench/gather.py" "$root/build/release"
}

# On the fake driver, with real threads.
run_give-back() {
    build give_back_bench && python3 "$root/tests/bench/give_back.py" "$root/build/release"
}

# On the fake driver, over loopback.
run_copy() {
    build copy_bench && python3 "$root/tests/bench/gpu_copy.py" "$root/build/release/tests/bench/copy_bench" "$@"
}

run_tokens() {
    build tokens_bench &&
        python3 "$root/tests/bench/tokens.py" "$root/build/release/tests/bench/tokens/tokens_bench" "$@"
}

run_perf() {
    build gpurx-perf &&
        python3 "$root/tests/bench/perf.py" "$root/build/release/framework/tools/perf/gpurx-perf" "$@"
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

# Of the compiler.
run_including() {
    "$root/kernel-support/lab/packages.sh" build && python3 "$root/tests/bench/including.py" "$@"
}

run_tap() {
    local release=$root/build/release
    build tap_bench &&
        python3 "$root/tests/bench/tap.py" "$release/tests/bench/tap_bench" \
            "$release/framework/tools/doctor/gpurx-doctor" "$@"
}

# bench_python BUILD ROOT: an environment with this tree's package, above ROOT.
bench_python() {
    local python=build/bench/python cuda=AUTO
    [[ -z $("$root/cmake/cuda-toolkit.sh" --path) ]] || cuda=ON
    # The options of ./run test ml and python, with which it is built in the same place.
    (cd "$root" && mkdir -p build/bench && layer "$2" "$python" &&
        install_gpurx "$1" "$2" "$python" GPURX_WERROR=ON GPURX_CUDA="$cuda" >&2) &&
        printf '%s\n' "$root/$python/bin/python"
}

# Above the environment with torch, if `./run test ml` has made it: two of those that gpurx is compared with need it.
run_ingest() {
    local builder below python
    build ingest_bench && "$lab_dir/packages.sh" downloaders && "$root/tests/ingest/nginx.sh" >/dev/null &&
        builder=$("$root/tests/python/environment.sh") && below=$("$root/tests/ml/environment.sh" --path) &&
        below=${below:-$builder} && python=$(bench_python "$builder" "$below") &&
        python3 "$root/tests/bench/ingest.py" "$root/build/release" "$python" "$below" "$@"
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
        GPURX_BENCH="./run bench $name${*:+ $*}" "run_$name" "$@" || worst=$?
    done
    exit "$worst"
}

main "$@"
