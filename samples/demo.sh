#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Receive a real file over TCP straight into device memory, in the lab, and check every byte.
#
#   demo.sh [--kernel KERNEL] [--transport TRANSPORT] [FILE]
#
# FILE: by default the image of the kernel that the guest boots. KERNEL: as ./run lab takes it, by default Debian's own.
# With 'branch', array tokens return the pages, and the demo compares the cost with Debian's kernel.
# TRANSPORT: devmem (default) or zcrx.
#
# Exit status 0: the received bytes have the file's SHA-256, and the NIC wrote them into device memory (transport devmem or zcrx).
set -euo pipefail

samples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=${samples%/*}
# shellcheck source=../kernel-support/lab/lib.sh
. "$repo/kernel-support/lab/lib.sh"
# tests/lab/smoke.sh names its own.
receive_file=${GPURX_RECEIVE_FILE:-$repo/build/demo/samples/receive_file/receive_file}
tokens_bench=$repo/build/demo/tests/bench/tokens/tokens_bench
log=$repo/build/demo.log
port=9000

parts=()
# stage NAME COMMAND...: run COMMAND with its output in the log, and say in one line how long it takes.
stage() {
    local name=$1 start=$SECONDS status=0
    shift
    "$@" >>"$log" 2>&1 </dev/null &
    wait_for "$name" $! || status=$?
    note "$(printf '%-58s %4d s' "$name" $((SECONDS - start)))"
    parts+=("$((SECONDS - start)) s $name")
    if ((status != 0)); then
        tail -n 40 "$log" >&2
        die "$name: failed (exit status $status); the whole log is build/demo.log"
    fi
}

# The CUDA compiler is worth its 100 MB only if the library would find a GPU. Searches as the library does.
cuda() {
    local found
    if found=$(python3 "$repo/tests/gpu/has_gpu.py"); then
        "$repo/cmake/cuda-toolkit.sh" >/dev/null
    else
        note "$found: the demo does not fetch a CUDA compiler, and needs none"
    fi
}

compile() {
    local targets=(receive_file)
    [[ $kernel != branch ]] || targets+=(tokens_bench)
    cd "$repo"
    cmake --preset demo
    cmake --build build/demo --parallel "$(nproc)" --target "${targets[@]}"
}

# Fetches QEMU and the kernel, or builds a kernel of this project, while the library compiles.
prepare_lab() {
    "$lab_dir/packages.sh" module lab
    "$lab_dir/lab.sh" --kernel "$kernel" --prepare
}

compile_and_prepare() {
    local lab_log=$repo/build/demo-lab.log status=0 lab_pid
    prepare_lab >"$lab_log" 2>&1 &
    lab_pid=$!
    compile || status=$?
    wait "$lab_pid" || status=$?
    cat "$lab_log"
    return "$status"
}

# in_guest FILE SHA256: dms0 receives, the namespace "peer" at the other end of the wire sends.
in_guest() {
    local file=$1 expected=$2 transport=$3 receiver sender status=0
    "$receive_file" --listen "10.77.0.1:$port" --interface dms0 --transport "$transport" --expect-sha256 "$expected" &
    receiver=$!
    ip netns exec peer socat -u -b 1048576 STDIN "TCP:10.77.0.1:$port,retry=300,interval=0.1" <"$file" &
    sender=$!
    wait "$receiver" || status=$?
    # The sender has sent all bytes, or the receiver has ended.
    kill "$sender" 2>/dev/null || true
    return "$status"
}

# receive FILE SHA256 REPORT. The time is enough for 1 MB/s on a slow machine without KVM.
receive() {
    "$lab_dir/lab.sh" --kernel "$kernel" --timeout $((300 + $(stat -c %s -- "$1") / 1000000)) -- \
        "$samples/demo.sh" --in-guest "$1" "$2" "$transport" >"$3"
}

# cost_of_tokens KERNEL KIND RESULT: writes a line with the cost of a received page in system calls: the instructions to
# receive it, and to return it. Pages of 4 KiB, 128 a call; the guest's clock counts instructions.
cost_of_tokens() {
    "$lab_dir/lab.sh" --kernel "$1" --exact --hugepages 112 --timeout 600 -- \
        "$repo/tests/bench/tokens/guest.sh" "$tokens_bench" 1 profile "$2" >"$3.log"
    # Takes the last round: the first warms up.
    sed -n 's/^\(receive\|release\) .* round=1 .*instructions=\([0-9]*\) fragments=\([0-9]*\) .*/\1 \2 \3/p' "$3.log" |
        awk '{instructions[$1] += $2; pages[$1] += $3}
            END {if (!pages["release"]) exit 1; for (call in pages) cost[call] = instructions[call] / pages[call]
                printf "%.0f %.0f\n", cost["receive"], cost["release"]}' >"$3"
}

