#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs what lies beside it in the bundle that `./run gpu-bundle` makes: all tests, all benchmarks, and, where these are
# installed, the Python package's tests with torch, cupy and jax, compute-sanitizer over the gather tests and comparisons
# with UCX and with loaders of weights. Begins with what the machine and the driver say of themselves, and ends with one
# page: what of docs/gpu.md was confirmed here. Writes that page as results.txt, all of it as results.json, and the logs of
# what failed to $OUT, or to the current folder. Ends within 8 minutes.
#
#   run.sh [--quick]      quick: the benchmarks in small sizes, no bar judged
#   run.sh --tests        the tests alone
#
# Exit status: 0 if nothing failed, also where there is no GPU and so nothing to do; 1 if a test or a benchmark failed,
# or a bar falls short.
set -euo pipefail

bundle=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${OUT:-$PWD}
all_seconds=470
test_seconds=60

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=()  # lines of the JSON's list
outcomes=() # PART|STATUS|NAME of each
failures=() # lines of the table
verdicts=() # on claims: VERDICT|CLAIM
passed=0 failed=0 skipped=0
quick=()

# json TEXT: as a JSON string
json() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "$(tr -s '\000-\037' ' ' <<<"$text" | sed 's/ *$//')"
}

# record PART NAME STATUS SECONDS [WHY]
record() {
    local part=$1 name=$2 status=$3 seconds=$4 why=${5:-} line
    case $status in
        passed) passed=$((passed + 1)) ;;
        failed) failed=$((failed + 1)) ;;
        skipped) skipped=$((skipped + 1)) ;;
    esac
    line="\"part\": $(json "$part"), \"name\": $(json "$name"), \"status\": \"$status\""
    results+=("{$line, \"seconds\": $seconds, \"why\": $(json "$why")}")
    outcomes+=("$part|$status|$name")
    line=$(printf '%-9s %-9s %5ss  %.120s' "$part" "$status" "$seconds" "$name${why:+: $why}")
    printf '%s\n' "$line"
    [[ $status != failed ]] || failures+=("$line")
}

# limited SECONDS CMD...: within its own time, and within what is left of all of it
limited() {
    local limit=$1 left=$((all_seconds - SECONDS))
    shift
    ((limit < left)) || limit=$left
    ((limit > 0)) || return 124
    timeout --kill-after=5 "$limit" "$@"
}

# keep NAME: the log of something that failed
keep() {
    mkdir -p "$out"
    cp "$work/log" "$out/$1.log"
    tail -n 25 "$work/log" | sed 's/^/    /'
}

# ---- what there is ----

# Nothing of it is judged.
show_machine() {
    {
        uname -sr
        head -n 1 /proc/driver/nvidia/version 2>/dev/null || echo "no NVIDIA driver is loaded"
        limited 20 "$bundle/gpu_bench" --facts || true
        python3 -m pip list 2>/dev/null | grep -E '^(torch|cupy[a-z0-9-]*|jax|numpy) ' || true
        if command -v nvidia-smi >/dev/null; then
            limited 20 nvidia-smi topo -m || true
        fi
    } 2>&1 | tee "$work/facts"
    echo
}

# ---- tests ----

# Each in a process of its own: after an error of the GPU, none of the process's calls works any more.
run_tests() {
    local name number=0
    [[ ! -e $bundle/trace.txt ]] || export GPURX_TRACE=$bundle/trace.txt
    while IFS= read -r name; do
        number=$((number + 1))
        run_test "$name" "$number"
    done < <("$bundle/gpu_tests" --list-tests --verbosity quiet)
    ((number > 0)) || record tests "gpu_tests" failed 0 "it names no test"
}

# count ATTRIBUTE: of the test suite in the JUnit file
count() {
    sed -n "s/.*<testsuite .*$1=\"\([0-9]*\)\".*/\1/p" "$work/junit" 2>/dev/null | head -n 1
}

