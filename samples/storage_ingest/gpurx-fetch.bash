# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion for bash. The options are those that the program itself lists.

_gpurx_fetch() {
    local program=$1 word=$2 before=$3 words
    COMPREPLY=()
    case $before in
        --transport) words='automatic devmem copy' ;;
        --memory) words='host gpu:local gpu:0 gpu:1 gpu:2 gpu:3 gpu:4 gpu:5 gpu:6 gpu:7' ;;
        --s3-addressing) words='automatic path virtual' ;;
        --crc32c) words='none automatic always' ;;
        --interface) words=$(cd /sys/class/net 2>/dev/null && echo *) ;;
        --output | --ca | --cert | --key | --bearer-file)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
            return
            ;;
        *)
            [[ $word == -* ]] || return
            words=$("$program" --help 2>/dev/null | grep -oE '^ +(-[a-z],)?--[a-z0-9-]+' | grep -oE -e '--.*')
            ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    # readline treats the text after a colon as a separate word.
    [[ $word != *:* ]] || COMPREPLY=("${COMPREPLY[@]#*:}")
}
complete -F _gpurx_fetch gpurx-fetch
