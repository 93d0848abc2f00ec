#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run test [--quick] [STEP...]`: installs what is missing, builds, and runs every test. --quick: style, and the tests of
# one build of the library; with names, only those steps run. Ends in a summary; exit status 0 only if something ran and nothing failed.
# Each step's output goes to build/test-logs/STEP.log. A step 'once' that has passed is skipped, unless it is named, until
# something changes in kernel-support/ (documents aside, and the NIC's own tests where they are not run), in the kernels, in
# the packages that those steps use, or in the rows below of such steps. None of them begins later than 40 minutes after the
# run did: those that are left come with the next runs, or by name. How long each step took is kept in the cache; one that
# became a third slower is named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. kernel-support/lab/lib.sh

# Step | limit in minutes, for a machine that is not slower than most | check: passes as a whole; tests, once: counted from its log (runner/tally.py) | command
quick_steps='
format       |  2 | check | tests/lint/format.sh
shell        |  2 | check | tests/lint/shell.sh
tree         |  2 | check | tests/lint/tree.sh
runner       |  1 | check | python3 tests/runner/tally_test.py && python3 tests/runner/times_test.py
dev          | 20 | tests | tests/build-and-test.sh dev --label-exclude package
'
host_steps='
package      | 10 | tests | tests/build-and-test.sh dev --label-regex package
tidy         | 15 | check | tests/lint/tidy.py build/dev
asan         | 20 | tests | tests/build-and-test.sh asan --label-exclude package
tsan         | 20 | tests | tests/build-and-test.sh tsan --label-exclude package
fuzz         | 15 | tests | tests/fuzz/run.sh 15
python       | 20 | tests | tests/python/run.sh
tidy-python  | 15 | check | tests/lint/tidy.py build/python/cp* framework/python
gpu-bundle   | 15 | check | tests/gpu/bundle_test.sh
'
lab_steps='
debug        | 45 | check | kernel-support/lab/kernel.sh debug
branch       | 45 | check | kernel-support/lab/kernel.sh branch
checkpatch   |  5 | check | tests/lint/checkpatch.sh
series       | 20 | check | tests/lint/series.sh
lab          | 15 | once  | kernel-support/lab/selfcheck.sh
nic          | 15 | once  | kernel-support/devmemsim/tests/run.sh functional
framework    | 20 | tests | tests/lab/run.sh
fw-xarray    | 20 | tests | GPURX_TEST_KILLS=15 tests/lab/run.sh --kernel branch --tokens xarray
fw-array     | 20 | tests | GPURX_TEST_KILLS=15 tests/lab/run.sh --kernel branch --tokens array
ingest       | 20 | tests | tests/ingest/lab.sh
python-lab   | 10 | tests | tests/python/lab.sh
ing-branch   | 20 | tests | tests/ingest/lab.sh --kernel branch
demo         | 10 | check | ./run demo
samples      | 15 | tests | python3 tests/samples/readme_test.py --lab
fw-7.2       | 20 | once  | tests/lab/run.sh --kernel debian-7.2
ingest-7.2   | 20 | once  | tests/ingest/lab.sh --kernel debian-7.2
python-7.2   | 10 | once  | tests/python/lab.sh --kernel debian-7.2
fw-next      | 20 | once  | tests/lab/run.sh --kernel debian-experimental
selftests    | 30 | once  | kernel-support/lab/run-selftests.sh memory control
traffic      | 45 | once  | kernel-support/lab/run-selftests.sh traffic
tokens       | 30 | once  | kernel-support/lab/run-selftests.sh --kernel branch memory tokens
tokens-debug | 60 | once  | kernel-support/lab/run-selftests.sh --kernel debug devmem_tokens_races
nic-stress   | 40 | once  | kernel-support/devmemsim/tests/run.sh stress --rounds 25
'

logs=build/test-logs
summary=() failed_logs=() times=()
passed=0 failed=0 skipped=0
running=

# seconds -> m:ss
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

