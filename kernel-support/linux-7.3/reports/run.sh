#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Say of each fault that a report beside this file tells of whether a kernel of the lab still has it: ok where it does.
#
#   run.sh [--kernel KERNEL]...     debian, debian-7.2 and debian-experimental by default
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../lab/lib.sh"
build=$repo_dir/build/reports

# The programs want what the headers of distributions do not have yet.
build_programs() {
    local headers program
    headers=$(echo "$("$lab_dir/debian-kernel.sh" debian)"/usr/src/linux-headers-*-common/include/uapi/linux)
    mkdir -p "$build/include/linux"
    ln -sfn "$headers/io_uring.h" "$headers/io_uring" "$build/include/linux/"
    for program in "$here"/*.c; do
        gcc -std=gnu17 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I"$build/include" "$program" -o "$build/$(basename "$program" .c)"
    done
}

# still REPORT COMMAND...: whether the fault of this report is there, in a line of TAP with what the program printed
still() {
    local report=$1 said status=0
    shift
    said=$("$@" 2>&1) || status=$?
    case $status in
        0) echo "ok - $report: $said" ;;
        1) echo "not ok - $report: the fault is gone, and $report.md has to tell in which version: $said" ;;
        *) echo "not ok - $report: the program failed: $said" ;;
    esac
}

in_guest() {
    local fault=/sys/kernel/debug/devmemsim/dms0/linear_bytes port
    ethtool -G dms0 tcp-data-split on
    ethtool -X dms0 equal 2
    for port in 9002 9003; do
        ethtool -N dms0 flow-type tcp4 dst-port "$port" action "${port: -1}" >/dev/null
    done
    still 1-late-wake-up "$build/late_wake_up" eventfd
    still 1-late-wake-up "$build/late_wake_up" ring
    still 2-shared-area "$build/shared_area"
    still 3-lost-at-end "$build/lost_at_end"
    # GRO of the stack, of packets of which 100 bytes of payload are beside the headers.
    ethtool -K dms0 rx-gro-hw off
    echo 100 >"$fault"
    still 4-linear-behind-pages "$build/linear_behind_pages"
}

main() {
    local kernel kernels=() status=0
    while [[ ${1:-} == --kernel ]]; do
        kernels+=("${2:?--kernel needs a value}")
        shift 2
    done
    (($# == 0)) || die "usage: run.sh [--kernel KERNEL]..."
    ((${#kernels[@]})) || kernels=(debian debian-7.2 debian-experimental)
    build_programs
    for kernel in "${kernels[@]}"; do
        echo "==== $kernel"
        "$lab_dir/lab.sh" --exact --kernel "$kernel" --timeout 300 -- "$here/run.sh" --in-guest | tee "$build/log" || status=1
        ! grep -q '^not ok' "$build/log" || status=1
    done
    return "$status"
}

if [[ ${1:-} == --in-guest ]]; then
    in_guest
else
    main "$@"
fi
