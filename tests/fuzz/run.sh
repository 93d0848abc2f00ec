#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run every fuzzer for a while, from its seeds in corpus/NAME and what earlier runs found:  run.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:-15}
build=build/fuzz
export build seconds

cmake --preset fuzz
cmake --build "$build" --parallel "$(nproc)" --target fuzzers headers

fuzz_one() {
    local fuzzer=$1 name=${1##*/fuzz_} found=build/fuzz-corpus log executions
    found=$found/$name
    log=$build/$name.log
    mkdir -p "$found"
    if "$fuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$found-" "$found" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
        executions=$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")
        echo "ok - $name, $executions inputs"
    else
        tail -n 60 "$log"
        echo "not ok - $name, see $log; the input is beside $found; repeat with: $fuzzer INPUT"
    fi
}
export -f fuzz_one

fuzzers=("$build"/tests/fuzz_*)
[[ -x ${fuzzers[0]} ]] || { echo "no fuzzer was built" >&2 && exit 1; }
results=$(printf '%s\n' "${fuzzers[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz_one {}')
printf '%s\n' "$results"
! grep -q '^not ok' <<<"$results"
