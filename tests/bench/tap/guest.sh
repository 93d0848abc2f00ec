#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: the measurements, then the system calls of gpurx-doctor tap as it opens.
#
#   guest.sh PROGRAM DOCTOR REPEATS WINDOWS
set -euo pipefail

program=$1 doctor=$2 repeats=$3 windows=$4

"$program" binds 0 "$repeats"
"$program" binds 8 "$repeats"
((windows == 0)) || "$program" gaps "$windows"

if ! command -v strace >/dev/null; then
    "$program" calls
    exit
fi
trace=$(mktemp)
strace -o "$trace" -e trace=socket,setsockopt,bind "$doctor" tap dms0 --port 5000 --seconds 0.1 >/dev/null
sed -n '/AF_PACKET/,/^bind/s/^/trace /p' "$trace"
rm "$trace"
