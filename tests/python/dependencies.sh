#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print a directory with what gpurx's wheel asks for, as wheels for each CPython that it is for: that of wheel.txt, fetched
# into the cache.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. tests/python/layer.sh

main() {
    local environment into version
    environment=$(tests/python/environment.sh)
    into=$cache_dir/wheel-$(sha256_of tests/python/wheel.txt | cut -c1-16)
    lock wheel-dependencies
    for version in "${cpythons[@]}"; do
        compgen -G "$into/*-cp${version/./}-*.whl" >/dev/null ||
            "$environment/bin/python" -m pip download --quiet --no-input --disable-pip-version-check --no-deps \
                --require-hashes --only-binary=:all: --python-version "$version" -d "$into" -r tests/python/wheel.txt
    done
    printf '%s\n' "$into"
}

main
