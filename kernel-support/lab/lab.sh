#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Run a command in the lab: a QEMU guest with a kernel of ours and the software NIC, whose root is this machine's file
# system, read-only. The command's output and exit status are the lab's own.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=dmesg.sh
. "$lab_dir/dmesg.sh"

# What goes wrong in the lab must not look like a failure of the command.
failure_status=125

# shellcheck disable=SC2016  # the user's shell expands it
usage='usage: ./run lab [OPTION...] [-- COMMAND [ARGUMENT...]]
       ./run lab [OPTION...] faults [DEVICE] [NAME=VALUE... [-- COMMAND [ARGUMENT...]]]

  --kernel KERNEL               the kernel of the guest (debian):
                                debian, debian-7.2, debian-experimental: as Debian ships it, nothing is compiled;
                                stock: the same source with the least that the lab needs; branch: with our series;
                                debug: the branch under KASAN, lockdep, kmemleak; kcsan: the branch under KCSAN;
                                fixes: the fixes alone, under lockdep;
                                rfc: the branch with prototypes; broken: the branch, any rule of which can be broken
  --timeout SECONDS             end the guest after this time (600)
  --cpus N                      (2; emulated with a kernel of Debian, or fixes, 1)
  --memory SIZE                 as QEMU takes it (2G; debug 4G)
  --hugepages N                 2 MiB pages set aside (96)
  --no-nic                      without the software NIC
  --prepare                     fetch, build and try all that the guest needs, and boot no guest
  --modules                     with the modules of a kernel of Debian (23 MB): it loads what it needs by itself
  --append ARGUMENTS            added to the command line of the kernel
  --gdb                         wait for a debugger, and say how to start it; without a time limit unless one is given
  --exact                       one CPU, and a clock that counts instructions: 1 ns is one instruction
  --profile CALL[,CALL...]      count the kernel'"'"'s instructions in these system calls by function; implies --exact
  --profile-to FILE             where to; with it no table is printed

Without a command, on a terminal: a shell in the guest, without a time limit. faults: a command under faults of the NIC
(kernel-support/devmemsim/README.md has them); without settings it lists them.

Environment: GPURX_LAB_ACCEL=kvm|tcg instead of a probe.

In the guest the directory ${TMPDIR:-/tmp} is writable and is the one of this machine; the rest of this machine is read-only. TMPDIR
is a directory of the guest'"'"'s own.

Exit status: that of the command; 124 when the time limit ended it; 125 when the lab failed, or when the kernel logged warnings
although the command succeeded.'

kernel=debian timeout='' cpus='' memory='' hugepages=96 append='' profile='' profile_to='' nic=1 modules=0 gdb=0 exact=0 interactive=0 prepare=0
command=()

