#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Print the root of a Python environment that has what requirements.txt names: the directory with bin/python.
#
#   environment.sh [--path]
#
# It is made the first time, in the cache, by a Python of this machine: the one of GPURX_PYTHON, that on the PATH, or the
# system's, whichever is the first that can compile extensions. pip fetches the packages from where it is configured to,
# and checks that they are the ones that are named. With --path nothing is fetched, and nothing printed if it is not there.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../../kernel-support/lab/lib.sh"

requirements=$repo_dir/tests/python/requirements.txt

# The versions that requirements.txt has wheels for, with pip, and with the headers of the interpreter.
is_usable() {
    "$1" - <<'PYTHON' >/dev/null 2>&1
import ensurepip, os, sys, sysconfig, venv
assert (3, 11) <= sys.version_info < (3, 14)
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
PYTHON
}

usable_python() {
    local candidate
    if [[ -n ${GPURX_PYTHON:-} ]]; then
        is_usable "$GPURX_PYTHON" || die "GPURX_PYTHON=$GPURX_PYTHON is no Python of 3.11 to 3.13 with venv and its headers"
        printf '%s\n' "$GPURX_PYTHON"
        return
    fi
    for candidate in "$(type -P python3 || true)" /usr/bin/python3; do
        if [[ -n $candidate ]] && is_usable "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
}

# root_for PYTHON: named by everything that goes into it.
root_for() {
    local id version
    version=$("$1" -c 'import platform; print(platform.python_version())')
    id=$({
        sed '/^#/d' "$requirements"
        "$1" -c 'import sys; print(sys.base_prefix)'
    } | sha256_of_text | cut -c1-16)
    printf '%s\n' "$cache_dir/python-$version-$id"
}

# why_not LOG: what went wrong, in pip's words
why_not() { sed -n 's/^ERROR: //p' "$1" | head -n 1 | tr -d "'\""; }

# make PYTHON ROOT
make() {
    local python=$1 root=$2 work=$2.new reason output
    [[ $(uname -m) == x86_64 ]] || die "the packages in tests/python/requirements.txt are for x86-64"
    rm -rf "$work" "$root"
    mkdir -p "$work"
    output=$work/pip.log
    [[ ! -t 2 ]] || output=/dev/stderr
    note "fetching Python packages for the tests: numpy, scikit-learn, jax, nanobind, an S3 server, and a language model to load (about 310 MB, 1 GB installed) ..."
    # An environment cannot be moved, so the mark that it is complete comes last.
    if ! "$python" -m venv "$root" >>"$work/pip.log" 2>&1 ||
        ! "$root/bin/python" -m pip install --no-input --no-cache-dir --disable-pip-version-check --retries 1 --no-deps \
            --only-binary=:all: --require-hashes -r "$requirements" >>"$output" 2>>"$work/pip.log" </dev/null; then
        reason=$(why_not "$work/pip.log")
        cp "$work/pip.log" "$cache_dir/python.log"
        rm -rf "$root" "$work"
        die "the Python packages of tests/python/requirements.txt cannot be installed (${reason:-pip does not say why}); see $cache_dir/python.log"
    fi
    touch "$root/complete"
    rm -rf "$work"
}

main() {
    local only_path=0 python root
    [[ ${1:-} != --path ]] || { only_path=1 && shift; }
    (($# == 0)) || die "usage: environment.sh [--path]"

    python=$(usable_python)
    if [[ -z $python ]] && ((!only_path)); then
        "$lab_dir/packages.sh" python
        python=$(usable_python)
        [[ -n $python ]] || die "no Python of 3.11 to 3.13 with venv and its headers is here; GPURX_PYTHON can name one"
    fi
    [[ -n $python ]] || return 0
    root=$(root_for "$python")
    if [[ ! -e $root/complete ]]; then
        ((!only_path)) || return 0
        lock python
        # Another run may have made it while this one waited.
        [[ -e $root/complete ]] || make "$python" "$root"
    fi
    printf '%s\n' "$root"
}

main "$@"