run_test() {
    local name=$1 start=$SECONDS status=0 why='' escaped
    # These mean something in Catch2's test specifications.
    escaped=${name//\\/\\\\}
    escaped=${escaped//,/\\,}
    escaped=${escaped//\[/\\[}
    escaped=${escaped//\"/\\\"}
    rm -f "$work/junit"
    limited "$test_seconds" "$bundle/gpu_tests" "$escaped" --reporter "junit::out=$work/junit" --reporter console \
        >"$work/log" 2>&1 || status=$?
    if ((status == 124 || status == 137)); then
        why="not done in time"
    elif [[ $(count errors) != 0 || $(count failures) != 0 || ($status != 0 && $status != 4) ]]; then
        why="status $status"
    elif ((status == 4)); then
        record tests "$name" skipped $((SECONDS - start)) "$(sed -n 's/^ *\(no GPU .*\)/\1/p' "$work/log" | head -n 1)"
        return
    fi
    if [[ -n $why ]]; then
        record tests "$name" failed $((SECONDS - start)) "$why"
        keep "test-$2"
        return
    fi
    record tests "$name" passed $((SECONDS - start))
}

# ---- Python ----

# The package beside this file, by the python3 that there is, with what of torch, cupy and jax that has.
run_python() {
    local start=$SECONDS status=0 line name=''
    if ! python3 -c 'import numpy, pytest, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        record python "tensors of a GPU" skipped 0 "there is no python3 of 3.10 or later with pytest and numpy"
        return
    fi
    # jax would take most of the GPU's memory for itself.
    COLUMNS=200 PYTHONPATH=$bundle/python${PYTHONPATH:+:$PYTHONPATH} XLA_PYTHON_CLIENT_PREALLOCATE=false \
        limited 120 python3 -B -m pytest -v -p no:cacheprovider "$bundle/python-tests/test_cuda.py" \
        "$bundle/python-tests/test_on_gpu.py" >"$work/log" 2>&1 || status=$?
    start=$((SECONDS - start))
    while IFS= read -r line; do
        name=${line%% *}
        case $line in
            *' PASSED'*) record python "${name#*::}" passed 0 ;;
            *' SKIPPED'*) record python "${name#*::}" skipped 0 "$(sed -n 's/^[^(]*SKIPPED (\([^)]*\).*/\1/p' <<<"$line")" ;;
            *) record python "${name#*::}" failed 0 ;;
        esac
    done < <(grep -E '::.* (PASSED|FAILED|ERROR|SKIPPED)' "$work/log" | grep -v '^\(FAILED\|ERROR\|SKIPPED\) ')
    if [[ -z $name ]] || ((status != 0)); then
        record python "pytest" failed "$start" "status $status"
        keep python
    fi
}

# ---- benchmarks ----

run_benchmarks() {
    local start=$SECONDS status=0 trace=()
    [[ ! -e $bundle/trace.txt ]] || trace=(--trace "$bundle/trace.txt")
    echo
    limited 200 "$bundle/gpu_bench" "${quick[@]}" "${trace[@]}" --json "$work/bench.json" 2>&1 | tee "$work/log" ||
        status=$?
    echo
    start=$((SECONDS - start))
    if ((status == 0)) && grep -q '"what": "no GPU"' "$work/bench.json"; then
        record bench gpu_bench skipped "$start" "$(sed -n 's/^skipped: //p' "$work/log" | head -n 1)"
    elif ((status == 0)); then
        record bench gpu_bench passed "$start"
    elif ((status == 3)); then
        record bench gpu_bench failed "$start" "$(grep -c 'FALLS SHORT' "$work/log") bars fall short"
        grep 'FALLS SHORT' "$work/log" | sed 's/^/    /'
    else
        record bench gpu_bench failed "$start" "status $status"
        keep gpu_bench
    fi
}

# median RECEIVER FIGURE: of gpu_bench's table, with a sender as fast as it can be
median() {
    sed -n "s/.*\"as fast as it can\", \"receiver\": \"$1\".*\"$2\": \([0-9.e+-]*\),.*/\1/p" "$work/bench.json" |
        head -n 1
}

# ucx_round MESSAGES: of 1 MiB each, into the GPU's memory. Sets ucx_rate, in GB/s, and ucx_cpu, the receiving process's
# CPU seconds.
ucx_round() {
    local port=$((20000 + RANDOM % 20000)) options server status=0
    options=(-p "$port" -t tag_bw -m "${GPURX_UCX_MEMORY:-host,cuda}" -s 1048576 -n "$1" -w 100)
    {
        TIMEFORMAT='%U %S'
        time limited 40 ucx_perftest "${options[@]}" >"$work/ucx-server" 2>&1
    } 2>"$work/ucx-cpu" &
    server=$!
    sleep 1
    limited 40 ucx_perftest 127.0.0.1 "${options[@]}" >"$work/log" 2>&1 || status=$?
    ((status == 0)) || kill "$server" 2>/dev/null || true
    wait "$server" || true
    # The last line: messages, then typical, average and overall time, average and overall MB/s (of 2^20), and rates.
    ucx_rate=$(awk '/^Final:/ {printf "%.3f", $7 * 1048576 / 1e9}' "$work/log")
    ucx_cpu=$(tail -n 1 "$work/ucx-cpu" | awk '{print $1 + $2}')
    ((status == 0)) && [[ -n $ucx_rate ]]
}

run_ucx() {
    local start=$SECONDS few=512 many=4608 before cpu name
    if ! command -v ucx_perftest >/dev/null; then
        record ucx "UCX over TCP into the GPU's memory" skipped 0 "ucx_perftest is not installed"
        return
    fi
    export UCX_TLS=tcp,cuda_copy UCX_NET_DEVICES=lo
    # What the process needs to start is in both rounds, and so in neither figure.
    if ! ucx_round "$few" || ! { before=$ucx_cpu && ucx_round "$many"; }; then
        record ucx "UCX over TCP into the GPU's memory" skipped $((SECONDS - start)) \
            "$(grep -m 1 -iE 'error|fail|unsupp|invalid' "$work/log")"
        return
    fi
    cpu=$(awk "BEGIN {printf \"%.3f\", ($ucx_cpu - $before) / (($many - $few) / 1024)}")
    for name in 'async_receive, release_after' 'async_read into a tensor'; do
        compare_with_ucx "$name" "$ucx_rate" "$cpu" $((SECONDS - start))
    done
}

# compare_with_ucx RECEIVER RATE CPU SECONDS
compare_with_ucx() {
    local name=$1 rate=$2 cpu=$3 ours_rate ours_cpu text status=passed
    ours_rate=$(median "$name" gb_per_s)
    ours_cpu=$(median "$name" process_cpu_s_per_gib)
    text="$ours_rate GB/s and $ours_cpu CPU s/GiB; UCX: $rate and $cpu"
    if ((${#quick[@]} == 0)); then
        awk "BEGIN {exit !(${ours_rate:-0} >= $rate && ${ours_cpu:-1e9} <= $cpu)}" || status=failed
    fi
    record ucx "$name" "$status" "$4" "$text"
}

# ---- loading weights ----

run_load() {
    local start=$SECONDS status=0 why
    if ! command -v python3 >/dev/null; then
        record load "weights from a server" skipped 0 "python3 is not installed"
        return
    fi
    limited 150 python3 "$bundle/load.py" "$bundle" "${quick[@]}" --json "$work/load.json" 2>&1 | tee "$work/log" ||
        status=$?
    start=$((SECONDS - start))
    why=$(grep -E "^gpurx-fetch  " "$work/log" || true)
    case $status in
        0) record load "weights from a server" passed "$start" "$why" ;;
        3) record load "weights from a server" failed "$start" "$(grep -c 'FALLS SHORT' "$work/log") bars fall short" ;;
        *)
            record load "weights from a server" failed "$start" "status $status"
            keep load
            ;;
    esac
}

# ---- compute-sanitizer ----

run_sanitizer() {
    local tool=$1 start=$SECONDS status=0 options=() sanitizer
    # What the driver answers to a question is no error of a kernel.
    [[ $tool != memcheck ]] || options=(--report-api-errors no)
    sanitizer=$(PATH=$PATH:/usr/local/cuda/bin type -P compute-sanitizer) || {
        record sanitizer "$tool" skipped 0 "compute-sanitizer is not installed"
        return
    }
    # Named after their file: gather.cpp.
    # Under its tools work is not what runs side by side: a stream that a test holds may hold up all.
    limited 90 "$sanitizer" --tool "$tool" --error-exitcode 99 "${options[@]}" \
        "$bundle/gpu_tests" --filenames-as-tags '[#gather]~[hold]' >"$work/log" 2>&1 || status=$?
    if ((status == 0)); then
        record sanitizer "$tool" passed $((SECONDS - start)) "$(grep 'SUMMARY: ' "$work/log" | tail -n 1)"
        return
    fi
    # Some virtual machines do not let it at the GPU.
    if grep -q 'Device not supported' "$work/log"; then
        record sanitizer "$tool" skipped $((SECONDS - start)) "compute-sanitizer says: Device not supported"
        return
    fi
    case $status in
        99) record sanitizer "$tool" failed $((SECONDS - start)) "it reports errors" ;;
        124 | 137) record sanitizer "$tool" failed $((SECONDS - start)) "not done in time" ;;
        *) record sanitizer "$tool" failed $((SECONDS - start)) "status $status" ;;
    esac
    keep "sanitizer-$tool"
}