parse() {
    local value
    while (($# > 0)); do
        case $1 in
            --exact) exact=1 ;;
            --no-nic) nic=0 ;;
            --modules) modules=1 ;;
            --prepare) prepare=1 ;;
            --gdb) gdb=1 ;;
            --kernel | --timeout | --cpus | --memory | --hugepages | --append | --profile | --profile-to)
                (($# >= 2)) || die "$1 needs a value"
                value=${1#--}
                printf -v "${value//-/_}" '%s' "$2"
                shift
                ;;
            -h | --help)
                printf '%s\n' "$usage"
                exit 0
                ;;
            --)
                shift
                command=("$@")
                break
                ;;
            faults)
                command=("$lab_dir/faults.sh" "${@:2}")
                break
                ;;
            *) die "unknown option '$1'"$'\n'"$usage" ;;
        esac
        shift
    done
    # Nobody waits for a shell or a debugger but who uses it.
    : "${timeout:=$( ((${#command[@]} && !gdb)) && echo 600 || echo 1000000)}"
    if ((${#command[@]} == 0 && !prepare)); then
        [[ -t 0 && -t 1 ]] || die "no command"$'\n'"$usage"
        interactive=1
        command=(/bin/bash)
    fi
    local name
    for name in timeout cpus hugepages; do
        [[ ${!name:-1} =~ ^[0-9]+$ ]] || die "--$name ${!name}: not a number"
    done
    ((timeout > 0 && ${cpus:-1} > 0)) || die "--timeout and --cpus must be at least 1"
    [[ -z $profile ]] || exact=1
    ((!exact)) || cpus=1
    [[ $profile =~ ^([a-z0-9_]+(,[a-z0-9_]+)*)?$ ]] || die "--profile $profile: system calls with commas between them"
    [[ -z $profile_to ]] || profile_to=$(realpath -m -- "$profile_to")
    ((!modules)) || [[ $kernel == debian* ]] || die "--modules is for the kernels of Debian; '$kernel' has everything built in"
    if [[ -z $memory ]]; then
        memory=2G
        [[ $kernel != debug ]] || memory=4G
    fi
}

# Those of the last twenty runs stay for reading. A run that still goes on has a lock on its directory.
remove_old_runs() {
    local old
    find "$repo_dir/build/lab" -mindepth 1 -maxdepth 1 -type d -printf '%f\n' | sort | head -n -20 | while read -r old; do
        flock -n "$repo_dir/build/lab/$old" rm -rf "$repo_dir/build/lab/$old" || true
    done
}

make_run_directory() {
    mkdir -p "$repo_dir/build/lab"
    run_dir=$(mktemp -d "$repo_dir/build/lab/$(date +%Y%m%d-%H%M%S)-XXXX")
    exec 6<"$run_dir"
    flock 6
    ln -sfn "${run_dir##*/}" "$repo_dir/build/lab/last" || true
    # Another lab may be removing the same ones.
    remove_old_runs 2>/dev/null || true
    : >"$run_dir/stdout"
    : >"$run_dir/stderr"
    mkfifo "$run_dir"/control.in "$run_dir"/control.out
}

# Where stdout and stderr are one file, one channel carries both, so that their order is kept.
one_output=0
[[ ! /dev/fd/1 -ef /dev/fd/2 ]] || one_output=1

write_job() {
    local module=$1 name
    {
        printf 'LAB_COMMAND=(%s)\n' "$(printf '%q ' "${command[@]}")"
        printf 'LAB_CWD=%q\n' "$PWD"
        printf 'LAB_GUEST_DIR=%q\n' "$lab_dir/guest"
        printf 'LAB_MODULE=%q\n' "$module"
        printf 'LAB_MODULES=%q\n' "$module_tree"
        printf 'LAB_HUGEPAGES=%q\n' "$hugepages"
        printf 'LAB_WRITABLE=%q\n' "$writable"
        printf 'LAB_TERMINAL=%q\n' "$( ((!interactive)) || stty size <&2)"
        printf 'LAB_ONE_OUTPUT=%d\n' "$one_output"
        [[ -z $ethtool ]] || local PATH=$ethtool:$PATH
        printf 'export PYTHONDONTWRITEBYTECODE=1 GPURX_LAB=%q\n' "$kernel"
        for name in PATH HOME TERM LANG LC_ALL "${!GPURX_@}" ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS LSAN_OPTIONS; do
            [[ ! -v $name || $name == GPURX_LAB ]] || printf 'export %s=%q\n' "$name" "${!name}"
        done
    } >"$run_dir/job"
}

# How the guest gets directories of this machine: Debian's kernels for virtual machines know virtiofs and no 9p, ours are
# built with 9p, which needs no process beside QEMU.
share_type() { case $kernel in debian*) printf virtiofs ;; *) printf 9p ;; esac; }

# share TAG PATH ro|rw: QEMU options that give PATH to the guest.
share() {
    local tag=$1 path=$2 readonly=''
    if [[ $(share_type) == virtiofs ]]; then
        printf '%s\n' -chardev "socket,id=$tag,path=$tag.sock" -device "vhost-user-fs-pci,chardev=$tag,tag=$tag"
    else
        [[ $3 == rw ]] || readonly=,readonly=on
        printf '%s\n' -fsdev "local,id=$tag,path=$path,security_model=none,multidevs=remap$readonly" \
            -device "virtio-9p-pci,fsdev=$tag,mount_tag=$tag"
    fi
}

# in_run_dir COMMAND...: become COMMAND, in the run's directory: the path of a socket has room for 107 characters, and this
# one may be long. With the death signal nothing outlives its lab, however that ends.
in_run_dir() {
    cd "$run_dir"
    exec setpriv --pdeathsig KILL -- "$@"
}

