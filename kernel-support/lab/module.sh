#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Build an out-of-tree module for a kernel of the lab and print the path of the .ko:
#
#   module.sh KERNEL SOURCE_DIRECTORY                  KERNEL: as kernel.sh takes it
#
# The sources are copied to build/modules/KERNEL-ID/NAME first: objects of two kernels must not meet in one directory.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# sources_id DIRECTORY: changes with every file in it.
sources_id() {
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum) | sha256_of_text
}

build_module() {
    local source=$1 directory=$2 kernel=$3 log=$2.log arguments=()
    [[ ! -e $kernel/make-arguments ]] || mapfile -t arguments <"$kernel/make-arguments"
    # What has changed gets the time of now, or make would keep objects of a newer file of another tree.
    rsync -rlpD --checksum --delete --exclude='*.o' --exclude='*.ko' --exclude='*.mod' --exclude='*.mod.c' --exclude='*.cmd' \
        --exclude=Module.symvers --exclude=modules.order "$source/" "$directory/"
    note "building ${source##*/} ..."
    if ! CCACHE_DIR=$cache_dir/ccache make -C "$kernel/build" M="$directory" CC='ccache gcc' "${arguments[@]}" W=1 modules >"$log" 2>&1; then
        cat "$log" >&2
        die "${source##*/} does not build for $kernel/build"
    fi
    # The kernel's make goes on after a warning; a module of ours must not have any. That no pahole is there, or another
    # one, is none of the module's.
    if grep -n 'warning:' "$log" | grep -v 'pahole version differs' >&2; then
        die "${source##*/} builds with warnings: $log"
    fi
}

main() {
    local kernel=${1:-} source=${2:-} kernel_directory directory id modules
    [[ $# == 2 && -d $source ]] || die "usage: module.sh KERNEL SOURCE_DIRECTORY"
    source=$(realpath -- "$source")
    kernel_directory=$("$lab_dir/kernel.sh" "$kernel")
    directory=$repo_dir/build/modules/${kernel_directory##*/}/${source##*/}
    mkdir -p "$directory"
    id=$(sources_id "$source")

    exec 9>"$directory.lock"
    flock 9
    if [[ $(cat "$directory.id" 2>/dev/null) != "$id" ]]; then
        rm -f "$directory.id"
        build_module "$source" "$directory" "$kernel_directory" 9>&-
        printf '%s\n' "$id" >"$directory.id"
    fi
    modules=("$directory"/*.ko)
    [[ ${#modules[@]} == 1 && -e ${modules[0]} ]] || die "$source: one module expected, found: ${modules[*]}"
    printf '%s\n' "${modules[0]}"
}

main "$@"