# ---- all ----

has_gpu() { [[ -s $work/bench.json ]] && grep -q '"device": ' "$work/bench.json"; }

run_extras() {
    local tool
    if ! has_gpu; then
        record sanitizer "memcheck, racecheck" skipped 0 "no GPU"
        record ucx "UCX over TCP into the GPU's memory" skipped 0 "no GPU"
        record load "weights from a server" skipped 0 "no GPU"
        return
    fi
    run_load
    for tool in memcheck racecheck; do
        run_sanitizer "$tool"
    done
    run_ucx
}

# verdict PART PREFIX: confirmed, not confirmed, or not tried
verdict() {
    local outcome part status name found='not tried'
    for outcome in "${outcomes[@]}"; do
        IFS='|' read -r part status name <<<"$outcome"
        [[ $part == "$1" && $name == "$2"* ]] || continue
        case $status in
            failed) found='NOT CONFIRMED' && break ;;
            # What was only tried in small sizes has not been judged.
            passed) [[ $part =~ ^(bench|load)$ && ${#quick[@]} -gt 0 ]] || found='confirmed' ;;
        esac
    done
    printf '%s' "$found"
}

# Of several lines the worst counts.
judge_claims() {
    local claim part prefix said
    local -A of=()
    local -a order=()
    while IFS='|' read -r claim part prefix; do
        [[ -n $claim && $claim != \#* ]] || continue
        claim=$(trim "$claim") part=$(trim "$part") prefix=$(trim "$prefix")
        said=$(verdict "$part" "$prefix")
        [[ -v of[$claim] ]] || order+=("$claim")
        if [[ ! -v of[$claim] || $said == 'NOT CONFIRMED' ]] ||
            [[ ${of[$claim]} == confirmed && $said == 'not tried' ]]; then
            of[$claim]=$said
        fi
    done <"$bundle/claims.txt"
    for claim in "${order[@]}"; do
        verdicts+=("${of[$claim]}|$claim")
    done
}

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }

print_page() {
    local one
    echo 'claims of docs/gpu.md, on this machine:'
    for one in "${verdicts[@]}"; do
        printf '  %-13s  %s\n' "${one%%|*}" "${one#*|}"
    done
    printf '%d passed, %d failed, %d skipped in %d s\n' "$passed" "$failed" "$skipped" "$SECONDS"
}

write_results() {
    local separator='' line
    mkdir -p "$out"
    {
        printf '{\n"passed": %d,\n"failed": %d,\n"skipped": %d,\n' "$passed" "$failed" "$skipped"
        printf '"seconds": %d,\n"results": [' "$SECONDS"
        for line in "${results[@]}"; do
            printf '%s\n  %s' "$separator" "$line"
            separator=,
        done
        printf '\n],\n"claims": ['
        separator=''
        for line in "${verdicts[@]}"; do
            printf '%s\n  {"claim": %s, "verdict": %s}' "$separator" "$(json "${line#*|}")" "$(json "${line%%|*}")"
            separator=,
        done
        printf '\n],\n"facts": %s,\n"benchmarks": ' "$(json "$(cat "$work/facts" 2>/dev/null)")"
        if [[ -s $work/bench.json ]]; then cat "$work/bench.json"; else echo null; fi
        printf ',\n"load": '
        if [[ -s $work/load.json ]]; then cat "$work/load.json"; else echo null; fi
        printf '}\n'
    } >"$out/results.json"
}

# Again at the end, where they are seen.
print_failures() {
    ((${#failures[@]} == 0)) || printf '%s\n' '' 'failed:' "${failures[@]}"
}

main() {
    local tests_alone=0
    case $#${1:-} in
        0) ;;
        1--quick) quick=(--quick) ;;
        1--tests) tests_alone=1 ;;
        *) echo 'usage: run.sh [--quick | --tests]' >&2 && exit 2 ;;
    esac
    show_machine
    run_tests
    run_python
    if ((!tests_alone)); then
        run_benchmarks
        run_extras
    fi
    judge_claims
    write_results
    print_failures
    echo
    {
        cat "$work/facts" 2>/dev/null || true
        print_page
    } >"$out/results.txt"
    print_page
    echo "written: $out/results.txt and $out/results.json"
    ((failed == 0))
}

main "$@"
