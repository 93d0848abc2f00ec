# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
# Sourced by lab.sh: what in a kernel log is a complaint.

complaint_patterns=(
    'BUG:' 'WARNING:' 'Oops' 'Kernel panic' 'general protection fault' 'unable to handle' 'kernel BUG at'
    'KASAN' 'UBSAN' 'ODEBUG' 'DMA-API:' 'refcount_t:' 'ref_tracker:' 'kmemleak:.*suspected memory leak' 'Memory manager not clean'
    'circular locking' 'recursive locking' 'inconsistent lock state' 'inconsistent .* usage' 'held lock freed' 'suspicious RCU usage'
    'lock held when returning to user space' 'bad unlock balance' 'sleeping function called' 'scheduling while atomic'
    'INFO: task .* blocked for more than' 'soft lockup' 'hard LOCKUP' 'self-detected stall' 'detected stalls' 'workqueue lockup'
    'list_(add|del) corruption' 'Bad page state' 'bad page' 'Object .*(overwritten|corrupt)' 'Poison overwritten' 'Slab .*corrupt'
    'unregister_netdevice: waiting' 'stalled pool shutdown' 'Leaked' 'nobody cared' 'Call Trace' 'Out of memory' 'page allocation failure'
)

# complaints LOG: print the lines of LOG that match a pattern and nothing in dmesg.allow. What follows the end that the
# time limit brought was asked for by the lab itself.
complaints() {
    local allowed
    allowed=$(grep -vE '^(#|$)' "$(dirname "${BASH_SOURCE[0]}")/dmesg.allow" || true)
    printf '%s\n' "${complaint_patterns[@]}" | grep -aE -f - <(sed '/lab: time limit/,$d' "$1") | { if [[ -n $allowed ]]; then grep -avE "$allowed"; else cat; fi; } || true
}

# first_complaint LOG: print the first of them with what follows it in LOG.
first_complaint() {
    local line
    line=$(complaints "$1" | head -n 1)
    grep -aF -m 1 -A 39 -- "$line" "$1"
}
