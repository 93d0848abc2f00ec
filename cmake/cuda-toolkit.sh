#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the root of a CUDA toolkit, the directory with bin/nvcc and include/cuda.h:
#
#   cuda-toolkit.sh [--path]
#
# The first there is of: GPURX_CUDA_ROOT; the one that this script fetched; that of the nvcc on the PATH; /usr/local/cuda.
# Where there is none, the compiler and headers of cuda-toolkit.txt are fetched through pip, which needs no root and no
# GPU. With --path nothing is fetched. GPURX_CUDA=OFF in the environment: there is none.
# Where that fails it says why, prints no path, and still exits with 0: gpurx is then built without CUDA.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../kernel-support/lab/lib.sh"

requirements=$repo_dir/cmake/cuda-toolkit.txt
# The first that knows the GPUs that the library is compiled for.
minimum=12.8

# None of the reasons to go without CUDA is a failure.
without_cuda() {
    note "note: gpurx will be built without CUDA: $*"
    exit 0
}

is_toolkit() { [[ -x $1/bin/nvcc && -e $1/include/cuda.h ]]; }

# version_of ROOT: as 13.0, or nothing
version_of() { "$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.* release \([0-9.]*\).*/\1/p' || true; }

is_new_enough() { [[ -n $1 && $(printf '%s\n' "$minimum" "$1" | sort -V | head -n 1) == "$minimum" ]]; }

# home_of NVCC: the root that it says it belongs to; nothing if it does not say. The file may be a script that starts the one
# elsewhere, among links to the toolkit's headers.
home_of() {
    local top
    top=$("$1" --dryrun -E -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' || true)
    [[ -z $top ]] || realpath -e -- "$top" 2>/dev/null || true
}

# The user named it, so what is wrong with it is an error.
from_environment() {
    local root version
    root=$(realpath -e -- "$GPURX_CUDA_ROOT" 2>/dev/null) || die "GPURX_CUDA_ROOT=$GPURX_CUDA_ROOT: no such directory"
    is_toolkit "$root" || die "GPURX_CUDA_ROOT=$root is not a CUDA toolkit: bin/nvcc or include/cuda.h is missing"
    root=$(home_of "$root/bin/nvcc")
    is_toolkit "$root" || die "GPURX_CUDA_ROOT=$GPURX_CUDA_ROOT: its bin/nvcc belongs to ${root:-no directory}, which is not a CUDA toolkit"
    version=$(version_of "$root")
    is_new_enough "$version" || die "GPURX_CUDA_ROOT=$root is CUDA ${version:-of an unknown version}; $minimum or later is needed"
    printf '%s\n' "$root"
}

# Named by everything that goes into it.
cached_root() {
    local version id
    version=$(sed -n 's/^nvidia-cuda-nvcc==\([0-9]*\.[0-9]*\).*/\1/p' "$requirements")
    id=$(sed '/^#/d' "$requirements" | sha256_of_text | cut -c1-16)
    printf '%s\n' "$cache_dir/cuda-$version-$id"
}

# The toolkit of this machine, if it has one.
installed() {
    local nvcc root
    for nvcc in "$(type -P nvcc)" /usr/local/cuda/bin/nvcc; do
        [[ -x $nvcc ]] || continue
        root=$(home_of "$nvcc")
        if is_toolkit "$root" && is_new_enough "$(version_of "$root")"; then
            printf '%s\n' "$root"
            return
        fi
    done
}

has_pip() { python3 -m pip --version >/dev/null 2>&1; }

# why_not LOG: what went wrong, in pip's words. A connection that fails comes first: pip calls that "no matching
# distribution" in the end.
why_not() {
    {
        sed -n "s/^ERROR: //p" "$1" | tail -n 1
        sed -n "s/^WARNING: Retrying .* broken by '[A-Za-z]*(\(.*\))': .*/\1/p" "$1" | sed 's/.*object at [^ ]*: //' | tail -n 1
    } | tail -n 1 | tr -d "'\""
}

# download DIRECTORY WORK: put the wheels there. On a terminal pip shows how far it is; its complaints go to WORK/pip.log.
download() {
    local output=$2/pip.log
    [[ ! -t 2 ]] || output=/dev/stderr
    # pip keeps no copy: what is made of the wheels is the copy. No question either, and no long wait where nothing answers.
    TMPDIR=$2/tmp python3 -m pip download --no-input --no-cache-dir --disable-pip-version-check --retries 1 \
        --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --require-hashes -r "$requirements" \
        --dest "$1" >>"$output" 2>>"$2/pip.log" </dev/null
}

# unpack DIRECTORY INTO: unzip the wheels. Zip files made for Python do not say which of their files are programs.
unpack() {
    python3 - "$1" "$2" <<'EOF' && chmod +x "$2"/nvidia/cu*/bin/* "$2"/nvidia/cu*/nvvm/bin/*
import pathlib, sys, zipfile
for wheel in pathlib.Path(sys.argv[1]).glob("*.whl"):
    zipfile.ZipFile(wheel).extractall(sys.argv[2])
EOF
}

# fetch ROOT
fetch() {
    local root=$1 work=$1.new reason
    local -a unpacked
    [[ $(uname -m) == x86_64 ]] || without_cuda "there is no toolkit here, and what could be fetched is for x86-64 (set GPURX_CUDA_ROOT to a toolkit)"
    has_pip || { "$lab_dir/packages.sh" cuda && has_pip; } || without_cuda "python3 has no pip to fetch its compiler with"

    rm -rf "$work"
    mkdir -p "$work/tmp"
    note "fetching NVIDIA's CUDA compiler, under NVIDIA's licence (about 105 MB, 275 MB unpacked) ..."
    if ! download "$work/wheels" "$work"; then
        reason=$(why_not "$work/pip.log")
        rm -rf "$work"
        without_cuda "pip cannot fetch its compiler (${reason:-it does not say why}); GPURX_CUDA_ROOT can name a toolkit"
    fi
    unpack "$work/wheels" "$work/unpacked" 2>"$work/unpack.log" || {
        reason=$(tail -n 1 "$work/unpack.log")
        rm -rf "$work"
        without_cuda "its compiler cannot be unpacked ($reason)"
    }
    unpacked=("$work"/unpacked/nvidia/cu*)
    if ! is_toolkit "${unpacked[0]}" || [[ -z $(version_of "${unpacked[0]}") ]]; then
        rm -rf "$work"
        without_cuda "the compiler that was fetched does not run here"
    fi
    mv "${unpacked[0]}" "$root"
    rm -rf "$work"
}

main() {
    local only_path=0 root
    [[ ${1:-} != --path ]] || { only_path=1 && shift; }
    (($# == 0)) || die "usage: cuda-toolkit.sh [--path]"

    [[ ${GPURX_CUDA:-} != OFF ]] || return 0
    if [[ -n ${GPURX_CUDA_ROOT:-} ]]; then
        from_environment
        return
    fi
    root=$(cached_root)
    if ! is_toolkit "$root"; then
        root=$(installed)
    fi
    if [[ -z $root ]] && ((!only_path)); then
        root=$(cached_root)
        lock cuda
        # Another run may have fetched it while this one waited.
        is_toolkit "$root" || fetch "$root"
    fi
    [[ -z $root ]] || printf '%s\n' "$root"
}

main "$@"
