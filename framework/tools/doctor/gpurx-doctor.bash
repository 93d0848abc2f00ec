# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash. The options are those that the program itself lists.

_gpurx_doctor() {
    local program=$1 word=$2 before=$3 interfaces
    COMPREPLY=()
    case $before in
        --gpu | --memory) return ;;
        --state-directory)
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            return
            ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | grep -oE '^ +(-[a-z],)?--[a-z0-9-]+' | grep -oE -e '--.*')" -- "$word")
    else
        interfaces=$(cd /sys/class/net 2>/dev/null && echo *)
        mapfile -t COMPREPLY < <(compgen -W "$interfaces" -- "$word")
    fi
}
complete -F _gpurx_doctor gpurx-doctor
