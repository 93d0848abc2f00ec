#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the path of nvdisasm, which shows machine code for GPUs as text:  nvdisasm.sh [FOLDER: look there first]
# Where there is none it is fetched through pip (4 MB, under NVIDIA's licence). Where that fails it says why, prints
# nothing, and still exits with 0.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"

requirements=$repo_dir/tests/bench/nvdisasm.txt

# fetch INTO
fetch() {
    local work=$1.new
    rm -rf "$work"
    mkdir -p "$work"
    if ! TMPDIR=$work python3 -m pip download --no-input --no-cache-dir --disable-pip-version-check --retries 1 \
        --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --require-hashes -r "$requirements" \
        --dest "$work/wheels" >"$work/pip.log" 2>&1 </dev/null; then
        note "nvdisasm cannot be fetched: $(tail -n 1 "$work/pip.log")"
        rm -rf "$work"
        return
    fi
    python3 -m zipfile -e "$work"/wheels/*.whl "$work/unpacked"
    mkdir -p "${1%/*}"
    chmod +x "$work"/unpacked/nvidia/cu*/bin/nvdisasm
    mv "$work"/unpacked/nvidia/cu*/bin/nvdisasm "$1"
    rm -rf "$work"
}

main() {
    local there cached
    there=$(PATH=${1:+$1:}$PATH type -P nvdisasm || true)
    if [[ -z $there ]]; then
        cached=$cache_dir/nvdisasm-$(sed '/^#/d' "$requirements" | sha256_of_text | cut -c1-16)
        lock nvdisasm
        [[ -x $cached ]] || fetch "$cached"
        [[ ! -x $cached ]] || there=$cached
    fi
    [[ -z $there ]] || printf '%s\n' "$there"
}

main "$@"
