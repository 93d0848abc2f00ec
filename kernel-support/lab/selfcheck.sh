#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Check the lab itself: that it hands on what the command says, and that nothing bad passes for good.
#
#   selfcheck.sh [--kernel KERNEL] [CHECK...]          KERNEL as lab.sh takes it; all checks by default, see the end
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel=debian
[[ ${1:-} != --kernel ]] || { kernel=$2 && shift 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0

lab() { "$lab_dir/lab.sh" --kernel "$kernel" --no-nic "$@"; }

# check NAME CONDITION...: count and print one result.
check() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
        printf 'ok    %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s   (%s)\n' "$name" "$*"
    fi
}

# run NAME LAB-ARGUMENTS...: run in the lab; leaves the files out and err, and the variable status.
run() {
    status=0
    lab "$@" >"$work/out" 2>"$work/err" || status=$?
}

is() { [[ $1 == "$2" ]]; }
says() { grep -qF -- "$2" "$work/$1"; }

check_status() {
    local wanted
    for wanted in 0 7; do
        run --timeout 60 -- bash -c "exit $wanted"
        check "exit status $wanted comes through" is "$status" "$wanted"
    done
    run --timeout 60 -- no-such-command
    check "a command that is not there: 127" is "$status" 127
    check "... and the shell says so" says err "no-such-command"
}

check_usage() {
    run --timeout never -- true
    check "an option that makes no sense: 125" is "$status" 125
    run --kernel no-such-kernel -- true
    check "a kernel that does not exist: 125" is "$status" 125
}

check_output() {
    local lines=200000 wanted
    wanted=$(seq "$lines" | sha256_of_text)
    run --timeout 120 -- bash -c "seq $lines; seq $lines | rev >&2; printf 'no newline'"
    check "$lines lines on stdout, complete and in order" is "$(head -n "$lines" "$work/out" | sha256_of_text)" "$wanted"
    check "a last line without a newline" is "$(tail -n 1 "$work/out")" "no newline"
    check "$lines lines on stderr, complete and in order" \
        is "$(grep -v '^lab: ' "$work/err" | sha256_of_text)" "$(seq "$lines" | rev | sha256_of_text)"

    # shellcheck disable=SC2016  # that is the point
    run --timeout 60 -- printf '%s|' 'a b' '' "c'd" '$x' $'two\nlines'
    check "arguments arrive as they were" is "$(<"$work/out")" "a b||c'd|\$x|"$'two\nlines|'

    # shellcheck disable=SC2016  # the guest's shell expands it
    lab --timeout 60 -- bash -c 'for ((i = 0; i < 2000; i += 2)); do echo $i; echo $((i + 1)) >&2; done' >"$work/both" 2>&1 || true
    check "stdout and stderr into one file keep their order" is "$(grep -v '^lab: ' "$work/both")" "$(seq 0 1999)"

    local start=$SECONDS
    lab --timeout 100 -- bash -c 'while :; do seq 100000; done' 2>/dev/null | head -n 1 >"$work/out" || true
    check "a reader that leaves ends the guest" test $((SECONDS - start)) -lt 90

    run --timeout 60 -- bash -c 'echo done; sleep 1000 & exit 3'
    check "a process left in the background does not hold the guest" is "$status $(<"$work/out")" "3 done"
}

check_files() {
    run --timeout 60 -- bash -c "echo in the guest >'$work/file'; touch '$repo_dir/build/x' '$HOME/x'"
    check "the temporary directory is writable" is "$(cat "$work/file")" "in the guest"
    check "the rest is not" says err "Read-only file system"
    run --timeout 60 -- python3 -c 'import tempfile; tempfile.TemporaryFile().truncate(1 << 20)'
    check "a file without a name in TMPDIR changes its size" is "$status" 0
}

# state_of DIRECTORY: all that a write could change; attributes too change %C, the time of the last change.
state_of() { (cd "$1" && find . -printf '%p %y %m %u %s %T@ %C@\n' | sort && cat file); }

# The host's files are safe from the guest's root, with either way to share them: Debian's kernels have virtiofs, ours 9p.
check_read_only() {
    local shared=$repo_dir/build/lab-read-only kind before
    for kind in debian branch; do
        mkdir -p "$shared/directory"
        echo kept >"$shared/file"
        before=$(state_of "$shared")
        run --kernel "$kind" --timeout 60 -- "$lab_dir/guest/write-attempts.py" "$shared"
        check "$kind: the guest's root cannot change the host's files" is "$status $(<"$work/out")" "0 69 attempts"
        check "$kind: ... and has not" is "$(state_of "$shared")" "$before"
        rm -r "$shared"
    done
}

