#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench copy`: what transport copy asks of the kernel and of the CUDA driver to receive into a GPU's memory.

With the fake driver, over loopback. Its counts are those on a GPU; CPU times have the fake driver's own work in them, so
they compare one gpurx with another only.
"""

import subprocess
import sys
from pathlib import Path

from report import Bar, Report, Table

ROUNDS = 9
MIB = 256
PACED = 1_000_000_000
# Eight flows of one stream; to count under locks takes time.
LANES_MIB = 64
WAYS = {
    "async_read, 1 GB/s": ("read", MIB, PACED),
    "async_read, queued": ("read", MIB, 0),
    "async_receive, 1 GB/s": ("receive", MIB, PACED),
    "async_receive, queued": ("receive", MIB, 0),
    "async_read, 8 flows": ("lanes", LANES_MIB, 0),
}
COUNTS = ["loans", "copies", "pageable copies", "events recorded", "events created", "recvs", "waits", "pauses",
          "under shared locks"]
TIMES = ["CPU s, process", "CPU s, thread", "GB/s"]


def run(program: Path, way: str, mib: int, rate: int) -> dict[str, list[float]]:
    command = [str(program), way, str(mib), str(rate), str(ROUNDS)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"copy: {' '.join(command)} failed (exit code {done.returncode})")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {name: [float(value) for value in values] for name, *values in lines}


def main() -> int:
    program = Path(sys.argv[1])
    if not program.exists():
        print("copy: left out: this gpurx was built without CUDA")
        return 0
    found = {name: run(program, *how) for name, how in WAYS.items()}
    report = Report("copy", {"driver": "fake", "MiB": MIB, "rounds": ROUNDS, "MiB of each of 8 flows": LANES_MIB})
    report.table(Table("Per GiB", COUNTS, {name: [of[count] for count in COUNTS] for name, of in found.items()}))
    report.table(Table("CPU seconds per GiB, and the rate", TIMES,
                       {name: [of[time] for time in TIMES] for name, of in found.items()}))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