# serve TAG PATH OPTION...: start what answers the guest's virtiofs, and wait until it does; it ends with its QEMU.
serve() {
    local tag=$1 path=$2 server
    shift 2
    in_run_dir "$virtiofsd" --shared-dir "$path" --socket-path "$tag.sock" "$@" </dev/null >>"$run_dir/virtiofsd-$tag.log" 2>&1 &
    server=$!
    until grep -qs 'Waiting for vhost-user' "$run_dir/virtiofsd-$tag.log"; do
        if ! kill -0 "$server" 2>/dev/null; then
            wait "$server" || true
            return 1
        fi
        sleep 0.02
    done
    servers+=("$server")
}

# serve_confined TAG PATH: nothing but PATH can be reached, as far as this machine allows it: a container may not, a
# chroot does not. The guest's own kernel asks for nothing else in any case.
serve_confined() {
    local sandbox
    for sandbox in namespace chroot none; do
        if serve "$1" "$2" --cache never --allow-mmap --sandbox "$sandbox"; then
            return 0
        fi
    done
    return 1
}

# What others write to the root while the guest runs need not be seen there. It has no sandbox, for it is all there is.
start_servers() {
    [[ $(share_type) == virtiofs ]] || return 0
    if ! { serve root / --readonly --cache always --sandbox none && serve_confined lab "$run_dir" &&
        serve_confined writable "$writable"; }; then
        cat "$run_dir"/virtiofsd-*.log >&2
        lab_failed 125 "virtiofsd does not serve"
    fi
}

# The emulated CPU. Without ERMS and FSRM the kernel copies with plain moves: QEMU is three times as fast with them as with
# "rep movsb", a byte at a time. SMAP and SMEP make it check more; the debug kernel gets to use them.
emulated_cpu() {
    local features=max,la57=off,erms=off,fsrm=off
    [[ $kernel == debug ]] || features+=,smap=off,smep=off
    printf '%s' "$features"
}

# no_timer_check: where the host is busy the emulated timer can be too late for the kernel's test of it, which panics.
qemu_options() {
    local machine=q35 arguments=(root=root ro "init=$lab_dir/guest/init" "LAB_SHARE=$(share_type)" console=ttyS0 panic=-1 random.trust_cpu=1 no_timer_check "$append")
    [[ -z $symbols ]] || arguments+=(nokaslr)
    if [[ $(share_type) == virtiofs ]]; then
        arguments+=(rootfstype=virtiofs)
        machine+=,memory-backend=memory
        printf '%s\n' -object "memory-backend-memfd,id=memory,size=$memory,share=on"
    else
        arguments+=(rootfstype=9p "rootflags=trans=virtio,version=9p2000.L,msize=512000,cache=loose")
    fi
    printf '%s\n' -nodefaults -no-user-config -no-reboot -display none -m "$memory" -smp "$cpus" \
        -kernel "$kernel_dir/vmlinux" -append "${arguments[*]}" -serial "file:$run_dir/boot.log" \
        -device virtio-rng-pci -device virtio-serial-pci \
        -chardev "pipe,id=control,path=$run_dir/control" -device virtserialport,chardev=control
    [[ -z $profile ]] || printf '%s\n' -plugin "$plugin,map=$run_dir/names,out=${profile_to:-$run_dir/profile},calls=${profile//,/+}"
    ((!gdb)) || printf '%s\n' -S -gdb unix:gdb.sock,server=on,wait=off
    # A console of virtio, and not a serial port: keys that are typed before somebody reads them wait.
    ((!interactive)) || printf '%s\n' -chardev stdio,id=terminal,signal=off -device virtconsole,chardev=terminal
    share root / ro
    share lab "$run_dir" rw
    share writable "$writable" rw
    if ((exact)); then
        printf '%s\n' -machine "$machine" -accel tcg -cpu "$(emulated_cpu)" -icount shift=0,sleep=off
    elif [[ $accel == kvm ]]; then
        printf '%s\n' -machine "$machine" -accel kvm -cpu host
    else
        printf '%s\n' -machine "$machine" -accel tcg,thread=multi -cpu "$(emulated_cpu)"
    fi
}

