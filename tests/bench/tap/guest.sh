#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In the guest: the measurements, then the system calls of gpurx-doctor tap as it opens.
#
#   guest.sh PROGRAM DOCTOR REPEATS WINDOWS MILLISECONDS
set -euo pipefail

program=$1 doctor=$2 repeats=$3 windows=$4 length=$5
tracer=$(dirname "${BASH_SOURCE[0]}")/../../tools/socket_calls.py

for flows in 0 8; do
    "$program" binds "$flows" "$repeats"
done
if ((windows > 0)); then
    for flows in 1 8; do
        "$program" gaps "$flows" "$windows" "$length"
    done
fi

trace=$(mktemp)
python3 "$tracer" "$trace" "$doctor" tap dms0 --port 5000 --seconds 0.1 >/dev/null
sed 's/^/trace /' "$trace"
rm "$trace"