# A user without rights, with an empty cache: all of it is fetched anew. What the guest's root may change is what the
# user may.
check_user() {
    local home=$work/user name
    if (($(id -u) != 0)); then
        printf 'skip  a user without rights   (this is one)\n'
        return
    fi
    chmod 755 "$work"
    mkdir -p "$home/repo/build" "$home/tmp"
    for name in run kernel-support; do
        cp -a "$repo_dir/$name" "$home/repo/"
    done
    chown -R nobody: "$home"
    touch "$work/roots"
    status=0
    setpriv --reuid nobody --regid nogroup --clear-groups env -C "$home/repo" HOME="$home" XDG_CACHE_HOME="$home/cache" TMPDIR="$home/tmp" \
        ./run lab --timeout 60 -- bash -c "ping -c 1 10.77.0.2 && id -u >'$home/tmp/file'; echo x >>'$home/run'; echo x >>'$work/roots'" \
        >"$work/out" 2>"$work/err" || status=$?
    check "a user without rights has a lab" says out "1 received"
    check "... writes to the temporary directory" is "$(cat "$home/tmp/file")" 0
    check "... as that user" is "$(stat -c %U "$home/tmp/file")" nobody
    check "... and nowhere else" is "$(stat -c %s "$work/roots") $(ls "$home")" "0 cache"$'\n'"repo"$'\n'"tmp"
}

check_limit() {
    local start=$SECONDS
    run --timeout 15 -- bash -c 'echo before; sleep 1000'
    check "a command that hangs: 124" is "$status" 124
    check "... its output so far is there" says out before
    check "... and the message" says err "time limit of 15 s"
    check "... and who waits" says err ": sleep 1000"
    check "... and where" says err "nanosleep"
    check "... soon after the limit" test $((SECONDS - start)) -lt 60

    # What would end the command in the guest is stopped too: only ending QEMU helps.
    run --timeout 15 -- bash -c 'kill -STOP -1; exec sleep 1000'
    check "a guest whose init does not answer: 124" is "$status" 124
}

check_complaints() {
    run --timeout 60 -- bash -c 'echo "BUG: test" >/dev/kmsg'
    check "a kernel that complains fails a run that succeeded" is "$status" 125
    check "... the line is shown" says err "BUG: test"
    check "... and the log is named" says err "boot.log"
    run --timeout 60 -- bash -c 'echo "WARNING: test" >/dev/kmsg; exit 9'
    check "the status of a command that failed comes first" is "$status" 9
    check "... the line is shown" says err "WARNING: test"
    run --timeout 60 -- bash -c 'echo c >/proc/sysrq-trigger'
    check "a panic: 125" is "$status" 125
    check "... and the reason is shown" says err "sysrq triggered crash"
}

# The kernel tree's tests call it a success when all was skipped, as on a device that has none of what they test.
check_skips() {
    status=0
    "$lab_dir/run-selftests.sh" --kernel "$kernel" stats:check_fec_hist >"$work/out" 2>"$work/err" || status=$?
    check "a kernel test that was skipped has failed" is "$status" 1
    check "... and is shown as skipped" says out "check_fec_hist was skipped"
}

check_modules() {
    [[ $kernel == debian* ]] || { printf 'skip  modules   (%s has everything built in)\n' "$kernel" && return; }
    run --timeout 60 -- ip link add type dummy
    check "a kernel of Debian without its modules lacks what is one" is "$status" 2
    run --modules --timeout 60 -- ip link add type dummy
    check "... and has it with them" is "$status" 0
}

check_faults() {
    status=0
    "$lab_dir/lab.sh" --kernel "$kernel" --timeout 60 faults drop=3 -- \
        bash -c 'head -c 100000 /dev/zero | ip netns exec peer socat -u - TCP:10.77.0.1:9,retry=9 & socat -u TCP-LISTEN:9 - | wc -c' \
        >"$work/out" 2>"$work/err" || status=$?
    check "a command under faults gets its bytes" is "$status $(<"$work/out")" "0 100000"
    check "... and it is told how often one has hit" grep -qE '^dms0 +drop +3 +[1-9]' "$work/err"
    status=0
    "$lab_dir/lab.sh" --kernel "$kernel" --timeout 60 faults no_such=1 >"$work/out" 2>"$work/err" || status=$?
    check "a fault that does not exist: 2" is "$status" 2
    check "... and those that do are named" says err "drop duplicate reorder"
}

