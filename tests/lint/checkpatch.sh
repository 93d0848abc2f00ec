#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernel tree's own checkpatch over the software NIC. Builds the lab's kernel first if it is not there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel=$(kernel-support/lab/kernel.sh stock)
mapfile -d '' -t sources < <(git ls-files -z -- 'kernel-support/devmemsim/*.[ch]')
((${#sources[@]} > 0)) || { echo "no source of devmemsim in this tree" >&2 && exit 1; }
"$kernel/build/source/scripts/checkpatch.pl" --strict --no-tree --terse --show-types --file "${sources[@]}"
