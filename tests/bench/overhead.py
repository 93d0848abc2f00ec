#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench overhead`: guest instructions per fragment of gpurx against a hand-written C loop on the same traffic."""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from report import Bar, Report, Table

LIMIT_RATIO = {"stock": {"queued": 1.00, "paced": 1.05}, "branch": {"queued": 1.00, "paced": 1.08}}
CALLS = {"receive_calls": "recvmsg", "release_calls": "setsockopt", "allocations": "allocations"}
ROOT = Path(__file__).resolve().parents[2]


def run_in_lab(program: Path, kernel: str, rounds: int) -> str:
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--timeout", "900", "--", str(program),
               str(rounds)]
    print(f"overhead: {rounds} rounds in the lab, about {60 + 12 * rounds} s", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"overhead: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    return done.stdout


def parse(output: str) -> dict[tuple[str, str], list[dict[str, int]]]:
    names = ("instructions", "fragments", "receive_calls", "release_calls", "allocations")
    samples: dict[tuple[str, str], list[dict[str, int]]] = defaultdict(list)
    for line in output.splitlines():
        fields = line.split()
        if fields[:1] == ["sample"] and len(fields) == 3 + len(names):
            samples[fields[2], fields[1]].append(dict(zip(names, map(int, fields[3:]))))
    return samples


def median(samples: list[dict[str, int]], name: str) -> float:
    return statistics.median(sample[name] for sample in samples)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench overhead", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    parser.add_argument("--kernel", choices=["stock", "branch"], default="stock")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    rounds, kernel = arguments.rounds, arguments.kernel
    samples = parse(run_in_lab(arguments.program, kernel, rounds))
    name = "overhead" if kernel == "stock" else f"overhead-{kernel}"
    report = Report(name, {"rounds": rounds, "bytes": 8 << 20, "kernel": kernel, "exact": True})
    per_fragment: dict[str, list[list[float]]] = {"C loop": [], "gpurx": []}
    calls: dict[str, list[list[int]]] = {}
    for traffic in ("queued", "paced"):
        if len(samples[traffic, "c"]) != rounds or len(samples[traffic, "gpurx"]) != rounds:
            sys.exit(f"overhead: samples are missing for {traffic}")
        # Fragments of the C loop are what the kernel delivered; gpurx may have joined neighbours.
        fragments = median(samples[traffic, "c"], "fragments")
        cost = {loop: median(samples[traffic, loop], "instructions") / fragments for loop in ("c", "gpurx")}
        for name, mine in (("C loop", samples[traffic, "c"]), ("gpurx", samples[traffic, "gpurx"])):
            per_fragment[name].append([sample["instructions"] / fragments for sample in mine])
            calls[f"{traffic}: {name}"] = [[sample[one] for sample in mine] for one in ("fragments", *CALLS)]
        report.bar(Bar(f"{traffic}: gpurx / C loop", cost["gpurx"] / cost["c"], "x",
                       LIMIT_RATIO[kernel][traffic]))
        report.bar(Bar(f"{traffic}: allocations while receiving", median(samples[traffic, "gpurx"], "allocations"),
                       "", 0))
    report.table(Table("Guest instructions per fragment", ["queued", "paced"], per_fragment, drawn=2, emulated=True))
    report.table(Table("Calls", ["fragments", *CALLS.values()], calls, emulated=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