# watch PID NAME LOG: until PID ends, show how long the step has been running; without a terminal, once a minute.
watch() {
    local pid=$1 name=$2 log=$3 start=$SECONDS shown=0 elapsed
    while kill -0 "$pid" 2>/dev/null; do
        elapsed=$((SECONDS - start))
        if [[ -t 1 ]]; then
            printf '\r%-12s %6s  %.60s\e[K' "$name" "$(clock "$elapsed")" "$(tail -n 1 "$log" | tr -cd '[:print:]')"
        elif ((elapsed - shown >= 60)); then
            shown=$elapsed
            printf '%-12s %6s  %.100s\n' "$name" "$(clock "$elapsed")" "$(tail -n 1 "$log" | tr -cd '[:print:]')"
        fi
        sleep 0.3
    done
    [[ ! -t 1 ]] || printf '\r\e[K'
}

# once_inputs NAME: what the step 'once' of this name depends on, as a hash, once the kernels are there; empty where that
# cannot be told: outside git, and with a kernel source of the user's own, which may change under the same name.
once_inputs() {
    local files kernels kernel apart=(':!kernel-support/devmemsim/tests')
    [[ $1 != nic* ]] || apart=()
    [[ -z ${GPURX_KERNEL_SOURCE:-} ]] || return 0
    files=$(git ls-files -z --cached --others --exclude-standard -- kernel-support ':!*.md' "${apart[@]}" tests/runner |
        xargs -0 sha256sum) || return 0
    kernels=$(for kernel in debian debian-7.2 debian-experimental debug branch; do
        kernel-support/lab/kernel.sh --path "$kernel" || exit
    done) || return 0
    {
        printf '%s\n' "$files" "$kernels"
        grep '| once  |' <<<"$quick_steps$host_steps$lab_steps"
        kernel-support/lab/packages.sh --versions module kernel lab selftests
        env | sed -n '/^GPURX_/p' | sort
    } | sha256_of_text | cut -c1-16
}

# count_skipped NAME NOW WHY: NOW is said at once, WHY in the summary.
count_skipped() {
    skipped=$((skipped + 1))
    summary+=("$(printf '%-12s %7d %7d %8d %8s' "$1" 0 0 1 -)" "    skipped: $3")
    printf '%-12s %s\n' "$1" "$2"
}

