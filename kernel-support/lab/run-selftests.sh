#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Run the kernel tree's own tests on the software NIC in the lab.
#
#   run-selftests.sh [--kernel KERNEL] [--seconds N] [SUITE...]
#
# Suites: ncdevmem devmem iou-zcrx hds, and where the kernel has array tokens devmem_tokens; all by default. And
# devmem_tokens_races, some cases of the last. --seconds is how long its stress case runs, 5 by default.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel=debian seconds=5
while [[ ${1:-} == --* ]]; do
    (($# >= 2)) || die "$1 needs a value"
    case $1 in
        --kernel) kernel=$2 ;;
        --seconds) seconds=$2 ;;
        *) die "unknown option '$1'" ;;
    esac
    shift 2
done
[[ $seconds =~ ^[0-9]+$ ]] || die "--seconds $seconds: not a number"
limit=$((1800 + seconds))
[[ $kernel != debug ]] || limit=$((limit + 3600))
directory=$("$lab_dir/selftests.sh" "$kernel")
nic=("$("$lab_dir/module.sh" "$kernel" "$repo_dir/kernel-support/devmemsim")")
# A kernel with the series does not need the NIC to leave its device behind, and is to show it.
[[ $kernel != branch && $kernel != debug ]] || nic+=(keep_device=N)
# shellcheck disable=SC2016  # the guest's shell expands it
exec "$lab_dir/lab.sh" --no-nic --kernel "$kernel" --timeout "$limit" -- \
    env NIC="${nic[*]}" DEVMEM_TOKENS_SECONDS="$seconds" \
    /bin/bash -c '"$0/network" $NIC && exec "$0/selftests.py" "$@"' "$lab_dir/guest" "$directory" "$@"
