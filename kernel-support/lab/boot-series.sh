#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Each patch of the tokens must leave a kernel that works: builds it with the first N of them, for each N, boots it, and runs
# upstream's tests of device memory on it, and channels of the fixes; devmem_recv needs more than this kernel's configuration has.
#
#   boot-series.sh [FIRST [LAST]]        by default from the first patch to the last one that changes the kernel
#
# Minutes a patch: what includes a header that it changes is compiled anew. What is built for it is deleted again. (Behind the
# last patch that changes the kernel, that is what others know as branch: it stays if it was there.)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# boot: the kernel that GPURX_TOKENS_PATCHES says
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
    local -a patches
    local first last number log
    mapfile -t patches < <(grep -v '^#' "$repo_dir/kernel-support/linux-7.3/tokens/series")
    first=${1:-1}
    # The whole series is the kernel 'branch', which other tests boot and keep.
    last=${2:-$(printf '%s\n' "${patches[@]}" | grep -vc -e '-selftests-' -e '-Documentation-')}
    ((last < ${#patches[@]})) || die "the whole series is the kernel branch"
    for ((number = first; number <= last; number++)); do
        log=$repo_dir/build/boot-series-$number.log
        mkdir -p "${log%/*}"
        GPURX_TOKENS_PATCHES=$number boot "$log" || { tail -n 40 "$log" >&2 && die "${patches[number - 1]}: see $log"; }
        echo "ok - ${patches[number - 1]}: $(grep -E '[0-9]+ passed' "$log" | tail -n 1)"
    done
}

main "$@"
