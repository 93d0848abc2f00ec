#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print a directory for the front of PATH with an ethtool that knows `-G DEVICE tcp-data-split`: nothing where this
# machine's does, else Debian 13's, fetched once and unpacked. Debian 12's does not.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

suite=trixie
directory=$cache_dir/ethtool

if /usr/sbin/ethtool --help 2>/dev/null | grep -q tcp-data-split; then
    exit
fi
lock ethtool
if [[ ! -e $directory/complete ]]; then
    note "fetching ethtool (0.2 MB) ..."
    rm -rf "$directory"
    read_index "$suite"
    unpack_packages "$suite" "$directory" ethtool
    make_runnable "$suite" "$directory/usr/sbin/ethtool"
    "$directory/usr/sbin/ethtool" --version >&2 || die "Debian 13's ethtool does not run on this machine"
    touch "$directory/complete"
fi
printf '%s\n' "$directory/usr/sbin"
