#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Build or fetch a kernel for the lab, or find it in the cache, and print the directory it is in:
#
#   kernel.sh [--path | --source] debian|debian-7.2|debian-experimental|stock|debug|kcsan|branch|fixes|rfc|broken
#
#   DIRECTORY/vmlinux   what the guest boots
#   DIRECTORY/build     the build directory, for out-of-tree modules: make -C DIRECTORY/build M=...
#
# --path prints where it is or would be, and builds nothing. --source unpacks the source with its patches, and prints
# the directory that is in; the one of 'stock' where the kernel is Debian's own. Those are fetched by debian-kernel.sh;
# what follows is about the others.
# A kernel is named by everything that goes into it: source, patches but those of its tests, configuration, compiler.
# GPURX_SERIES_PATCHES=N takes the first N of its patches alone.
# It is built in a folder of its source tree: the compiler then sees relative paths alone, and ccache serves what is the
# same in two trees.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The series of a kernel, in their order. 'rfc' has prototypes on top of the branch, and of 'broken' one rule can be broken.
declare -A series=([debug]=$branch_series [kcsan]=$branch_series [branch]=$branch_series [fixes]=fixes [rfc]="$branch_series rfc" [broken]="$branch_series broken")

# Lines of output of a full build, for the progress line.
declare -A output_lines=([stock]=1956 [debug]=2034 [kcsan]=1962 [branch]=1956 [fixes]=2003 [rfc]=1956 [broken]=1956)

