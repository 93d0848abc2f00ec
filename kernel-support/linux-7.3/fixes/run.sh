#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Show what the fixes mend: on Debian's kernel as it is each defect is there, and says so in the words that README.md has; on
# the kernel 'fixes' none is.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../lab/lib.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What a selftest says where its defect is. Of rule_adds_to_context it is repro/rule_adds.py that shows it.
declare -A says=(
    [dontneed_reserved]='pages were lost'
    [dontneed_zero]='token 0 was given out'
    [control_buffer_full]='recvmsg() tried again'
    [last_channel_bound]='requested channel counts are too low for existing memory provider setting'
)

selftests_fail_on_stock() {
    local name missing=0
    "$lab_dir/run-selftests.sh" --kernel debian --tests-of fixes devmem_recv channels >"$work/stock" 2>&1 || true
    # With something in front: what fails here is no failure of this step.
    sed 's/^/stock: /' "$work/stock"
    for name in "${!says[@]}"; do
        if grep -qF -- "${says[$name]}" "$work/stock"; then
            echo "$name: fails without its fix, and says why"
        else
            echo "$name: NOT SEEN without its fix"
            missing=$((missing + 1))
        fi
    done
    return "$missing"
}

selftests_fail_on_stock
"$here/repro/run.sh" --kernel debian --all-there
"$lab_dir/run-selftests.sh" --kernel fixes devmem_recv channels
"$here/repro/run.sh" --kernel fixes
