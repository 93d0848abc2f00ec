#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
# Print the path of a virtiofsd: Debian 13's, fetched once and unpacked. It needs no rights, and can serve a directory
# read-only; the one of Debian 12 cannot.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=debian-packages.sh
. "$lab_dir/debian-packages.sh"

program_of trixie virtiofsd usr/libexec/virtiofsd
