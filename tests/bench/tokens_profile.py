# SPDX-License-Identifier: Apache-2.0
"""`./run bench tokens --profile`: in which functions of the kernel the instructions are spent."""

import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from report import print_table
from tokens_lab import KINDS, NAMES, run_in_lab

CALLS = {"recvmsg": "recvmsg", "setsockopt": "SO_DEVMEM_DONTNEED"}

# Instructions per fragment, by system call and function
Profile = dict[tuple[str, str], float]


def profile(kernel: str, kind: str, program: Path) -> Profile:
    print(f"tokens: profile of {NAMES[kind]}, about 15 s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as directory:
        counts = Path(directory) / "counts"
        options = ["--profile", ",".join(CALLS), "--profile-to", str(counts)]
        output = "".join(run_in_lab(kernel, options, program, ["2", "profile", kind]))
        rows = [line.split() for line in counts.read_text().splitlines()]
    # All that is received is given back.
    fragments = sum(map(int, re.findall(r"^receive .* fragments=(\d+)", output, re.MULTILINE)))
    return {(call, function): int(instructions) / fragments for call, function, instructions, _ in rows}


def print_call(call: str, profiles: dict[str, Profile]) -> None:
    table: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(profiles, 0.0))
    for kind, one in profiles.items():
        for (of, function), value in one.items():
            if of == call:
                large = any(other.get((of, function), 0) >= 1 for other in profiles.values())
                table[function if large else "others"][kind] += value
                table["all"][kind] += value
    rows = [[function, *(f"{value:.1f}" for value in values.values())]
            for function, values in sorted(table.items(), key=lambda row: -max(row[1].values()))]
    print(f"\n{CALLS[call]}: instructions per fragment\n")
    print_table(["function", *(NAMES[kind] for kind in profiles)], rows)


def print_profile(kernels: list[str], program: Path) -> None:
    profiles = {kind: profile(kernel, kind, program) for kernel in kernels for kind in KINDS[kernel]}
    print("4 KiB pages, full fragments, 4 flows, 128 a call. All from the entry into the kernel to the return counts, "
          "interrupts too.")
    for call in CALLS:
        print_call(call, profiles)
