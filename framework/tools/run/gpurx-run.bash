# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash. The options are those that the program itself lists.

_gpurx_run() {
    local program=$1 word=$2 before=$3
    COMPREPLY=()
    case $before in
        --interface) mapfile -t COMPREPLY < <(compgen -W "$(ls /sys/class/net)" -- "$word") ;;
        --user) mapfile -t COMPREPLY < <(compgen -u -- "$word") ;;
        --) mapfile -t COMPREPLY < <(compgen -c -- "$word") ;;
        --state-directory)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$word")
            ;;
        *) mapfile -t COMPREPLY < <(compgen -W "$("$program" --help 2>/dev/null | grep -oE '^ +(-[a-z],)?--[a-z0-9-]+' | grep -oE -e '--.*')" -- "$word") ;;
    esac
}
complete -o default -F _gpurx_run gpurx-run
