#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench copy`: what transport copy asks of the kernel and of the CUDA driver to receive into a GPU's memory.

With the fake driver, over loopback. Its counts are those on a GPU; CPU times have the fake driver's own work in them, so
they compare one gpurx with another only: `./run bench copy PROGRAM` measures the `copy_bench` of another one beside it.
"""

import statistics
import subprocess
import sys
from pathlib import Path

from report import Bar, Report, Table

ROUNDS = 5
MIB = 256
PACED = 1_000_000_000
# Of each of eight flows; to count under locks takes time.
LANES_MIB = 64
WAYS = {
    "async_read, 1 GB/s": ("read", MIB, PACED),
    "async_read, queued": ("read", MIB, 0),
    "async_receive, 1 GB/s": ("receive", MIB, PACED),
    "async_receive, queued": ("receive", MIB, 0),
    "async_read, 8 flows": ("lanes", LANES_MIB, 0),
    "async_read, 8 flows, a stream each": ("forked", LANES_MIB, 0),
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
    found = {name: [float(value) for value in values] for name, *values in lines}
    if way in ("lanes", "forked"):
        del found["CPU s, thread"]  # its thread waits for those of the flows
    return found


def bars(found: dict[str, dict[str, list[float]]]) -> list[tuple[str, float, float]]:
    def median(way: str, count: str) -> float:
        return statistics.median(found[way][count])

    read, receive = "async_read, 1 GB/s", "async_receive, 1 GB/s"
    loans = median(receive, "loans")
    return [
        (f"{read}: copies per GiB", median(read, "copies"), 2100),
        (f"{read}: recvs per GiB", median(read, "recvs"), 4100),
        (f"{read}: waits per GiB", median(read, "waits"), 1950),
        (f"{receive}: copies per loan", median(receive, "copies") / loans, 1.05),
        # The program's release_after records one for each.
        (f"{receive}: events per loan, without release_after", median(receive, "events recorded") / loans - 1, 1),
        ("pageable copies", max(max(found[way]["pageable copies"]) for way in WAYS), 0),
        ("calls of the driver under a lock of several flows", max(max(found[way]["under shared locks"]) for way in WAYS), 0),
    ]


def main() -> int:
    program = Path(sys.argv[1])
    if not program.exists():
        print("copy: left out: this gpurx was built without CUDA")
        return 0
    found = {name: run(program, *how) for name, how in WAYS.items()}
    if len(sys.argv) > 2:
        # It knows no fork, and takes the word for another way.
        known = {name: how for name, how in WAYS.items() if how[0] != "forked"}
        found |= {f"{name}, before": run(Path(sys.argv[2]), *how) for name, how in known.items()}
    report = Report("copy", {"driver": "fake", "MiB": MIB, "rounds": ROUNDS, "MiB of each of 8 flows": LANES_MIB})
    report.table(Table("Per GiB", COUNTS, {name: [of[count] for count in COUNTS] for name, of in found.items()}))
    report.table(Table("CPU seconds per GiB, and the rate", TIMES,
                       {name: [of.get(time) for time in TIMES] for name, of in found.items()}, drawn=2))
    for name, value, limit in bars(found):
        report.bar(Bar(name, value, "", limit))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
