#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench connect`: what one connection's life costs beside 1, 100 and 1,000 rules: calls, instructions, syncs."""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from report import Bar, Report, Table

CONNECTIONS = 10  # in a sample
STANDING = (1, 100, 1000)
MOST_SYNCS = 1
MOST_GROWTH = 1.1
NAMES = ("instructions", "ethtool", "netlink", "journal", "syncs")
ROOT = Path(__file__).resolve().parents[2]


def nic_module(kernel: str) -> str:
    lab = ROOT / "kernel-support"
    return subprocess.run([str(lab / "lab" / "module.sh"), kernel, str(lab / "devmemsim")], stdout=subprocess.PIPE,
                          text=True, check=True).stdout.strip()


def run_in_lab(program: Path, kernel: str, rounds: int) -> str:
    guest = Path(__file__).resolve().parent / "connect" / "guest.sh"
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--timeout", "900", "--", str(guest),
               nic_module(kernel), str(program), str(rounds), *map(str, STANDING)]
    print(f"connect: {rounds} rounds in the lab, some minutes", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"connect: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    return done.stdout


def parse(output: str) -> dict[int, list[dict[str, float]]]:
    samples: dict[int, list[dict[str, float]]] = defaultdict(list)
    for line in output.splitlines():
        fields = line.split()
        if fields[:1] == ["sample"] and len(fields) == 2 + len(NAMES):
            samples[int(fields[1])].append(
                {name: int(value) / CONNECTIONS for name, value in zip(NAMES, fields[2:])})
    return samples


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench connect", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--kernel", choices=["stock", "branch"], default="stock")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    samples = parse(run_in_lab(arguments.program, arguments.kernel, arguments.rounds))
    name = "connect" if arguments.kernel == "stock" else f"connect-{arguments.kernel}"
    report = Report(name, {"rounds": arguments.rounds, "connections": CONNECTIONS, "kernel": arguments.kernel,
                           "exact": True})
    cost = {}
    for standing in STANDING:
        if len(samples[standing]) != arguments.rounds:
            sys.exit(f"connect: samples are missing for {standing} rules")
        cost[standing] = {one: statistics.median(sample[one] for sample in samples[standing]) for one in NAMES}
        report.bar(Bar(f"{standing} rules: syncs per connection", cost[standing]["syncs"], "", MOST_SYNCS))
    calls = {standing: cost[standing]["ethtool"] + cost[standing]["netlink"] for standing in STANDING}
    report.bar(Bar("ethtool and netlink calls, 1,000 rules / 1", calls[1000] / calls[1], "x", MOST_GROWTH))
    rows = {f"{standing:,} rule{'s'[:standing != 1]}": [[sample[one] for sample in samples[standing]] for one in NAMES]
            for standing in STANDING}  # fmt: skip
    report.table(Table("A connection beside other rules", ["guest instructions", *NAMES[1:]], rows, drawn=1, emulated=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