# compare_tokens: measures Debian's kernel and the branch
compare_tokens() {
    cost_of_tokens debian stock "$repo/build/demo-tokens-debian" &&
        cost_of_tokens branch owner "$repo/build/demo-tokens-branch"
}

print_tokens() {
    local receive release kernel
    note "
Instructions of the kernel for each received page of 4 KiB (each kernel has its own configuration; ./run bench tokens compares
kernels with one configuration):"
    for kernel in debian branch; do
        read -r receive release <"$repo/build/demo-tokens-$kernel"
        note "$(printf '  %-42s%6s to receive it, %6s to return it' \
            "$([[ $kernel == debian ]] && echo "Debian's kernel, as it is" || echo 'the branch, array tokens')" "$receive" "$release")"
    done
}

# conclude FILE SIZE REPORT RELEASE: prints the result and further commands.
conclude() {
    local file=$1 size=$2 report=$3 release=$4 part
    cat "$report"
    note "
ok: ${file##*/}, $size bytes, came over TCP and landed in device memory; their SHA-256 is the file's.
The NIC (software, in a guest with Linux $release) split each packet and wrote its payload into a dmabuf.
Neither the kernel nor the program copied it: the program got the position of the bytes, and returned the pages."
    [[ $kernel != branch ]] || print_tokens
    note "
It took $SECONDS s:"
    for part in "${parts[@]}"; do
        note "  $part"
    done
    note "
Next:
  build/demo/samples/receive_file/receive_file --listen 127.0.0.1:9000    on this machine, no lab: transport copy
  samples/README.md                                 gpurx-fetch (HTTP, S3), training_ingest, tensor_source
  ./run demo --kernel branch                        the same with array tokens (kernel-support/linux-7.3 has their savings)
  framework/python/README.md                        from Python"
}

main() {
    local file='' size expected release kernel_directory report=$repo/build/demo-report.txt
    while (($# > 0)); do
        case $1 in
            --kernel)
                (($# >= 2)) || die "--kernel needs a value"
                kernel=$2
                shift
                ;;
            --transport)
                [[ ${2:-} == devmem || ${2:-} == zcrx ]] || die "--transport needs devmem or zcrx"
                transport=$2
                shift
                ;;
            -h | --help)
                sed -n '3,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
                exit 0
                ;;
            -*) die "unknown option '$1': demo.sh [--kernel KERNEL] [--transport TRANSPORT] [FILE]" ;;
            *) file=$1 ;;
        esac
        shift
    done
    if [[ -n $file ]]; then
        file=$(realpath -e -- "$file") || die "no such file"
        [[ -f $file && -r $file ]] || die "$file is not a readable file"
    fi
    mkdir -p "$repo/build"
    : >"$log"

    "$lab_dir/packages.sh" build
    # In the background, sudo's question for a password would be invisible.
    ((EUID == 0)) || sudo -n true 2>/dev/null || "$lab_dir/packages.sh" module lab
    cuda
    stage "compile receive_file and the library; fetch the lab's kernel" compile_and_prepare
    kernel_directory=$("$lab_dir/kernel.sh" "$kernel")
    release=$(cat "$kernel_directory/release" 2>/dev/null || echo "7.3 ('$kernel')")
    [[ -n $file ]] || file=$(realpath -e -- "$kernel_directory/vmlinux")
    size=$(stat -c %s -- "$file")
    expected=$(sha256sum <"$file" | cut -d' ' -f1)
    stage "boot the lab, send $(numfmt --to=iec-i "$size")B, receive them into device memory" receive "$file" "$expected" "$report"

    grep -q "^$transport: in use" "$report" || die "the transport was not $transport"
    grep -q "^  in device memory *$size " "$report" ||
        note "note: not every byte came through device memory; the table shows the paths of the others"
    [[ $kernel != branch ]] || stage "measure the cost of returned pages on both kernels" compare_tokens
    conclude "$file" "$size" "$report" "$release"
}

kernel=debian
transport=devmem
if [[ ${1:-} == --in-guest ]]; then
    in_guest "$2" "$3" "$4"
else
    main "$@"
fi
