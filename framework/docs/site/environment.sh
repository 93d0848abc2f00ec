#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the root of a Python environment that has what requirements.txt names: the directory with bin/python. It is made the
# first time, in the cache, by the system's Python.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../../kernel-support/lab/lib.sh"

readonly requirements=$repo_dir/framework/docs/site/requirements.txt python=/usr/bin/python3

make() {
    local root=$1 log=$cache_dir/site.log
    mkdir -p "$cache_dir"
    rm -rf "$root"
    note "fetching Sphinx and what it needs to make the site (15 MB) ..."
    # An environment cannot be moved, so the mark that it is complete comes last.
    if ! "$python" -m venv "$root" >"$log" 2>&1 ||
        ! "$root/bin/python" -m pip install --no-input --no-cache-dir --disable-pip-version-check --retries 1 --no-deps \
            --only-binary=:all: --require-hashes -r "$requirements" >>"$log" 2>&1 </dev/null; then
        rm -rf "$root"
        die "the packages of framework/docs/site/requirements.txt cannot be installed ($(sed -n 's/^ERROR: //p' "$log" | head -n 1)); see $log"
    fi
    touch "$root/complete"
}

main() {
    local id root
    id=$({ sed '/^#/d' "$requirements" && "$python" --version; } | sha256_of_text | cut -c1-16)
    root=$cache_dir/site-$id
    if [[ ! -e $root/complete ]]; then
        lock site
        # Another run may have made it while this one waited.
        [[ -e $root/complete ]] || make "$root"
    fi
    printf '%s\n' "$root"
}

main "$@"
