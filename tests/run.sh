#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run test [TIER|STEP...]`: installs what is missing, builds, and runs tests. tests/steps lists the steps and their tiers;
# tests/runner/run.py runs them and sums up. The exit status is 0 only if something ran and nothing failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage='usage: ./run test [TIER|STEP...]

  quick                          style, and the unit tests of what changed since they were green
  (nothing), default             style, every test of one build, the Python package, and one boot of the lab
  changed [--minutes N] [--again]
                                 all other steps whose inputs differ from those of their last green run; within N minutes;
                                 and one of the rest by chance
  full                           all steps; hours
  STEP...                        these steps
  flaky N [STEP...]              N runs of what is built, every second one beside a busy loop on each core
  status                         each step: whether it is green for the tree as it is, when it was, and how long it took
  record                         keep what was green here in tests/record'

# groups_for WORD: the groups of packages that a tier, or steps by name, need before they begin
groups_for() {
    case $1 in
        quick) echo build tests lint ;;
        default) echo build tests lint ;;
        *) echo build tests lint python docs plot browser module kernel lab selftests trace systemd ;;
    esac
}

main() {
    local word=${1:-default} known groups
    known=" $(sed '/^[#@]/d; s/ *|.*//' tests/steps | xargs) "
    case $word in
        quick | default | full)
            (($# <= 1)) || { printf '%s\n' "$usage" >&2 && exit 2; }
            ;;
        status | record) exec tests/runner/run.py "$@" ;;
        changed | flaky) ;;
        -h | --help) printf '%s\n' "$usage" && exit ;;
        -*) printf '%s\n' "$usage" >&2 && exit 2 ;;
        *)
            for word; do
                [[ $known == *" $word "* ]] || { echo "error: no step '$word'; there are:$known" >&2 && exit 2; }
            done
            ;;
    esac

    read -ra groups < <(groups_for "$word")
    kernel-support/lab/packages.sh "${groups[@]}"
    # Every preset finds it again by itself.
    cmake/cuda-toolkit.sh >/dev/null
    mkdir -p build/test-logs
    # Beside the compiler. A step that comes to need a part of it waits for it, or fetches it and says why that fails.
    [[ $word == quick ]] || tests/fetch.sh >build/test-logs/fetch.log 2>&1 &
    exec tests/runner/run.py "$@"
}

main "$@"
