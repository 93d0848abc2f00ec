# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash. The options are those that the program itself lists.

_gpurxd() {
    local program=$1 word=$2 before=$3
    COMPREPLY=()
    case $before in
        --socket | --policy)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            ;;
        --metrics-directory | --state-directory)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | grep -oE '^ +(-[a-z],)?--[a-z0-9-]+' | grep -oE -e '--.*')" -- "$word") ;;
    esac
}
complete -F _gpurxd gpurxd
