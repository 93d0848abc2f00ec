#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The site of ./run docs: it is built without a warning, has every public name, no dead link and no example that nothing
# has compiled, and looks as it should in a browser, where there is one. Results are lines of TAP.
#
#   run.sh [PICTURES]       a directory where the kinds of pages are to be kept as they look
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly site=build/docs
export PYTHONDONTWRITEBYTECODE=1
failed=0

# tell NAME CMD...
tell() {
    local name=$1
    shift
    if "$@"; then
        echo "ok - $name"
    else
        echo "not ok - $name"
        failed=1
    fi
}

main() {
    rm -rf "$site"
    tell "the site is built without a warning" ./run docs
    if ((failed)); then return 1; fi
    tell "pages are made of the sources as they should be" python3 tests/docs/sources_test.py
    # With the Python that has matplotlib, as plot.sh.
    tell "benchmarks are drawn, and what cannot be is named" /usr/bin/python3 tests/bench/plot_test.py
    # These tell by themselves.
    python3 tests/docs/names.py "$site" || failed=1
    python3 tests/docs/links.py "$site" || failed=1
    python3 tests/docs/examples.py || failed=1
    python3 tests/docs/look.py "$site" "$@" || failed=1
    return "$failed"
}

main "$@"
