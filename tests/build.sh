#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configure the preset test and build targets of it:  build.sh [-DNAME=VALUE...] TARGET...
# With GPURX_TEST_AS_BUILT in the environment nothing is built. One at a time: test steps that need it may run side by side, and ninja does not expect that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. kernel-support/lab/lib.sh

definitions=()
while [[ ${1:-} == -D* ]]; do
    definitions+=("$1")
    shift
done
[[ ! -v GPURX_TEST_AS_BUILT ]] || exit 0
(($# > 0)) || { echo "usage: build.sh [-DNAME=VALUE...] TARGET..." >&2 && exit 2; }
lock "build$(printf '%s' "$PWD" | tr / -)"
cmake --preset test "${definitions[@]}" >/dev/null
cmake --build build/test --target "$@"
