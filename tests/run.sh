#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run test [--quick] [STEP...]`: installs what is missing, builds, and runs every test. --quick: style, and the tests of
# one build of the library; with names, only those steps run. The steps are listed in tests/steps; tests/runner/run.py runs
# them and sums up; exit status 0 only if something ran and nothing failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

main() {
    local quick=0 argument known
    known=" $(sed '/^#/d; s/|.*//' tests/steps | xargs) "
    for argument; do
        case $argument in
            --quick) quick=1 ;;
            -*) echo "usage: ./run test [--quick] [STEP...]" >&2 && exit 2 ;;
            *) [[ $known == *" $argument "* ]] || { echo "no step '$argument'; there are:$known" >&2 && exit 2; } ;;
        esac
    done

    local groups=(build tests lint python)
    ((quick)) || groups+=(docs plot browser module kernel lab selftests trace systemd)
    kernel-support/lab/packages.sh "${groups[@]}"
    # Every preset finds it again by itself.
    cmake/cuda-toolkit.sh >/dev/null
    # So do tests; fetched here it is in no test's time. Those that miss it fail and say why.
    tests/python/environment.sh >/dev/null || true
    tests/ingest/nginx.sh >/dev/null || true
    ((quick)) || framework/docs/site/environment.sh >/dev/null || true
    exec tests/runner/run.py "$@"
}

main "$@"
