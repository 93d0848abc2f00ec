#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: the measurements, then the system calls of gpurx-doctor tap as it opens.
#
#   guest.sh PROGRAM DOCTOR REPEATS WINDOWS
set -euo pipefail

program=$1 doctor=$2 repeats=$3 windows=$4
tracer=$(dirname "${BASH_SOURCE[0]}")/../../tools/socket_calls.py

"$program" binds 0 "$repeats"
"$program" binds 8 "$repeats"
((windows == 0)) || "$program" gaps "$windows"

trace=$(mktemp)
python3 "$tracer" "$trace" "$doctor" tap dms0 --port 5000 --seconds 0.1 >/dev/null
sed 's/^/trace /' "$trace"
rm "$trace"