# KCSAN watches one access of a number. So only the files that the series change are instrumented, and the barriers of locks.
declare -A instrumentation=([kcsan]='KCSAN_SANITIZE=n KCSAN_SANITIZE_devmem.o=y KCSAN_SANITIZE_devmem_token.o=y KCSAN_SANITIZE_tcp_devmem.o=y
KCSAN_SANITIZE_page_pool.o=y KCSAN_INSTRUMENT_BARRIERS_spinlock.o=y KCSAN_INSTRUMENT_BARRIERS_mutex.o=y')

config_files() {
    printf '%s\n' "$lab_dir/config/base.config"
    [[ ! -e $lab_dir/config/$1.config ]] || printf '%s\n' "$lab_dir/config/$1.config"
}

# 'debug' and 'kcsan' are the branch with checks in it.
patch_files() {
    # shellcheck disable=SC2086  # no name, or several
    patches_of ${series[$1]-} | sed -n "1,${GPURX_SERIES_PATCHES:-$}p"
}

# What tells one source from another: the checksum of an archive; the path of a directory, whose owner may change it
# at any time, and which is therefore never taken from the cache without running make.
source_id() {
    local beside=${1%/*}/source.sha256
    if [[ -d $1 ]]; then
        printf 'directory %s' "$1"
    elif [[ -e $beside && $1 == "$cache_dir"/* ]]; then
        cat "$beside"
    else
        sha256_of "$1"
    fi
}

# short_hash: the first 16 digits of the SHA-256 of stdin
short_hash() { sha256_of_text | cut -c1-16; }

# built_changes KERNEL: what its patches change of the kernel. Their words, documentation and tests build nothing.
built_changes() {
    # shellcheck disable=SC2016  # awk's $NF
    patch_files "$1" | xargs -r -d '\n' awk '
        FNR == 1 { on = 0 }
        /^diff --git / { on = $NF !~ "^b/(Documentation|tools/testing)/" }
        on'
}

kernel_id() {
    local kernel=$1 source=$2
    {
        source_id "$source"
        built_changes "$kernel"
        config_files "$kernel" | xargs -d '\n' cat
        printf '%s' "${instrumentation[$kernel]-}"
        gcc --version | head -n 1
    } | short_hash
}

# unpack KERNEL SOURCE: print the directory of the source tree with the patches of KERNEL.
unpack() {
    local kernel=$1 source=$2 id tree
    # With all of each patch: tests are built in this tree.
    id=$({ source_id "$source" && patch_files "$kernel" | xargs -r -d '\n' sha256sum | cut -d' ' -f1; } | short_hash)
    tree=$cache_dir/kernel-source/$id
    if [[ -d $source && -z $(patch_files "$kernel") ]]; then
        printf '%s\n' "$source"
        return
    fi
    lock kernel-tree
    if [[ ! -d $tree ]]; then
        note "unpacking the kernel source ..."
        rm -rf "$tree.new"
        # The register tables of one GPU driver are a quarter of the tree.
        unpack_patched "$source" "$tree.new" --exclude='*/drivers/gpu/drm/amd/include' < <(patch_files "$kernel")
        mv "$tree.new" "$tree"
    fi
    printf '%s\n' "$tree"
}

kernel_make() {
    CCACHE_DIR=$cache_dir/ccache CCACHE_NOHASHDIR=1 CCACHE_MAXSIZE=5G \
        KBUILD_BUILD_TIMESTAMP=@0 KBUILD_BUILD_USER=gpurx KBUILD_BUILD_HOST=lab \
        make -C "$tree" O="$build" CC='ccache gcc' HOSTCC='ccache gcc' "$@"
}

configure() {
    local kernel=$1 wanted=$build/wanted.config lost
    config_files "$kernel" | xargs -d '\n' cat >"$wanted.new"
    # An unchanged configuration is left alone, so that an unchanged tree is not built again.
    if ! cmp -s "$wanted.new" "$wanted" || [[ ! -e $build/.config ]]; then
        kernel_make -s KCONFIG_ALLCONFIG="$wanted.new" allnoconfig >"$build/config.log" 2>&1 || {
            tail -n 30 "$build/config.log" >&2
            die "the kernel's configuration failed"
        }
    fi
    lost=$(grep -E '^(CONFIG_|# CONFIG_.* is not set)' "$wanted.new" | grep -vxFf "$build/.config" || true)
    [[ -z $lost ]] || die "these lines of kernel-support/lab/config did not take effect:"$'\n'"$lost"
    mv "$wanted.new" "$wanted"
}

compile() {
    local kernel=$1 log=$directory/build.log
    note "building the kernel '$kernel' (log: $log)"
    # shellcheck disable=SC2086  # several, or none
    if ! kernel_make -j"$(nproc)" ${instrumentation[$kernel]-} vmlinux modules 2>&1 | progress "kernel $kernel" "${output_lines[$kernel]}" "$log"; then
        grep -nE -A5 'error:|Error [0-9]|undefined reference' "$log" | tail -n 40 >&2 || tail -n 20 "$log" >&2
        die "the build of the kernel '$kernel' failed; the whole log is $log"
    fi
    [[ -s $build/Module.symvers ]] || die "the build left no Module.symvers; the log is $log"
}

# Keep what booting and out-of-tree modules need; ccache has the rest.
trim() {
    find "$build" \( -name '*.o' -o -name '*.a' -o -name '*.cmd' -o -name 'vmlinux.unstripped' -o -name '.tmp_vmlinux*' \) \
        -not -path "$build/scripts/*" -not -path "$build/tools/*" -delete
}

cached() { [[ -e $directory/complete && -e $directory/build/Module.symvers && ! -d $source ]]; }

main() {
    local want=kernel kernel source directory build tree options=()
    [[ ${1:-} == --path || ${1:-} == --source ]] && want=${1#--} && shift
    kernel=${1:-}
    if [[ $kernel == debian* && $want != source ]]; then
        [[ $want == kernel ]] || options=(--path)
        exec "$lab_dir/debian-kernel.sh" "${options[@]}" "$kernel"
    fi
    [[ $# == 1 && -n $kernel && -v output_lines[${kernel/#debian*/stock}] ]] ||
        die "usage: kernel.sh [--path | --source] debian|debian-7.2|debian-experimental|stock|debug|kcsan|branch|fixes|rfc|broken"
    patch_files "$kernel" >/dev/null

    # The compiler is part of a kernel's name.
    command -v gcc >/dev/null || "$lab_dir/packages.sh" kernel
    source=$("$lab_dir/kernel-source.sh")
    if [[ $want == source ]]; then
        unpack "$kernel" "$source"
        return
    fi
    directory=$cache_dir/kernel/$kernel-$(kernel_id "$kernel" "$source")
    if [[ $want == kernel ]] && ! cached; then
        "$lab_dir/packages.sh" kernel
        lock kernel
        # Another run may have built it while this one waited.
        if ! cached; then
            tree=$(unpack "$kernel" "$source")
            build=$tree/build-${directory##*/}
            mkdir -p "$directory" "$build"
            ln -sfn "$build" "$directory/build"
            configure "$kernel"
            compile "$kernel"
            cp "$build/vmlinux" "$directory/vmlinux"
            [[ -d $source ]] || trim
            touch "$directory/complete"
        fi
    fi
    printf '%s\n' "$directory"
}

main "$@"
