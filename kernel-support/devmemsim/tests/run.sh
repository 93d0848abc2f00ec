#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Test the software NIC in the lab.
#
#   run.sh [--kernel KERNEL] [--rounds N] [--seed N] [functional] [stress]
#
# functional, on Debian's kernel: settings, plain traffic, hardware GRO, device memory, faults, XDP, interrupts, refusal to
# load.
# stress, on the debug kernel: interrupts on several CPUs, N rounds of random changes, 200 by default, and a device that
# goes while it is bound. The seed is printed; with it they repeat.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lab=$here/../../lab
kernel='' rounds=200 seed=$RANDOM suites=()
while (($#)); do
    case $1 in
        --kernel) kernel=${2:?--kernel needs a value} && shift ;;
        --rounds) rounds=${2:?--rounds needs a value} && shift ;;
        --seed) seed=${2:?--seed needs a value} && shift ;;
        functional | stress) suites+=("$1") ;;
        *) echo "usage: run.sh [--kernel KERNEL] [--rounds N] [--seed N] [functional] [stress]" >&2 && exit 2 ;;
    esac
    shift
done
((${#suites[@]})) || suites=(functional stress)

# in_lab KERNEL LAB-OPTION... -- COMMAND...: what COMMAND prints is TAP.
in_lab() {
    local kernel=$1 module options=()
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    module=$("$lab/module.sh" "$kernel" "$here/..")
    "$lab/lab.sh" --kernel "$kernel" "${options[@]}" -- \
        env PYTHONDONTWRITEBYTECODE=1 DEVMEMSIM_KO="$module" "$@"
}

status=0
for suite in "${suites[@]}"; do
    case $suite in
        functional)
            # shellcheck disable=SC2016  # the guest's shell expands it
            in_lab "${kernel:-debian}" --timeout 1800 -- /bin/bash -c '
                status=0
                for name in control traffic gro devmem faults xdp; do
                    echo "# test_$name.py"
                    /usr/bin/python3 "$0/test_$name.py" || status=1
                done
                exit $status' "$here" || status=1
            # An affinity needs a second CPU, but it need not run
            in_lab "${kernel:-debian}" --timeout 300 --cpus 2 --append maxcpus=1 -- \
                /usr/bin/python3 "$here/test_irq.py" || status=1
            in_lab "${kernel:-debian}" --timeout 60 --no-nic --append swiotlb=force -- \
                /usr/bin/python3 "$here/test_refusals.py" || status=1
            ;;
        stress)
            # shellcheck disable=SC2016  # the guest's shell expands it
            in_lab "${kernel:-debug}" --timeout 3600 -- /bin/bash -c '
                status=0
                /usr/bin/python3 "$0/test_irq.py" || status=1
                /usr/bin/python3 "$0/stress.py" --rounds "$1" --seed "$2" || status=1
                /usr/bin/python3 "$0/test_removal.py" || status=1
                exit $status' "$here" "$rounds" "$seed" || status=1
            ;;
    esac
done
exit "$status"