# accelerator: print kvm, or tcg and why. A /dev/kvm may be there and still not run an ordinary guest: what counts is that one boots.
# The answer is kept until this machine boots again.
accelerator() {
    local answer
    if ((exact)); then
        printf 'tcg counting instructions\n'
    elif [[ -n ${GPURX_LAB_ACCEL:-} ]]; then
        [[ $GPURX_LAB_ACCEL == kvm || $GPURX_LAB_ACCEL == tcg ]] || die "GPURX_LAB_ACCEL=$GPURX_LAB_ACCEL: kvm or tcg"
        printf '%s\n' "$GPURX_LAB_ACCEL"
    elif [[ ! -e /dev/kvm ]]; then
        printf 'tcg no /dev/kvm\n'
    elif [[ ! -w /dev/kvm ]]; then
        printf 'tcg no permission to write to /dev/kvm\n'
    else
        answer=$cache_dir/kvm/$(cat /proc/sys/kernel/random/boot_id)
        if [[ ! -e $answer ]]; then
            mkdir -p "${answer%/*}"
            note "lab: testing /dev/kvm with a guest ..."
            if GPURX_LAB_ACCEL=kvm "$lab_dir/lab.sh" --kernel "$kernel" --no-nic --timeout 20 -- true >/dev/null 2>&1; then
                printf 'kvm\n' >"$answer"
            else
                printf 'tcg /dev/kvm does not run a guest here\n' >"$answer"
            fi
        fi
        cat "$answer"
    fi
}

describe() {
    local how=KVM
    [[ $accel == kvm ]] || how="emulation (${accel/tcg/TCG})"
    note "lab: kernel $kernel, $how, $cpus CPU(s), $memory, ${1:-no NIC}"
}

nic_module() {
    local source=$repo_dir/kernel-support/devmemsim
    ((nic)) || return 0
    if [[ ! -e $source/Kbuild && ! -e $source/Makefile ]]; then
        note "lab: this tree has no software NIC (${source#"$repo_dir/"}): the guest runs without it"
        return
    fi
    "$lab_dir/module.sh" "$kernel" "$source"
}

# prepare_profile: compile the plugin that counts, once, and write the names of the kernel's functions for it.
prepare_profile() {
    local id
    id=$({ cat "$lab_dir/profile.c"; gcc --version | head -n 1; } | sha256_of_text | cut -c1-16)
    plugin=$cache_dir/profile/$id.so
    if [[ ! -e $plugin ]]; then
        mkdir -p "${plugin%/*}"
        gcc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC "$lab_dir/profile.c" -o "$plugin.$$" || exit "$failure_status"
        mv "$plugin.$$" "$plugin"
    fi
    nm -n "$symbols" >"$run_dir/names"
}

