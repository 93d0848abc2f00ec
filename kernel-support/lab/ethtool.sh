#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print a directory for the front of PATH with an ethtool that knows `-G DEVICE tcp-data-split`: nothing where this
# machine's does, else Debian 13's, fetched once and unpacked. Debian 12's does not.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

# Read whole: a writer whose reader leaves fails.
help=$(/usr/sbin/ethtool --help 2>/dev/null || true)
[[ $help != *tcp-data-split* ]] || exit 0
program=$(program_of trixie ethtool usr/sbin/ethtool)
printf '%s\n' "${program%/*}"
