#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run gpu-bundle`: makes build/gpu-bundle, tests and benchmarks for a machine that has a GPU and nothing else: an
# NVIDIA driver on x86-64 Linux with glibc 2.36 or later. Its run.sh runs all of it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. kernel-support/lab/lib.sh

build=build/gpu
bundle=build/gpu-bundle
newest_glibc=2.36
most_mebibytes=60

# What every glibc has in it; the driver, which the programs look for by themselves, is not among what they link to.
of_glibc='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|libpthread|librt)\.so'

build_programs() {
    kernel-support/lab/packages.sh build tests cuda
    cmake/cuda-toolkit.sh >/dev/null
    cmake --preset gpu >/dev/null
    cmake --build "$build" --target gpu_tests gpu_bench gpurx-fetch >&2
}

# libraries FILE...: paths of the shared libraries they need, but for glibc's
libraries() {
    local name arrow path rest
    ldd "$@" | while read -r name arrow path rest; do
        [[ $arrow == '=>' && ! $name =~ $of_glibc ]] || continue
        [[ $path != not ]] || die "a program needs $name, which is missing"
        printf '%s\n' "$path"
    done | sort -u
}

assemble() {
    local path
    rm -rf "$bundle"
    mkdir -p "$bundle/lib"
    local -a programs=("$build/tests/gpu_tests" "$build/tests/gpu/bench/gpu_bench"
        "$build/samples/gpurx-fetch/gpurx-fetch" "$(tests/ingest/nginx.sh)")
    install -m 755 tests/gpu/run.sh tests/gpu/load.py "${programs[@]}" "$bundle"
    install -m 644 tests/gpu/claims.txt "$bundle"
    [[ ! -e tests/gpu/trace.txt ]] || install -m 644 tests/gpu/trace.txt "$bundle"
    libraries "${programs[@]}" | while IFS= read -r path; do
        install -m 755 "$(readlink -f "$path")" "$bundle/lib/${path##*/}"
    done
    strip --strip-all "$bundle/gpu_tests" "$bundle/gpu_bench" "$bundle/gpurx-fetch"
    strip --strip-unneeded "$bundle"/lib/*
}

binaries() { printf '%s\n' "$bundle"/{gpu_tests,gpu_bench,gpurx-fetch,nginx} "$bundle"/lib/*; }

# The Python package and its tests, where no CPython and nothing else is: python3 of the machine with the GPU has to have
# pytest and numpy.
assemble_python() {
    local wheel one
    framework/python/wheel.sh >&2
    mkdir -p "$bundle/python" "$bundle/python-tests"
    for wheel in build/wheel/gpurx-*.whl "$(tests/python/dependencies.sh)"/*.whl; do
        unzip -qo "$wheel" -d "$bundle/python"
    done
    for one in conftest cuda capsules ranges test_cuda test_on_gpu test_stream; do
        install -m 644 "tests/python/$one.py" "$bundle/python-tests"
    done
}

# The newest version of glibc that FILE asks for.
glibc_of() { objdump -T "$1" | grep -oE '\bGLIBC_[0-9.]+' | sort -uV | tail -n 1 | cut -d_ -f2; }

check_glibc() {
    local file version
    while IFS= read -r file; do
        version=$(glibc_of "$file")
        [[ $(printf '%s\n' "$version" "$newest_glibc" | sort -V | tail -n 1) == "$newest_glibc" ]] ||
            die "${file##*/} needs glibc $version, later than $newest_glibc: make the bundle on an older system"
        printf '%8d KiB  glibc >= %s  %s\n' $(($(stat -c %s "$file") / 1024)) "$version" "${file#"$bundle/"}"
    done < <(binaries)
}

# With nothing of this machine but glibc in reach.
check_libraries() {
    local program found
    for program in gpu_tests gpu_bench gpurx-fetch; do
        found=$(libraries "$bundle/$program" | grep -v "^$PWD/$bundle/lib/" || true)
        [[ -z $found ]] || die "$program takes libraries from outside the bundle: $found"
    done
}

main() {
    local mebibytes
    build_programs
    assemble
    assemble_python
    check_glibc
    check_libraries
    mebibytes=$(du -sm "$bundle" | cut -f1)
    ((mebibytes <= most_mebibytes)) || die "the bundle has $mebibytes MiB, more than $most_mebibytes"
    echo "$bundle: $mebibytes MiB; copy it to a machine with a GPU and run its run.sh"
}

main "$@"
