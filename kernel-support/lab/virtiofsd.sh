#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of a virtiofsd: Debian 13's, fetched once and unpacked. It needs no rights, and can serve a directory
# read-only; the one of Debian 12 cannot.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

suite=trixie
directory=$cache_dir/virtiofsd
program=$directory/usr/libexec/virtiofsd

lock virtiofsd
if [[ ! -e $directory/complete ]]; then
    note "fetching virtiofsd (1 MB) ..."
    rm -rf "$directory"
    read_index "$suite"
    unpack_packages "$suite" "$directory" virtiofsd
    make_runnable "$suite" "$program"
    "$program" --version >&2 || die "virtiofsd does not run on this machine"
    touch "$directory/complete"
fi
printf '%s\n' "$program"
