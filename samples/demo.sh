#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Receive a real file over TCP straight into device memory, in the lab, and check every byte.
#
#   demo.sh [FILE]     FILE: by default the kernel source archive that the lab fetched
#
# Exit status 0 means: what landed has the file's SHA-256, and the NIC put it into device memory (transport devmem).
set -euo pipefail

samples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=${samples%/*}
lab=$repo/kernel-support/lab
receive_file=$repo/build/release/samples/receive_file/receive_file
port=9000

say() { printf '%s\n' "$*" >&2; }
fail() {
    say "error: $*"
    exit 1
}

default_file() {
    local source
    source=$("$lab/kernel-source.sh")
    [[ -f $source ]] || fail "GPURX_KERNEL_SOURCE is a directory: name a file to receive, as ./run demo FILE"
    printf '%s\n' "$source"
}

# The CUDA compiler is worth its 100 MB only where the library would find a driver: it is looked for as the library does.
cuda() {
    if python3 -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
        "$repo/cmake/cuda-toolkit.sh" >/dev/null
    else
        say "no NVIDIA driver (libcuda.so.1) on this machine: a CUDA compiler is not fetched, and the demo needs none"
    fi
}

build() {
    "$lab/packages.sh" build kernel lab
    cuda
    say "building receive_file ..."
    mkdir -p "$repo/build"
    (
        cd "$repo"
        cmake --preset release
        cmake --build build/release --parallel "$(nproc)" --target receive_file
    ) >"$repo/build/demo-build.log" 2>&1 || {
        tail -n 40 "$repo/build/demo-build.log" >&2
        fail "the build failed: build/demo-build.log"
    }
}

# in_guest FILE SHA256: dms0 receives, the namespace "peer" at the other end of the wire sends.
in_guest() {
    local file=$1 expected=$2 receiver sender status=0
    "$receive_file" --listen "10.77.0.1:$port" --interface dms0 --transport devmem --expect-sha256 "$expected" &
    receiver=$!
    ip netns exec peer socat -u -b 1048576 STDIN "TCP:10.77.0.1:$port,retry=300,interval=0.1" <"$file" &
    sender=$!
    wait "$receiver" || status=$?
    # It has sent all, or nobody listens any more.
    kill "$sender" 2>/dev/null || true
    return "$status"
}

main() {
    local file size expected report status=0
    file=$(realpath -e -- "${1:-$(default_file)}") || fail "no such file: $1"
    [[ -f $file && -r $file ]] || fail "$file is not a file that can be read"
    size=$(stat -c %s -- "$file")
    build
    expected=$(sha256sum <"$file" | cut -d' ' -f1)
    say "sending ${file##*/}, $size bytes, SHA-256 $expected"

    report=$repo/build/demo-report.txt
    # Enough for 1 MB/s on a slow machine without KVM.
    "$lab/lab.sh" --timeout $((300 + size / 1000000)) -- "$samples/demo.sh" --in-guest "$file" "$expected" >"$report" ||
        status=$?
    cat "$report"
    ((status == 0)) || fail "the demo failed (exit status $status of the lab)"
    grep -q '^devmem: in use' "$report" || fail "the transport was not devmem"
    grep -q "^  in device memory *$size " "$report" ||
        say "note: not every byte came through device memory; the table says which way the others took"
    say "ok: $size bytes landed in device memory, and their SHA-256 is the file's"
}

if [[ ${1:-} == --in-guest ]]; then
    in_guest "$2" "$3"
else
    main "$@"
fi