# skip_once NAME STAMP: count the step as skipped if it has left its STAMP.
skip_once() {
    [[ -e $2 ]] && ((${#wanted[@]} == 0)) || return
    count_skipped "$1" "$(<"$2"), nothing has changed for it" \
        "$(<"$2"), and kernel-support/ is as it was then; ./run test $1 runs it again"
}

# times_slower: how many times slower than most this machine is now: a loop that takes 0.2 s on a core of 2022 with
# nothing else to do. At least 1.
times_slower() {
    local start=${EPOCHREALTIME/./} i times
    for ((i = 0; i < 100000; i++)); do :; done
    times=$(((${EPOCHREALTIME/./} - start + 199999) / 200000))
    printf '%d' $((times > 1 ? times : 1))
}

# On a machine that runs this for the first time all that is 'once' takes longer than the rest.
last_once_start=$((40 * 60))

# skip_late NAME: count a step 'once' as skipped if it comes too late in this run.
skip_late() {
    ((${#wanted[@]} == 0 && SECONDS > last_once_start * $(times_slower))) || return
    count_skipped "$1" "left for the next run" \
        "this run has lasted for $(clock "$SECONDS"); it comes with the next one, or with ./run test $1"
}

run_step() {
    local name=$1 limit=$2 kind=$3 command=$4 log=$logs/$1.log start=$SECONDS status=0 tally p f s inputs stamp=
    if [[ $kind == once ]] && inputs=$(once_inputs "$name" </dev/null) && [[ -n $inputs ]]; then
        stamp=$cache_dir/passed/$name-$inputs
        ! skip_once "$name" "$stamp" || return 0
    fi
    [[ $kind != once ]] || ! skip_late "$name" || return 0
    printf '%-12s %s\n' "$name" "$command"
    limit=$((limit * $(times_slower)))
    timeout --kill-after=10 "${limit}m" bash -c "$command" >"$log" 2>&1 </dev/null &
    running=$!
    watch "$running" "$name" "$log"
    wait "$running" || status=$?
    running=
    ((status != 124)) || printf '\nended after its limit of %s minutes\n' "$limit" >>"$log"

    tally=$(tests/runner/tally.py "${kind/once/tests}" "$status" "$log")
    read -r p f s <<<"${tally%%$'\n'*}"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    summary+=("$(printf '%-12s %7d %7d %8d %8s' "$name" "$p" "$f" "$s" "$(clock $((SECONDS - start)))")")
    while read -r line; do
        summary+=("    ${line/#fail /failed: }")
    done < <(tail -n +2 <<<"$tally" | sed 's/^skip /skipped: /')
    times+=("$name=$((SECONDS - start))")
    printf '%-12s %6s  %d passed, %d failed, %d skipped\n' '' "$(clock $((SECONDS - start)))" "$p" "$f" "$s"
    if ((f == 0)) && [[ -n $stamp ]]; then
        mkdir -p "${stamp%/*}"
        printf '%d passed on %s' "$p" "$(date '+%F %H:%M')" >"$stamp"
    fi
    if ((f > 0)); then
        failed_logs+=("$log")
        printf -- '---- the end of %s ----\n' "$log"
        tail -n 40 "$log"
        printf -- '---- all of it: %s ----\n' "$log"
    fi
}

interrupted() {
    [[ -z $running ]] || kill -TERM "$running" 2>/dev/null || true
    printf '\ninterrupted\n'
    exit 130
}

run_table() {
    local table=$1 name limit kind command
    while IFS='|' read -r name limit kind command; do
        [[ -n $name ]] || continue
        name=${name// /}
        ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $name "* ]] || continue
        run_step "$name" "${limit// /}" "${kind// /}" "${command# }"
    done <<<"$table"
}

report() {
    printf '\n%-12s %7s %7s %8s %8s\n' step passed failed skipped time
    printf '%s\n' "${summary[@]}"
    ((${#times[@]} == 0)) || tests/runner/times.py "$cache_dir/test-times.json" "${times[@]}"
    ((${#failed_logs[@]} == 0)) || printf '\nlogs of what failed: %s\n' "${failed_logs[*]}"
    printf '\nin %s\n%d passed, %d failed, %d skipped\n' "$(clock "$SECONDS")" "$passed" "$failed" "$skipped"
    ((failed == 0 && passed > 0))
}

main() {
    local quick=0 argument known
    wanted=()
    for argument; do
        case $argument in
            --quick) quick=1 ;;
            -*) echo "usage: ./run test [--quick] [STEP...]" >&2 && exit 2 ;;
            *) wanted+=("$argument") ;;
        esac
    done
    known=" $(cut -d'|' -f1 <<<"$quick_steps$host_steps$lab_steps" | xargs) "
    for argument in "${wanted[@]}"; do
        [[ $known == *" $argument "* ]] || { echo "no step '$argument'; there are:$known" >&2 && exit 2; }
    done

    trap interrupted INT TERM
    mkdir -p "$logs"
    local groups=(build tests lint python)
    ((quick)) || groups+=(module kernel lab selftests)
    kernel-support/lab/packages.sh "${groups[@]}"
    # Every preset finds it again by itself.
    cmake/cuda-toolkit.sh >/dev/null
    # So do tests; fetched here it is in no test's time. Those that miss it fail and say why.
    tests/python/environment.sh >/dev/null || true
    tests/ingest/nginx.sh >/dev/null || true
    run_table "$quick_steps"
    if ((!quick)); then
        run_table "$host_steps"
        run_table "$lab_steps"
    fi
    report
}

main "$@"
