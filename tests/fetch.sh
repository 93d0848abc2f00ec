#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches what the steps of `./run test` need beside a compiler: the lab with Debian's kernel, Python packages, nginx.
# What cannot be fetched is missed, and named, by the step that needs it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# Nobody sees sudo ask for a password in the background.
if ((EUID == 0)) || sudo -n true 2>/dev/null; then
    kernel-support/lab/packages.sh python module lab
fi
tests/python/environment.sh
kernel-support/lab/lab.sh --prepare
tests/ingest/nginx.sh
