#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernel patch series: each patch is clean under checkpatch --strict, applies without fuzz, and what it changes builds
# with W=1 and sparse without a warning that the tree before it has not; and, but for sparse, without devmem TCP and for 32
# bits. A series that has passed is not built again.
#
#   series.sh [NAME...]        of kernel-support/linux-7.3; by default those that are to be sent
#   series.sh --newest         instead: whether these apply to the newest kernel source that Debian carries, and what differs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

# What a series is put on
declare -A under=([rfc]=$branch_series)
below=''
for name in $branch_series; do
    under[$name]=$below
    below+=" $name"
done

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

# What each patch is built for, by what the lab's configuration is without there.
declare -A left_out=([lab]='^$' [without-devmem]='DMABUF|DMA_SHARED_BUFFER' [32-bit]='CONFIG_64BIT')

# make_quietly CONFIGURATION ARGUMENT...
make_quietly() {
    local arch=()
    [[ $1 != 32-bit ]] || arch=(ARCH=i386)
    CCACHE_DIR=$cache_dir/ccache CCACHE_NOHASHDIR=1 make -s -C "$tree" O="$tree/build-$1" "${arch[@]}" CC='ccache gcc' HOSTCC='ccache gcc' -j"$(nproc)" "${@:2}"
}

configure() {
    mkdir -p "$tree/build-$1"
    grep -vE "${left_out[$1]}" kernel-support/lab/config/base.config >"$tree/$1.config"
    make_quietly "$1" KCONFIG_ALLCONFIG="$tree/$1.config" allnoconfig >"$tree/config-$1.log" 2>&1
    make_quietly "$1" prepare >"$tree/prepare-$1.log" 2>&1
    if [[ $1 == without-devmem ]] && grep -q '^CONFIG_NET_DEVMEM=y' "$tree/build-$1/.config"; then
        die "something selects devmem TCP in the configuration without it"
    fi
}

# warnings LOG: what the compiler and sparse say, without line numbers, which every patch moves
warnings() { grep -E 'warning:|error:' "$1" | sed -E 's/:[0-9]+:[0-9]+:/:/' | sort -u || true; }

# built_in CONFIGURATION OBJECT...: of these objects, those that it has
built_in() {
    local object
    for object in "${@:2}"; do
        [[ $1 == without-devmem && $object =~ ^(net/core/devmem|net/ipv4/tcp_devmem|drivers/dma-buf/) ]] || printf '%s\n' "$object"
    done
}

# build CONFIGURATION LOG OBJECT...: compiled, and in the lab's looked at by sparse, whether up to date or not
build() {
    local log=$2 sparsely=() objects
    [[ $1 != lab ]] || sparsely=(C=2 CHECK="$sparse")
    mapfile -t objects < <(built_in "$1" "${@:3}")
    make_quietly "$1" W=1 "${sparsely[@]}" "${objects[@]}" >"$log" 2>&1 || { cat "$log" >&2 && return 1; }
}

# check NAME: all of the above for this series
check() {
    local name=$1 stamp sparse log objects configuration patch patches below tree
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
    for patch in "${below[@]}"; do
        patch -s -p1 --fuzz=0 -d "$tree" -i "$patch" || die "${patch##*/} does not apply"
    done
    mapfile -t objects < <(for patch in "${patches[@]}"; do objects_of "$patch"; done | sort -u | present)
    for configuration in "${!left_out[@]}"; do
        configure "$configuration"
        build "$configuration" "$tree/stock-$configuration.log" "${objects[@]}"
        warnings "$tree/stock-$configuration.log" >"$tree/known-$configuration"
    done

    for patch in "${patches[@]}"; do
        patch -s -p1 --fuzz=0 -d "$tree" -i "$patch" || die "${patch##*/} does not apply"
        mapfile -t objects < <(objects_of "$patch" | sort -u)
        for configuration in "${!left_out[@]}"; do
            log=$tree/${patch##*/}-$configuration.log
            build "$configuration" "$log" "${objects[@]}" || die "${patch##*/} does not build: $configuration"
            if warnings "$log" | grep -vxFf "$tree/known-$configuration" >&2; then
                die "${patch##*/} adds these warnings: $configuration"
            fi
        done
        echo "$name: builds: ${patch##*/}"
    done
    rm -rf "$tree"
    touch "$stamp"
}

# Each patch on top of those before it; of one that does not apply, what does. Only what the series change is unpacked.
check_newest() {
    local archive tree patch patches differ=0 files
    archive=$(kernel-support/lab/newest-source.sh)
    # shellcheck disable=SC2086  # several names
    mapfile -t patches < <(patches_of $branch_series)
    mapfile -t files < <(sed -n 's#^--- a/#*/#p' "${patches[@]}" | sort -u)
    tree=$(mktemp -d)
    # What it lacks is told by the patch.
    tar -xf "$archive" -C "$tree" --strip-components=1 --wildcards "${files[@]}" 2>/dev/null || true
    for patch in "${patches[@]}"; do
        if patch -s -p1 --fuzz=0 --dry-run -d "$tree" -i "$patch" >/dev/null 2>&1; then
            patch -s -p1 --fuzz=0 -d "$tree" -i "$patch"
            continue
        fi
        echo "${patch#"$series_dir/"}: differs"
        patch -s -p1 --fuzz=0 -f -d "$tree" -i "$patch" | sed 's/^/    /' || true
        differ=$((differ + 1))
    done
    rm -rf "$tree"
    echo "${archive##*/}: $((${#patches[@]} - differ)) of ${#patches[@]} patches apply"
    ((differ == 0))
}

main() {
    local series
    # shellcheck disable=SC2086  # several names
    (($#)) || set -- $branch_series
    if [[ $1 == --newest ]]; then
        check_newest
        return
    fi
    for series; do
        [[ -v under[$series] ]] || die "usage: series.sh [NAME...]: there is no series '$series'"
        # In a shell of its own, which holds the lock no longer than that
        (check "$series")
    done
}

main "$@"
