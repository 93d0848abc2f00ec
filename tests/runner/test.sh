#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The runner's own tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
for test in *_test.py; do
    python3 "$test"
done
