#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `./run plot [FILE...]`: see plot.py, which needs matplotlib.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# The system's, which is not always the first python3 on the PATH.
/usr/bin/python3 -c 'import matplotlib' 2>/dev/null || "$root/kernel-support/lab/packages.sh" plot
exec /usr/bin/python3 "$root/tests/bench/plot.py" "$@"
