#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Faults of the software NIC: show them, set them, run a command under them and say how often each has hit.
#
#   faults.sh                                         the faults of both devices, what they are set to, and how often they hit
#   faults.sh [DEVICE] NAME=VALUE... [-- COMMAND...]  set them on DEVICE, dms0 by default; with a command, for as long as that runs
#   faults.sh [DEVICE] off                            none any more
#
# kernel-support/devmemsim/README.md has the names and what the values mean. `./run lab faults ...` boots a guest for it.
set -euo pipefail

root=/sys/kernel/debug/devmemsim
die() { printf 'error: %s\n' "$*" >&2; exit 2; }

names_of() { sed 's/ .*//' "$root/$1/injected"; }

show() {
    local device name hits
    printf '%-8s%-14s%10s%12s\n' device fault 'set to' hits
    for device in "$@"; do
        while read -r name hits; do
            printf '%-8s%-14s%10s%12s\n' "$device" "$name" "$(<"$root/$device/$name")" "$hits"
        done <"$root/$device/injected"
    done
}

# set_fault DEVICE NAME VALUE
set_fault() {
    names_of "$1" | grep -qxF -e "$2" || die "$1 has no fault '$2'; there are: $(names_of "$1" | xargs)"
    [[ $3 =~ ^[0-9]+$ ]] || die "$2=$3: not a number"
    printf '%s\n' "$3" 2>/dev/null >"$root/$1/$2" || die "$2=$3: more than the NIC takes"
}

all_off() {
    local name
    for name in $(names_of "$1"); do
        set_fault "$1" "$name" 0
    done
}

main() {
    local device=dms0 setting status=0 settings=()
    [[ -d $root ]] || die "no software NIC here: this runs in the lab's guest (./run lab faults ...)"
    if [[ -n ${1:-} && $1 != *=* && $1 != off && $1 != -- ]]; then
        device=$1
        [[ $device != */* && -d $root/$device ]] || die "no device '$device'; there are: $(ls -x "$root")"
        shift
    fi
    while (($#)) && [[ $1 != -- ]]; do
        settings+=("$1")
        shift
    done
    for setting in "${settings[@]}"; do
        case $setting in
            off) all_off "$device" ;;
            *=*) set_fault "$device" "${setting%%=*}" "${setting#*=}" ;;
            *) die "'$setting' is neither NAME=VALUE nor 'off'" ;;
        esac
    done
    if (($# > 1)); then
        "${@:2}" || status=$?
        show "$device" >&2
        all_off "$device"
    elif ((${#settings[@]})); then
        show "$device"
    else
        show dms0 dms1
    fi
    return "$status"
}

main "$@"
