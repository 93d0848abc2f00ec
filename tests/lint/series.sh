#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernel patch series: each patch is clean under checkpatch --strict, applies without fuzz, and what it changes builds
# with W=1 and sparse without a warning that the tree before it has not. A series that has passed is not built again.
#
#   series.sh [NAME...]        of kernel-support/linux-7.3; by default those that are to be sent
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

series_dir=$PWD/kernel-support/linux-7.3

# What a series is put on
declare -A under=([fixes]='' [tokens]=fixes [rfc]='fixes tokens')

source=$(kernel-support/lab/kernel.sh --source stock)

# The kernel's history is not here, so checkpatch knows no commit that is named. MAINTAINERS has the selftests' directory,
# so a new file in it needs no change there. Who sends the fixes signs them.
ignored=UNKNOWN_COMMIT_ID,FILE_PATH_CHANGES,MISSING_SIGN_OFF

# A patch that git knows as a file of its own is taken for source; so checkpatch gets them as its input.
checkpatch() {
    local patch status=0
    for patch in "${patches[@]}"; do
        "$source/scripts/checkpatch.pl" --strict --no-tree --terse --show-types --ignore "$ignored" - <"$patch" || {
            echo "${patch##*/}: see above" >&2
            status=1
        }
    done
    return "$status"
}

# The objects of the C files that PATCH changes in the kernel, and those of headers' main users.
objects_of() {
    sed -En 's#^\+\+\+ b/((net|drivers)/.*)\.c$#\1.o#p' "$1"
    printf '%s\n' net/core/devmem.o net/core/page_pool.o net/core/sock.o net/ipv4/tcp.o
}

# present: of these objects, those whose source is there before the first patch
present() {
    local object
    while read -r object; do
        [[ ! -e $tree/${object%.o}.c ]] || printf '%s\n' "$object"
    done
}

make_quietly() {
    CCACHE_DIR=$cache_dir/ccache CCACHE_NOHASHDIR=1 make -s -C "$tree" O="$tree/build-series" CC='ccache gcc' HOSTCC='ccache gcc' -j"$(nproc)" "$@"
}

# warnings LOG: what the compiler and sparse say, without line numbers, which every patch moves
warnings() { grep -E 'warning:|error:' "$1" | sed -E 's/:[0-9]+:[0-9]+:/:/' | sort -u || true; }

# build LOG OBJECT...: compiled and looked at by sparse, whether up to date or not
build() {
    local log=$1
    shift
    make_quietly W=1 C=2 CHECK="$sparse" "$@" >"$log" 2>&1 || { cat "$log" >&2 && return 1; }
}

# patches_of NAME...: the patches of these series
patches_of() {
    local name
    for name; do
        sed "/^#/d; s|^|$series_dir/$name/|" "$series_dir/$name/series"
    done
}

# check NAME: all of the above for this series
check() {
    local name=$1 stamp sparse log objects patch patches below tree
    mapfile -t patches < <(patches_of "$name")
    # shellcheck disable=SC2086  # no name, or several
    mapfile -t below < <(patches_of ${under[$name]})
    ((${#patches[@]} > 0)) || die "the series '$name' is empty"
    checkpatch
    echo "$name: checkpatch: ${#patches[@]} patches are clean"

    stamp=$cache_dir/series/$(cat "${below[@]}" "${patches[@]}" "$0" <(basename "$source") | sha256_of_text | cut -c1-16)
    if [[ -e $stamp ]]; then
        echo "$name: builds: this series has passed before"
        return
    fi
    kernel-support/lab/packages.sh kernel
    sparse=$(kernel-support/lab/sparse.sh)
    lock kernel
    tree=$cache_dir/series/tree
    rm -rf "$tree"
    mkdir -p "$tree"
    # patch writes new files: what is linked here stays as it is there.
    cp -al "$source/." "$tree/"
    rm -rf "$tree"/build-*
    mkdir -p "$tree/build-series"
    for patch in "${below[@]}"; do
        patch -s -p1 --fuzz=0 -d "$tree" -i "$patch" || die "${patch##*/} does not apply"
    done
    make_quietly KCONFIG_ALLCONFIG="$PWD/kernel-support/lab/config/base.config" allnoconfig >"$tree/config.log" 2>&1
    make_quietly prepare >"$tree/prepare.log" 2>&1
    mapfile -t objects < <(for patch in "${patches[@]}"; do objects_of "$patch"; done | sort -u | present)
    build "$tree/stock.log" "${objects[@]}"
    warnings "$tree/stock.log" >"$tree/known"

    for patch in "${patches[@]}"; do
        patch -s -p1 --fuzz=0 -d "$tree" -i "$patch" || die "${patch##*/} does not apply"
        log=$tree/${patch##*/}.log
        mapfile -t objects < <(objects_of "$patch" | sort -u)
        build "$log" "${objects[@]}" || die "${patch##*/} does not build"
        if warnings "$log" | grep -vxFf "$tree/known" >&2; then
            die "${patch##*/} adds these warnings"
        fi
        echo "$name: builds: ${patch##*/}"
    done
    rm -rf "$tree"
    touch "$stamp"
}

main() {
    local series
    (($#)) || set -- fixes tokens
    for series; do
        [[ -v under[$series] ]] || die "usage: series.sh [NAME...]: there is no series '$series'"
        # In a shell of its own, which holds the lock no longer than that
        (check "$series")
    done
}

main "$@"