check_profile() {
    local file
    run --profile getrandom,newuname --timeout 120 -- python3 -c 'import os
for _ in range(1000): os.getrandom(8)
for _ in range(300): os.uname()'
    check "a profile shows functions of a system call" grep -qE '^ +[0-9]+ in [a-z_0-9]+, entered [0-9]+ times' "$work/err"
    # Looked for in the file: what an interrupt in the midst of a call leads to may fill the lines that are shown.
    file=$repo_dir/$(sed -n 's/^lab: every function: //p' "$work/err")
    check "... it has counted them" grep -qE '^getrandom __x64_sys_getrandom [0-9]+ 10[0-9][0-9]$' "$file"
    check "... each call on its own, and of the command alone" grep -qE '^newuname __(do|x64)_sys_newuname [0-9]+ 3[01][0-9]$' "$file"
    run --profile no_such_call --timeout 60 -- true
    check "a system call that does not exist: 125" is "$status" 125
    check "... and it is named" says err "no system call 'no_such_call'"
}

check_gdb() {
    local lab symbols socket
    command -v gdb >/dev/null || { printf 'skip  gdb   (it is not installed)\n' && return; }
    lab --gdb --timeout 120 -- cat /proc/net/dev >"$work/out" 2>"$work/err" &
    lab=$!
    until says err "waiting for gdb" || ! kill -0 "$lab" 2>/dev/null; do sleep 0.2; done
    symbols=$(sed -n "s/.*gdb \(.*\) -ex 'target remote .*/\1/p" "$work/err")
    socket=$(sed -n "s/.*-ex 'target remote \(.*\)'/\1/p" "$work/err")
    timeout 100 gdb -batch -nx "$symbols" -ex "target remote $socket" -ex "hbreak dev_get_stats" -ex continue -ex "bt 1" -ex delete \
        -ex detach </dev/null >"$work/gdb" 2>&1 || true
    status=0
    wait "$lab" || status=$?
    check "a debugger stops the kernel by a function's name" grep -qE '^#0 .* in dev_get_stats' "$work/gdb"
    check "... and lets it go on" is "$status" 0
}

# start_long: a lab in the background that runs for long; leaves its process in `pid` and its QEMU's in `guest`.
start_long() {
    : >"$work/out"
    # A shell ignores SIGINT in what it starts in the background; a terminal's Ctrl-C meets no such thing.
    python3 -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$lab_dir/lab.sh" --kernel "$kernel" --no-nic --timeout 120 -- \
        bash -c 'echo started; sleep 1000' >"$work/out" 2>"$work/err" &
    pid=$!
    until says out started || ! kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    guest=$(pgrep -P "$pid" qemu)
}

gone() {
    local tries
    for ((tries = 0; tries < 50; tries++)); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}

check_interrupt() {
    local pid guest status before
    before=$(pgrep -P 1 virtiofsd || true)
    start_long
    status=0
    kill -INT "$pid"
    wait "$pid" || status=$?
    check "interrupted: 130" is "$status" 130
    check "... and QEMU is gone" gone "$guest"
    start_long
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    check "a lab that is killed takes its QEMU along" gone "$guest"
    check "... and what served it files" is "$(pgrep -P 1 virtiofsd || true)" "$before"
}

# On a terminal a shell; what is typed while the guest still boots is for it.
# shellcheck disable=SC2016  # the guest's shell expands it
check_terminal() {
    status=0
    timeout 90 python3 -c 'import os, pty, sys
pid, terminal = pty.fork()
if not pid:
    os.execv(sys.argv[1], sys.argv[1:])
os.write(terminal, b"echo it is $((6 * 7))\nuname -n\nexit 5\n")
try:
    while data := os.read(terminal, 65536):
        os.write(1, data)
except OSError:
    pass  # Linux says so when the other end is closed
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))' "$lab_dir/lab.sh" --kernel "$kernel" --no-nic >"$work/out" 2>"$work/err" || status=$?
    check "a shell on a terminal gets what was typed before its prompt" says out "it is 42"
    check "... it runs in the guest" grep -q '^lab' "$work/out"
    check "... and its exit status comes through" is "$status" 5
}

checks=(status usage output files read_only user limit complaints interrupt terminal modules faults profile gdb skips)
(($# == 0)) || checks=("$@")
for name in "${checks[@]}"; do
    "check_$name"
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
