#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run test [TIER|STEP...]`: runner/run.py in Python, which has to be there first.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v python3 >/dev/null || kernel-support/lab/packages.sh tests
exec tests/runner/run.py "$@"
