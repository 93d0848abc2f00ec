#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# gpurxd under systemd, which boots in the lab's guest, with the units as they are installed:
#   run.sh [UNITTEST-ARGUMENT...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernel-support/lab/packages.sh systemd
tests/build.sh gpurxd receive_file
rm -rf build/systemd
DESTDIR=$PWD/build/systemd cmake --install build/test --component gpurxd --prefix /usr/local >/dev/null
./run lab --kernel debian --modules --timeout 540 --append "init=$PWD/tests/systemd/init" -- tests/systemd/guest.py "$@"
