#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Say which defects a kernel of the lab has, of those that the selftests of the series cannot show.
#
#   run.sh [--kernel KERNEL] [--all-there] [NAME...]     debian, and all of them by default
#
# A NAME is one of the scripts beside this one. The kernel is told to poison what is freed or allocated, and to send all DMA
# through swiotlb, where that shows a defect. The exit status is the number of defects; with --all-there, of those that are not
# there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../../lab/lib.sh"

kernel=debian all_there=0 names=()
while (($#)); do
    case $1 in
        --kernel) kernel=${2:?--kernel needs a value} && shift ;;
        --all-there) all_there=1 ;;
        *) names+=("${1%.py}") ;;
    esac
    shift
done
((${#names[@]})) || names=(dma_device tx_short_mapping tx_long_mapping tx_device token_sleep page_pool_sleep rule_adds checksum udmabuf_sync)

# lab_options NAME: a line for each argument
lab_options() {
    case $1 in
        dma_device | tx_device) printf '%s\n' --append slab_debug=FZP ;;
        tx_short_mapping) printf '%s\n' --append 'init_on_alloc=0 slab_debug=FZP' ;;
        tx_long_mapping) printf '%s\n' --append slab_debug=FZ ;;
        udmabuf_sync) printf '%s\n' --append swiotlb=force ;;
    esac
}

# careless_nic FILE SED-COMMAND: a NIC that does not do what the command takes out of this file
careless_nic() {
    local copy=$repo_dir/build/careless/devmemsim
    mkdir -p "${copy%/*}"
    rsync -a --delete --exclude=tests "$repo_dir/kernel-support/devmemsim/" "$copy/"
    sed -i "$2" "$copy/$1"
    ! cmp -s "$copy/$1" "$repo_dir/kernel-support/devmemsim/$1" || die "the NIC has changed"
    "$lab_dir/module.sh" "$kernel" "$copy"
}

# nic_for NAME: the module of the NIC that shows the defect
nic_for() {
    case $1 in
        # Does not keep packets with a wrong checksum out of device memory
        checksum) careless_nic devmemsim_rx.c 's/(!split || DMS_FRAME_CB(frame)->csum == DMS_CSUM_BAD) \&\&/!split \&\&/' ;;
        # Takes queues away that rules lead to
        rule_adds) careless_nic devmemsim_steer.c 's/if (!dms_rule_fits(steering, &steering->rule\[loc\])) {/if (0) {/' ;;
        *) "$lab_dir/module.sh" "$kernel" "$repo_dir/kernel-support/devmemsim" ;;
    esac
}

found=0
for name in "${names[@]}"; do
    [[ -e $here/$name.py ]] || die "no reproducer '$name'"
    mapfile -t options < <(lab_options "$name")
    settings=(PYTHONDONTWRITEBYTECODE=1)
    [[ $name == udmabuf_sync ]] || settings+=("DEVMEMSIM_KO=$(nic_for "$name")")
    case $name in
        tx_*_mapping) settings+=("EXPORTER_KO=$("$lab_dir/module.sh" "$kernel" "$here/exporter")") ;;
        token_sleep | page_pool_sleep) settings+=("NO_MEMORY_KO=$("$lab_dir/module.sh" "$kernel" "$here/no_memory")") ;;
    esac
    if "$lab_dir/lab.sh" --kernel "$kernel" --no-nic --timeout 90 "${options[@]}" -- \
        env "${settings[@]}" /usr/bin/python3 "$here/$name.py"; then
        echo "$name: not there"
    else
        echo "$name: THERE"
        found=$((found + 1))
    fi
done
((all_there)) || exit "$found"
exit $((${#names[@]} - found))
