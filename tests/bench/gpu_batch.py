#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench overhead`, the part without a lab: what a batch of a read into a GPU's memory asks of the CUDA driver.

With the fake driver, in this process. With valgrind, also the instructions of gpurx outside of it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Bar, Report, Table

READS = 20
# About its destination, once.
CALLS_PER_READ = 7
# And one more, whether the GPU is done with a block of descriptors, if that is behind by all the blocks there are.
CALLS_PER_BATCH = 7 + 1
# What a batch does for the GPU's sake; what it does to receive is in the other rows.
MEASURED = ("gather_on_gpu", "when_passed", "mark")


def run(command: list[str]) -> dict[str, int]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu_batch: {command[0]} failed (exit code {done.returncode})")
    return {" ".join(fields[:-1]): int(fields[-1]) for fields in map(str.split, done.stdout.splitlines())}


def outside_driver(profile: Path) -> int:
    """Of a callgrind profile: all instructions, less those of calls into the fake driver."""
    names: dict[str, str] = {}

    def is_driver(text: str) -> bool:
        number, _, name = text.partition(" ")
        return "libcuda" in names.setdefault(number, name)

    total = 0
    here = there = False  # in the driver: the function that the lines are of, and the one that it calls
    is_call = False
    for line in profile.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            here = there = is_driver(value)
        elif key == "cob":
            there = is_driver(value)
        elif key == "calls":
            is_call = True
        elif line[:1] in set("+-*0123456789"):
            cost = int(line.split()[1])
            if not is_call:
                total += cost
            elif there and not here:
                total -= cost
            if is_call:
                is_call, there = False, here
    return total


def instructions(program: Path, reads: int) -> tuple[int, dict[str, int]]:
    """Outside the driver, and for what."""
    with tempfile.TemporaryDirectory() as directory:
        profile = Path(directory) / "profile"
        toggles = [f"--toggle-collect=gpurx::detail::{name}(*" for name in MEASURED]
        counts = run(["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={profile}", *toggles,
                      str(program), str(reads)])
        return outside_driver(profile), counts


def add_instructions(program: Path, report: Report) -> None:
    """What comes once, and what comes before the count begins, is the same however many reads there are."""
    (few, of_few), (many, of_many) = instructions(program, READS), instructions(program, 3 * READS)
    report.table(Table("GPU: outside the driver", ["instructions"],
                       {f"per {unit}": [(many - few) / (of_many[units] - of_few[units])]
                        for unit, units in (("batch", "batches"), ("fragment", "fragments"))}))


def main() -> int:
    program = Path(sys.argv[1])
    if not program.exists():
        print("gpu_batch: left out: this gpurx was built without CUDA")
        return 0
    counts = run([str(program), str(READS)])
    batches = counts["batches"]
    calls = {name.removeprefix("call "): count / batches for name, count in counts.items() if name.startswith("call ")}
    report = Report("overhead-gpu", {"reads": READS, "driver": "fake"})
    report.table(Table("GPU: call of the driver", ["per batch"], {name: [count] for name, count in sorted(calls.items())}))
    per_batch = sum(calls.values()) - CALLS_PER_READ * counts["reads"] / batches
    report.bar(Bar("GPU: calls of the driver per batch, beside those of its read", per_batch, "", CALLS_PER_BATCH))
    report.bar(Bar("GPU: events recorded per batch", calls["cuEventRecord"], "", 1))
    report.bar(Bar("GPU: allocations per batch", counts["allocations"] / batches, "", 0))
    if shutil.which("valgrind") is None:
        print("GPU: instructions are left out: valgrind is not on this machine")
    else:
        add_instructions(program, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
