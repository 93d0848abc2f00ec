#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print where each library is that gpurx is compared with at S3, a line each: its name, the directory, or else why it is
# not there; tabs between them. Each is installed in the cache the first time, as peers/NAME.txt names it, and alone: one
# that cannot be had costs no other:  peers.sh ROOT   for the Python of that environment.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../../kernel-support/lab/lib.sh"

peers=$repo_dir/tests/bench/ingest/peers

# directory_for PYTHON FILE: named by everything that goes into it.
directory_for() {
    local version id name=${2##*/}
    version=$("$1" -c 'import platform; print(platform.python_version())')
    id=$(sed '/^#/d' "$2" | sha256_of_text | cut -c1-16)
    printf '%s\n' "$cache_dir/bench-ingest/${name%.txt}-$version-$id"
}

# install PYTHON FILE DIRECTORY: what pip says goes to DIRECTORY.log.
install() {
    rm -rf "$3"
    note "fetching $(basename "$2" .txt), to compare gpurx with ..."
    # Without isolation: what has no wheel is built by what is here.
    "$1" -m pip install --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
        --require-hashes -r "$2" --target "$3" >"$3.log" 2>&1 </dev/null && touch "$3/complete"
}

has_torch() { "$1" -c 'import sys; from importlib.util import find_spec; sys.exit(not find_spec("torch"))'; }

# line_of PYTHON FILE
line_of() {
    local directory name reason=''
    name=$(basename "$2" .txt)
    directory=$(directory_for "$1" "$2")
    if grep -qx '# needs torch' "$2" && ! has_torch "$1"; then
        reason='it needs torch 2: ./run test ml fetches that (3.2 GB)'
    elif [[ ! -e $directory/complete ]] && ! install "$1" "$2" "$directory"; then
        reason=$(sed -n 's/^ERROR: //p' "$directory.log" | head -n 1)
        reason="pip: ${reason:-it gives no reason}"
    fi
    [[ -z $reason ]] || directory=''
    printf '%s\t%s\t%s\n' "$name" "$directory" "$reason"
}

main() {
    local file
    (($# == 1)) || die "usage: peers.sh ROOT"
    mkdir -p "$cache_dir/bench-ingest"
    lock bench-ingest
    for file in "$peers"/*.txt; do
        line_of "$1/bin/python" "$file"
    done
}

main "$@"
