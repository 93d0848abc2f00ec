#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Run the kernel tree's own tests on the software NIC in the lab.
#
#   run-selftests.sh [--kernel stock|debug|branch] [SUITE...]      suites: ncdevmem devmem iou-zcrx hds; all by default
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel=stock
if [[ ${1:-} == --kernel ]]; then
    (($# >= 2)) || die "--kernel needs a value"
    kernel=$2
    shift 2
fi
directory=$("$lab_dir/selftests.sh")
exec "$lab_dir/lab.sh" --kernel "$kernel" --timeout 1800 -- "$lab_dir/guest/selftests.py" "$directory" "$@"
