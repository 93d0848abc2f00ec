#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: a NIC with room for so many rules, memory for so many flows, and then the program.
#
#   guest.sh MODULE.ko PROGRAM ARGUMENTS...
set -euo pipefail

module=$1
shift

rmmod devmemsim
ip netns del peer
"$(dirname "$0")/../../../kernel-support/lab/guest/network" "$module" rules=1100
echo 1024 >/sys/module/udmabuf/parameters/size_limit_mb
ulimit -n 8192

exec "$@"
