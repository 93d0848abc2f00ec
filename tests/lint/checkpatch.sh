#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernel tree's own checkpatch over the software NIC, and over the programs of the reports.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

source=$(kernel-support/lab/kernel.sh --source debian)
mapfile -d '' -t sources < <(git ls-files -z -- 'kernel-support/devmemsim/*.[ch]' 'kernel-support/linux-7.3/reports/*.[ch]')
((${#sources[@]} > 0)) || { echo "no source of devmemsim in this tree" >&2 && exit 1; }
"$source/scripts/checkpatch.pl" --strict --no-tree --terse --show-types --file "${sources[@]}"