# print_profile: where the instructions went. All of them, the start of the guest included, are in the file.
print_profile() {
    local call
    [[ -n $profile && -z $profile_to && -s $run_dir/profile ]] || return 0
    for call in ${profile//,/ }; do
        note "lab: instructions of the kernel in $call:"
        awk -v call="$call" '$1 == call {all += $3; print $3, $4, $2} END {print all + 0, "-", "all"}' "$run_dir/profile" |
            sort -rn | awk 'NR <= 20 {printf "%12s in %s, entered %s times\n", $1, $3, $2}' >&2
    done
    note "lab: every function: ${run_dir#"$repo_dir/"}/profile"
}

start_guest() {
    local options
    start_servers
    mapfile -t options < <(qemu_options)
    if ((interactive)); then
        # Descriptor 5 is the terminal; standard input of what runs in the background is not.
        in_run_dir qemu-system-x86_64 "${options[@]}" <&5 2>"$run_dir/qemu.log" &
    else
        in_run_dir qemu-system-x86_64 "${options[@]}" </dev/null >"$run_dir/qemu.log" 2>&1 &
    fi
    qemu=$!
    ((!gdb)) || note "lab: waiting for gdb: gdb ${symbols} -ex 'target remote ${run_dir#"$PWD/"}/gdb.sock'"
    tail -c +1 -s 0.05 --pid="$qemu" -f "$run_dir/stdout" &
    relays+=("$!")
    if ((!one_output)); then
        tail -c +1 -s 0.05 --pid="$qemu" -f "$run_dir/stderr" >&2 &
        relays+=("$!")
    fi
}

# wait_for_guest SECONDS: true when the guest has ended within that time. It is no use waiting on when nobody reads its output.
wait_for_guest() {
    local timer ended=0
    setpriv --pdeathsig KILL -- sleep "$1" &
    timer=$!
    wait -n "$qemu" "$timer" "${relays[@]}" || true
    if ! kill -0 "$qemu" 2>/dev/null; then
        ended=1
    elif kill -0 "$timer" 2>/dev/null && ((!interrupted)); then
        unread=1
    fi
    kill "$timer" 2>/dev/null || true
    ((ended))
}

supervise() {
    if ! wait_for_guest "$timeout" && ((!interrupted && !unread)); then
        timed_out=1
        # Read and write: opening does not wait for a QEMU that has just ended.
        echo stop 1<>"$run_dir/control.in"
        wait_for_guest 20 || true
    fi
    kill -KILL "$qemu" 2>/dev/null || true
    wait "$qemu" 2>/dev/null || true
    wait "${relays[@]}" || true
    ((${#servers[@]} == 0)) || kill "${servers[@]}" 2>/dev/null || true
    rm -f "$run_dir"/*.sock "$run_dir"/*.sock.pid
}

# Say why the guest is no answer, and where to read on.
lab_failed() {
    local status=$1
    shift
    note "lab: $*"
    note "lab: kernel log: ${run_dir#"$repo_dir/"}/boot.log"
    exit "$status"
}

report() {
    local log=$run_dir/boot.log status='' found
    ((!interrupted)) || exit 130
    ((!unread)) || exit 141
    found=$(complaints "$log")
    if [[ -n $found ]]; then
        note "lab: the kernel logged warnings:"
        first_complaint "$log" >&2
        note "lab: all such lines ($(wc -l <<<"$found")):"
        head -n 20 <<<"$found" >&2
    fi
    [[ ! -e $run_dir/status ]] || status=$(<"$run_dir/status")
    if ((timed_out)); then
        [[ ! -s $run_dir/waiting ]] || note "lab: processes of the guest:"$'\n'"$(head -n 80 "$run_dir/waiting")"
        lab_failed 124 "ended by the time limit of $timeout s"
    elif [[ -e $run_dir/trouble ]]; then
        lab_failed 125 "the guest could not be set up: $(<"$run_dir/trouble")"
    elif [[ -z $status ]]; then
        tail -n 20 "$log" >&2 || true
        cat "$run_dir/qemu.log" >&2
        lab_failed 125 "the guest ended before the command did"
    elif [[ -s $run_dir/kmemleak ]]; then
        head -n 60 "$run_dir/kmemleak" >&2
        lab_failed "$((status ? status : 125))" "the kernel found leaked memory (${run_dir#"$repo_dir/"}/kmemleak)"
    elif [[ -n $found ]]; then
        lab_failed "$((status ? status : 125))" "the kernel logged warnings (the command's status was $status)"
    fi
    exit "$status"
}

main() {
    parse "$@"
    "$lab_dir/packages.sh" lab || exit "$failure_status"
    kernel_dir=$("$lab_dir/kernel.sh" "$kernel") || exit "$failure_status"
    module=$(nic_module) || exit "$failure_status"
    ((!gdb)) && [[ -z $profile ]] || symbols=$("$lab_dir/symbols.sh" "$kernel") || exit "$failure_status"
    ((!modules)) || module_tree=$("$lab_dir/debian-kernel.sh" --modules "$kernel") || exit "$failure_status"
    ethtool=$("$lab_dir/ethtool.sh") || exit "$failure_status"
    accel=$(accelerator) || exit "$failure_status"
    [[ $(share_type) != virtiofs ]] || virtiofsd=$("$lab_dir/virtiofsd.sh") || exit "$failure_status"
    ((!prepare)) || return 0
    # Where it is emulated, a CPU now and then runs code that another has just rewritten, and the guest dies of an int3.
    # Our own configuration has no static keys for that reason; Debian's has, and "fixes" has kprobes.
    [[ -n $cpus ]] || cpus=$([[ ($kernel == debian* || $kernel == fixes) && $accel != kvm ]] && echo 1 || echo 2)
    writable=$(realpath -e -- "${TMPDIR:-/tmp}") || die "TMPDIR=$TMPDIR: no such directory"
    describe "${module:+dms0 and dms1}"
    make_run_directory
    write_job "$module"
    exec 5<&0
    trap 'interrupted=1; [[ -z $qemu ]] || kill "$qemu" 2>/dev/null' INT TERM HUP
    [[ -z $profile ]] || prepare_profile
    start_guest
    supervise
    print_profile
    report
}

kernel_dir='' module='' module_tree='' symbols='' plugin='' ethtool='' accel='' writable='' run_dir='' qemu='' relays=() servers=() virtiofsd='' interrupted=0 unread=0 timed_out=0
main "$@"
