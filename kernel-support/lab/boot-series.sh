#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Each patch of the branch must leave a kernel that works: builds it with the first N of them, for each N behind the fixes, boots
# it, and runs upstream's tests of device memory on it, and channels of the fixes; devmem_recv needs more than this kernel's
# configuration has.
#
#   boot-series.sh [FIRST [LAST]]        patches of the branch; by default from the first behind the fixes to the last
#
# Those that change only tests or documentation are left out. Minutes a patch: what includes a header that it changes is compiled
# anew. What is built for it is deleted again. (Behind the last patch that changes the kernel, that is what others know as branch:
# it stays if it was there.)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# boot LOG: the kernel that GPURX_SERIES_PATCHES says
boot() {
    local kernel tree log=$1 status=0 had
    had=$("$lab_dir/kernel.sh" --path branch)
    [[ -e $had/complete ]] || had=''
    kernel=$("$lab_dir/kernel.sh" branch)
    tree=$("$lab_dir/kernel.sh" --source branch)
    "$lab_dir/run-selftests.sh" --kernel branch --tests-of fixes devmem channels iou-zcrx hds >"$log" 2>&1 || status=$?
    [[ $kernel == "$had" ]] || rm -rf "$kernel"
    rm -rf "$tree"
    return "$status"
}

main() {
    local -a patches fixes
    local first last number log
    # shellcheck disable=SC2086  # several names
    mapfile -t patches < <(patches_of $branch_series)
    mapfile -t fixes < <(patches_of fixes)
    first=${1:-$((${#fixes[@]} + 1))}
    last=${2:-${#patches[@]}}
    for ((number = first; number <= last; number++)); do
        [[ ${patches[number - 1]} != *-selftests-* && ${patches[number - 1]} != *-Documentation-* ]] || continue
        log=$repo_dir/build/boot-series-$number.log
        mkdir -p "${log%/*}"
        GPURX_SERIES_PATCHES=$number boot "$log" || { tail -n 40 "$log" >&2 && die "${patches[number - 1]##*/}: see $log"; }
        echo "ok - ${patches[number - 1]##*/}: $(grep -E '[0-9]+ passed' "$log" | tail -n 1)"
    done
}

main "$@"
