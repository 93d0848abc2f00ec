#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Figures of gpurx and s3dlio as readers of DLIO, side by side on this machine:  compare.sh [ROUNDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. tests/dlio/prepare.sh

main() {
    prepare
    "$python" tests/dlio/compare.py "$@"
}

main "$@"
