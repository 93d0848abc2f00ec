#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""python3 -S measure.py PROGRAM...: runs a program without its output. Prints its CPU seconds, seconds and KiB of memory as JSON.

Linux counts the memory of the process that starts a program as the program's. This one has 10 MiB.
"""

import json
import os
import sys
import time

quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
start = time.monotonic()
child = os.posix_spawnp(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, used = os.wait4(child, 0)
print(json.dumps([used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss]))
sys.exit(status != 0)
