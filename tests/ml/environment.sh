#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the root of a Python environment with torch, vLLM and Ray, as requirements.txt names them: the directory with
# bin/python. It is made the first time, in the cache, by the Python of tests/python/environment.sh:  environment.sh [--path]
# With --path nothing is fetched, and nothing printed if it is not there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"

requirements=$repo_dir/tests/ml/requirements.txt

main() {
    local python version id root
    python=$("$repo_dir/tests/python/environment.sh")/bin/python
    version=$("$python" -c 'import platform; print(platform.python_version())')
    id=$({
        sed '/^#/d' "$requirements"
        "$python" -c 'import sys; print(sys.base_prefix)'
    } | sha256_of_text | cut -c1-16)
    root=$cache_dir/ml-$version-$id
    if [[ ${1:-} == --path ]]; then
        [[ ! -e $root/complete ]] || printf '%s\n' "$root"
        return
    fi
    lock ml
    if [[ ! -e $root/complete ]]; then
        note "fetching torch, vLLM for CPUs and Ray (about 3.2 GB, 6.7 GB installed, in $root) ..."
        rm -rf "$root"
        # Of the interpreter that the other environment is made of: that is none to be built upon.
        "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')" -m venv "$root"
        "$root/bin/python" -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps \
            --only-binary=:all: --require-hashes -r "$requirements" >&2
        touch "$root/complete"
    fi
    printf '%s\n' "$root"
}

main "$@"
