#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Run the kernel tree's own tests on the software NIC in the lab, and compare with what is expected of them.
#
#   run-selftests.sh [--kernel KERNEL] [--tests-of KERNEL] [--seconds N] [--memory SIZE] [--append ARGUMENTS]
#                    [GROUP | SUITE[:CASE]]...
#
# guest/selftests.toml has the groups and their suites; by default all that the kernel can run. --seconds is how long the
# stress and attack cases of the tokens run, 5 by default. DEVMEM_TOKENS_SOCKETS, _CONNECTIONS and _REBINDS go to the tests;
# 65537 sockets at once need a guest with 10G of memory. --tests-of takes the tests, and what is expected of them, of another
# kernel: those that a series adds show on the kernel without it what it is for. --append is for the kernel's command line.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel=debian tests_of='' seconds=5 memory='' append=''
while [[ ${1:-} == --* ]]; do
    (($# >= 2)) || die "$1 needs a value"
    case $1 in
        --kernel) kernel=$2 ;;
        --tests-of) tests_of=$2 ;;
        --seconds) seconds=$2 ;;
        --memory) memory=$2 ;;
        --append) append=$2 ;;
        *) die "unknown option '$1'" ;;
    esac
    shift 2
done
[[ $seconds =~ ^[0-9]+$ ]] || die "--seconds $seconds: not a number"
limit=$((3600 + seconds))
[[ $kernel != debug && $kernel != kcsan ]] || limit=$((limit + 3600))
directory=$("$lab_dir/selftests.sh" "${tests_of:-$kernel}")
nic=("$("$lab_dir/module.sh" "$kernel" "$repo_dir/kernel-support/devmemsim")")
# A kernel that holds the device does not need the NIC to leave it behind, and is to show it.
case $kernel in branch | debug | kcsan | fixes | broken) nic+=(keep_device=N) ;; esac
# Tunnels, qdiscs and filters are modules. An interrupt's affinity is something only where there could be a second CPU,
# but it must not run where QEMU emulates it (framework/docs/decisions/build.md).
options=()
[[ $kernel != debian* ]] || options+=(--modules --cpus 2 --append maxcpus=1)
[[ -z $append ]] || options+=(--append "$append")
[[ -z $memory ]] || options+=(--memory "$memory")
numbers=()
for name in DEVMEM_TOKENS_{SOCKETS,CONNECTIONS,REBINDS}; do
    [[ ! -v $name ]] || numbers+=("$name=${!name}")
done
exec "$lab_dir/lab.sh" --no-nic --kernel "$kernel" "${options[@]}" --timeout "$limit" -- \
    env DEVMEM_TOKENS_SECONDS="$seconds" SELFTESTS_OF="$tests_of" "${numbers[@]}" "$lab_dir/guest/selftests.py" "$directory" "${nic[@]}" -- "$@"
