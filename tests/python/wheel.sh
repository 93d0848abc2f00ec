#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The wheel as a user gets it: made, installed by pip, offline and without a compiler, into a fresh environment of each
# CPython that it is for, as far as cpython.sh has it, and used with nothing but the standard library beside it.
#
#   wheel.sh                      on loopback
#   wheel.sh --lab [KERNEL]       and then over devmem, in the lab's guest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh
. tests/python/layer.sh

# without_compiler VENV COMMAND...: with the programs of that environment alone on the PATH.
without_compiler() {
    local venv=$1
    shift
    env -i HOME="$work" PATH="$venv/bin" "$@"
}

# install VENV DEPENDENCIES
install() {
    local start=${EPOCHREALTIME/./} took
    without_compiler "$1" "$1/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-cache-dir \
        --no-index --find-links "$2" --find-links build/wheel --only-binary=:all: gpurx
    took=$((${EPOCHREALTIME/./} - start))
    printf '%s: installed in %d.%d s\n' "$("$1/bin/python" -V)" $((took / 1000000)) $((took / 100000 % 10))
}

# check_metadata ENVIRONMENT: an index of packages takes both files, and the wheel is for every CPython from 3.10 on.
check_metadata() {
    layer "$1" "$work/twine"
    "$1/bin/python" -m pip --python "$work/twine/bin/python" install --quiet --no-input --disable-pip-version-check \
        --no-deps --only-binary=:all: --require-hashes -r tests/python/twine.txt
    "$work/twine/bin/python" -m twine check --strict build/wheel/*
    compgen -G 'build/wheel/gpurx-*-cp310-abi3-manylinux_*.whl' >/dev/null || die "no wheel for every CPython from 3.10 on"
}

# as_on_another_system PLACE CERT COMMAND...: where those whom it trusts are at PLACE, and nothing is where Debian has it.
as_on_another_system() {
    local place=$1 certificate=$2
    shift 2
    # shellcheck disable=SC2016
    unshare --mount --map-root-user bash -c '
        set -e
        certificate=$(<"$2")
        mount -t tmpfs none /etc
        [[ ! -d /usr/lib/ssl ]] || mount -t tmpfs none /usr/lib/ssl
        if [[ $1 != nowhere ]]; then
            mkdir -p "${1%/*}"
            printf "%s\n" "$certificate" >"$1"
        fi
        exec "${@:3}"' _ "$place" "$certificate" "$@"
}

# check_authorities VENV: a wheel brings no list of its own, and finds that of each system.
check_authorities() {
    local venv=$1 place certificate=$work/cert.pem key=$work/key.pem
    if ! unshare --mount --map-root-user mount -t tmpfs none /mnt 2>/dev/null; then
        note "SKIP authorities of other systems: no mount namespace can be made here"
        return
    fi
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=here \
        -addext subjectAltName=IP:127.0.0.1 -keyout "$key" -out "$certificate" 2>/dev/null
    for place in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem \
        /etc/ssl/cert.pem /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem; do
        as_on_another_system "$place" "$certificate" \
            env -i PATH="$venv/bin" "$venv/bin/python" -I tests/python/in_wheel.py trusts "$certificate" "$key"
        printf 'authorities in %s: found\n' "$place"
    done
    as_on_another_system nowhere "$certificate" \
        env -i PATH="$venv/bin" "$venv/bin/python" -I tests/python/in_wheel.py refuses "$certificate" "$key"
    without_compiler "$venv" "$venv/bin/python" -I tests/python/in_wheel.py refuses "$certificate" "$key"
    without_compiler "$venv" SSL_CERT_FILE="$certificate" "$venv/bin/python" -I tests/python/in_wheel.py trusts "$certificate" "$key"
}

# over_devmem ENVIRONMENT KERNEL
over_devmem() {
    local venv=build/wheel-lab
    layer "$1" "$venv"
    "$1/bin/python" -m pip --python "$venv/bin/python" install --quiet --no-input --disable-pip-version-check --no-index \
        --no-deps --force-reinstall build/wheel/gpurx-*.whl
    tests/build.sh fake_cuda gpurxd >/dev/null
    ./run lab --kernel "$2" --timeout 600 -- env "LD_LIBRARY_PATH=$PWD/build/test/tests/fake_cuda" \
        "$PWD/$venv/bin/python" -u tests/python/in_lab.py build/test/framework/tools/gpurxd/gpurxd
}

main() {
    local environment asked version python why venv kernel='' tried=0
    if [[ ${1:-} == --lab ]]; then
        kernel=${2:-debian}
        shift $(($# > 1 ? 2 : 1))
    fi
    (($# == 0)) || die "usage: wheel.sh [--lab [KERNEL]]"
    work=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    ./run wheel
    environment=$(tests/python/environment.sh)
    asked=$(tests/python/dependencies.sh)
    check_metadata "$environment"
    tests/python/cpython.sh "${cpythons[@]}" >"$work/pythons"
    while read -r version python why; do
        if [[ $python == - ]]; then
            note "SKIP CPython $version: $why"
            continue
        fi
        venv=$work/venv-$((++tried))
        "$python" -m venv "$venv"
        install "$venv" "$asked"
        without_compiler "$venv" "$venv/bin/python" -I tests/python/in_wheel.py load
    done <"$work/pythons"
    ((tried > 0)) || die "none of CPython ${cpythons[*]} is to be had"
    check_authorities "$work/venv-1"
    [[ -z $kernel ]] || over_devmem "$environment" "$kernel"
}

main "$@"
