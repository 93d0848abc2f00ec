#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench tap`: what opening a packet socket costs, bound in three ways and as gpurx-doctor tap does it; and what a
receiver feels of it."""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from report import Bar, Report, print_table

ROOT = Path(__file__).resolve().parents[2]
FLOWS = (0, 8)
WAYS = {
    "everywhere": "(a) protocol at socket(), all interfaces",
    "one_interface": "(b) protocol at socket(), one interface",
    "protocol_later": "(c) protocol 0 at socket(), one bind",
    "tap": "the tap: as (c), with ring and filter",
}
FIELDS = ("nanoseconds", "cpu", "grace_periods")
IN_A_WINDOW = {"none": "nothing is opened", **WAYS, "computing": "as long as the tap took, computing alone"}
# By how much the largest gap between two receives, in the median of the windows, may be larger where a tap is opened: than
# where nothing happens but bind(); and than where a program computes as long, which on one CPU is a gap, too.
MOST_GAP = 1.25

Samples = dict[tuple[int, str], list[dict[str, int]]]


class Measured:
    """The lines of the program."""

    def __init__(self, output: str) -> None:
        self.samples: Samples = defaultdict(list)
        self.gaps: dict[str, list[int]] = defaultdict(list)
        self.receives: dict[str, list[int]] = defaultdict(list)
        self.absent: list[str] = []
        self.trace: list[str] = []
        for line in output.splitlines():
            kind, _, rest = line.partition(" ")
            words = rest.split()
            if kind == "sample":
                self.samples[int(words[0]), words[1]].append(dict(zip(FIELDS, map(int, words[2:]))))
            elif kind == "gap":
                self.gaps[words[0]].append(int(words[1]))
                self.receives[words[0]].append(int(words[2]))
            elif kind == "absent" and rest not in self.absent:
                self.absent.append(rest)
            elif kind == "trace":
                self.trace.append(rest)

    def median(self, flows: int, way: str, field: str) -> float:
        return statistics.median(sample[field] for sample in self.samples[flows, way])

    def spread(self, flows: int, way: str, field: str) -> str:
        tenths = statistics.quantiles([sample[field] for sample in self.samples[flows, way]], n=10)
        return f"{tenths[0] / 1000:.0f}-{tenths[8] / 1000:.0f}"


def run_in_lab(arguments: argparse.Namespace, exact: bool) -> Measured:
    guest = Path(__file__).resolve().parent / "tap" / "guest.sh"
    # Guest time is instructions there: a host that does something else makes no gap.
    windows = arguments.windows if exact else 0
    options = ["--exact"] if exact else ["--cpus", str(arguments.cpus)] if arguments.cpus else []
    command = [str(ROOT / "run"), "lab", "--kernel", arguments.kernel, *options, "--timeout", "900", "--", str(guest), str(arguments.program), str(arguments.doctor), str(arguments.repeats),
               str(windows)]
    print(f"tap: {arguments.repeats} repeats in the lab{', counting instructions' if exact else ''}", file=sys.stderr,
          flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"tap: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    measured = Measured(done.stdout)
    for flows in FLOWS:
        for way in WAYS:
            if len(measured.samples[flows, way]) != arguments.repeats:
                sys.exit(f"tap: samples are missing for {way} beside {flows} flows")
    return measured


def print_openings(timed: Measured, counted: Measured) -> None:
    for flows in FLOWS:
        print(f"\nTo open a packet socket, {f'beside {flows} busy flows' if flows else 'idle'}\n")
        rows = [[name, f"{timed.median(flows, way, 'nanoseconds') / 1000:.0f}",
                 timed.spread(flows, way, "nanoseconds"), f"{counted.median(flows, way, 'cpu'):.0f}",
                 f"{timed.median(flows, way, 'grace_periods'):.0f}"] for way, name in WAYS.items()]
        print_table(["", "us, median", "10-90 %", "instructions", "grace periods"], rows)


def print_gaps(measured: Measured) -> None:
    print("\nThe largest gap between two receives of a flow in a window, in thousands of guest instructions\n")
    rows = []
    for way, gaps in measured.gaps.items():
        rows.append([IN_A_WINDOW[way], f"{statistics.median(gaps) / 1000:.0f}",
                     f"{max(gaps) / 1000:.0f}", f"{statistics.median(measured.receives[way]):.0f}"])
    print_table(["", "median", "most", "receives"], rows)


def add_bars(report: Report, timed: Measured, counted: Measured) -> None:
    counts_periods = not any(what.startswith("grace periods") for what in timed.absent)
    report.bar(Bar("grace periods are counted", float(counts_periods), "", 1, at_least=True))
    if counts_periods:
        for flows in FLOWS:
            least, later = (timed.median(flows, way, "grace_periods") for way in ("one_interface", "protocol_later"))
            report.bar(Bar(f"{flows} flows: grace periods of bind in case (b)", least, "", 1, at_least=True))
            report.bar(Bar(f"{flows} flows: grace periods of bind in case (c)", later, "", 0))
    gap = {way: statistics.median(gaps) for way, gaps in counted.gaps.items()}
    report.bar(Bar("largest gap between receives, bind as (c) / nothing", gap["protocol_later"] / gap["none"], "x",
                   MOST_GAP))
    report.bar(Bar("largest gap between receives, tap opened / as long computed", gap["tap"] / gap["computing"], "x",
                   MOST_GAP))
    calls = [line.split("(")[0] for line in timed.trace]
    # Without a trace nothing says so.
    is_third = bool(calls) and "htons(0" in timed.trace[0] and calls.count("bind") == 1 and calls[-1] == "bind"
    report.bar(Bar("the tap binds once, last, from protocol 0", float(is_third), "", 1, at_least=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench tap", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("doctor", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("repeats", type=int, nargs="?", default=200)
    parser.add_argument("--windows", type=int, default=40, help="for the gaps between receives, of each way")
    parser.add_argument("--kernel", default="debian")
    parser.add_argument("--cpus", type=int, help="of the guest, where time is measured")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    timed = run_in_lab(arguments, exact=False)
    counted = run_in_lab(arguments, exact=True)
    print_openings(timed, counted)
    print_gaps(counted)
    print("\nThe system calls of gpurx-doctor tap\n")
    print("\n".join(timed.trace) or "not traced")
    print("\n".join(f"not measured: {what}" for what in timed.absent))
    report = Report("tap", {"repeats": arguments.repeats, "windows": arguments.windows, "kernel": arguments.kernel,
                            "cpus": arguments.cpus, "absent": timed.absent, "trace": timed.trace})
    report.samples = {"openings": {f"{flows} flows: {way}": timed.samples[flows, way]
                                   for flows in FLOWS for way in WAYS},
                      "instructions": {f"{flows} flows: {way}": [one["cpu"] for one in counted.samples[flows, way]]
                                       for flows in FLOWS for way in WAYS},
                      "gaps": counted.gaps}
    add_bars(report, timed, counted)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
