#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: one port steered to queue 3, receive windows of any size, and then the program.
#
#   guest.sh PROGRAM ARGUMENTS...
set -euo pipefail

port=9099

{
    # What TCP coalesces in its queue is regular; what GRO joins depends on when packets come.
    ethtool -K dms0 gro off
    ethtool -X dms0 equal 3
    ethtool -N dms0 flow-type tcp4 dst-port "$port" action 3
    sysctl -w net.core.rmem_max=$((1 << 30)) net.ipv4.tcp_mem="1000000 1000000 1000000"
    # A sender that has been idle would start with small packets.
    ip netns exec peer sysctl -w net.ipv4.tcp_slow_start_after_idle=0
} >/dev/null

exec "$@"
