#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the root of a Python environment with DLIO, as requirements.txt names it: the directory with bin/python. It is made
# the first time, in the cache, by the Python of tests/python/environment.sh, and has Debian's torch.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"
. "$repo_dir/tests/python/layer.sh"

main() {
    local python id root directory=$repo_dir/tests/dlio
    local -a install=(-m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps --require-hashes)
    python=$("$repo_dir/tests/python/environment.sh")/bin/python
    "$python" -c 'import sys; assert sys.version_info[:2] == (3, 11)' || die "DLIO is tested with CPython 3.11, for which there is Debian's torch"
    id=$(cat "$directory"/*.txt | sed '/^#/d' | sha256_of_text | cut -c1-16)
    root=$cache_dir/dlio-$id
    lock dlio
    if [[ ! -e $root/complete ]]; then
        note "fetching DLIO (80 MB, 290 MB installed, in $root) ..."
        rm -rf "$root"
        # Of the interpreter that the other environment is made of: that is none to be built upon.
        "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')" -m venv "$root"
        "$root/bin/python" "${install[@]}" --only-binary=:all: -r "$directory/requirements.txt" >&2
        "$root/bin/python" "${install[@]}" --no-build-isolation -r "$directory/sources.txt" >&2
        lend_torch "$root"
        "$root/bin/python" -c 'import torch' || die "Debian's python3-torch is not installed"
        touch "$root/complete"
    fi
    printf '%s\n' "$root"
}

main "$@"
