# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash. The options are those that the program itself lists.

_gpurx_perf() {
    local program=$1 word=$2 before=$3 which=${COMP_WORDS[1]:-} interfaces
    COMPREPLY=()
    case $before in
        gpurx-perf) mapfile -t COMPREPLY < <(compgen -W 'server client --help --version' -- "$word") ;;
        --transport) mapfile -t COMPREPLY < <(compgen -W 'automatic devmem copy' -- "$word") ;;
        --interface)
            interfaces=$(cd /sys/class/net 2>/dev/null && echo *)
            mapfile -t COMPREPLY < <(compgen -W "$interfaces" -- "$word")
            ;;
        --json) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
        *)
            [[ $word == -* ]] || return
            mapfile -t COMPREPLY < <(compgen -W "$("$program" "$which" --help 2>/dev/null | grep -oE -e '--[a-z][a-z0-9-]*')" -- "$word")
            ;;
    esac
}
complete -F _gpurx_perf gpurx-perf
