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

from report import Bar, Report, Table, print_table

ROOT = Path(__file__).resolve().parents[2]
FLOWS = (0, 8)
FLOWS_WITH_GAPS = (1, 8)
WAYS = {
    "everywhere": "(a) protocol at socket(), all interfaces",
    "one_interface": "(b) protocol at socket(), one interface",
    "protocol_later": "(c) protocol 0 at socket(), one bind",
    "tap": "the tap: as (c), with ring and filter",
}
FIELDS = ("nanoseconds", "cpu", "grace_periods")
WINDOWS = {"none": "nothing is opened", **{way: WAYS[way] for way in ("one_interface", "protocol_later", "tap")},
           "computing": "as long as the tap took, computing alone"}
# Milliseconds. Longer where opening waits long for a grace period: it is over before the window is.
WINDOW = 100
WINDOW_ON_SEVERAL_CPUS = 500
# By how much the largest gap between two receives, in the median of the windows, may be larger on one CPU: where bind() is
# called, than where nothing happens; and where a tap is opened, than where a program computes as long, which is a gap, too.
MOST_GAP = 1.25
# How many receives there are at least while a tap is opened and closed, on several CPUs, as a part of those that the rate of
# the window makes likely. Beside other work of the host; none, or next to it, if the tap stalled receivers.
LEAST_RECEIVES = 0.5

Samples = dict[tuple[int, str], list[dict[str, int]]]


class Measured:
    """The lines of the program."""

    def __init__(self, output: str) -> None:
        self.samples: Samples = defaultdict(list)
        self.gaps: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.receives: dict[tuple[int, str], list[int]] = defaultdict(list)
        self.meanwhile: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)  # nanoseconds, receives
        self.absent: list[str] = []
        self.trace: list[str] = []
        for line in output.splitlines():
            kind, _, rest = line.partition(" ")
            words = rest.split()
            if kind == "sample":
                self.samples[int(words[0]), words[1]].append(dict(zip(FIELDS, map(int, words[2:]))))
            elif kind == "gap":
                window = int(words[0]), words[1]
                self.gaps[window].append(int(words[2]))
                self.receives[window].append(int(words[3]))
                self.meanwhile[window].append((int(words[4]), int(words[5])))
            elif kind == "absent" and rest not in self.absent:
                self.absent.append(rest)
            elif kind == "trace":
                self.trace.append(rest)

    def median(self, flows: int, way: str, field: str) -> float:
        return statistics.median(sample[field] for sample in self.samples[flows, way])

    def receives_meanwhile(self, window: tuple[int, str], length: int) -> tuple[int, float]:
        """While that was done which is done in these windows, of so many milliseconds: and at the rate of each."""
        likely = sum(time / (length * 1e6) * receives
                     for (time, _), receives in zip(self.meanwhile[window], self.receives[window]))
        return sum(receives for _, receives in self.meanwhile[window]), likely

    def microseconds(self, flows: int, way: str) -> list[float]:
        """The median, and where the first tenth and the last begin."""
        tenths = statistics.quantiles([sample["nanoseconds"] / 1000 for sample in self.samples[flows, way]], n=10)
        return [tenths[4], tenths[0], tenths[8]]


def run_in_lab(arguments: argparse.Namespace, exact: bool) -> Measured:
    guest = Path(__file__).resolve().parent / "tap" / "guest.sh"
    # Guest time is instructions where it is exact: a host that does something else makes no gap. With several CPUs it does.
    windows = arguments.windows if exact or (arguments.cpus or 1) > 1 else 0
    options = ["--exact"] if exact else ["--cpus", str(arguments.cpus)] if arguments.cpus else []
    length = WINDOW if exact else WINDOW_ON_SEVERAL_CPUS
    command = [str(ROOT / "run"), "lab", "--kernel", arguments.kernel, *options, "--timeout", "900", "--", str(guest),
               str(arguments.program), str(arguments.doctor), str(arguments.repeats), str(windows), str(length)]
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
    if len(measured.gaps) != (len(FLOWS_WITH_GAPS) * len(WINDOWS) if windows else 0):
        sys.exit("tap: windows are missing")
    return measured


def openings_table(timed: Measured, counted: Measured, flows: int) -> Table:
    rows = {name: [counted.median(flows, way, "cpu"), timed.median(flows, way, "grace_periods"), *timed.microseconds(flows, way)]
            for way, name in WAYS.items()}
    return Table(f"To open a packet socket, {f'beside {flows} busy flows' if flows else 'idle'}",
                 ["guest instructions", "grace periods", "µs: median", "10 %", "90 %"], rows, drawn=1, emulated=True)


def gaps_table(measured: Measured, unit: str, drawn: bool) -> Table:
    rows = {name: [[gap / 1000 for gap in measured.gaps[flows, way]] for flows in FLOWS_WITH_GAPS]
            for way, name in WINDOWS.items()}
    return Table(f"Largest gap between two receives in a window, {unit}",
                 [f"{flows} flow{'s'[:flows != 1]}" for flows in FLOWS_WITH_GAPS], rows, drawn * len(FLOWS_WITH_GAPS),
                 emulated=True)


def print_gaps(measured: Measured, length: int, unit: str) -> None:
    for flows in FLOWS_WITH_GAPS:
        print(f"\nThe largest gap between two receives of any of {flows} flows in a window, in {unit}\n")
        rows = []
        for way, name in WINDOWS.items():
            gaps = measured.gaps[flows, way]
            meanwhile, likely = measured.receives_meanwhile((flows, way), length)
            rows.append([name, f"{statistics.median(gaps) / 1000:.0f}", f"{max(gaps) / 1000:.0f}",
                         f"{statistics.median(measured.receives[flows, way]):.0f}", str(meanwhile), f"{likely:.0f}"])
        print_table(["", "median", "most", "receives", "meanwhile, in all", "at the window's rate"], rows)


def add_bars(report: Report, timed: Measured, counted: Measured) -> None:
    counts_periods = not any(what.startswith("grace periods") for what in timed.absent)
    report.bar(Bar("grace periods are counted", float(counts_periods), "", 1, at_least=True))
    if counts_periods:
        for flows in FLOWS:
            least, later = (timed.median(flows, way, "grace_periods") for way in ("one_interface", "protocol_later"))
            report.bar(Bar(f"{flows} flows: grace periods of bind in case (b)", least, "", 1, at_least=True))
            report.bar(Bar(f"{flows} flows: grace periods of bind in case (c)", later, "", 0))
    gap = {window: statistics.median(gaps) for window, gaps in counted.gaps.items()}
    for flows in FLOWS_WITH_GAPS:
        for what, way, other in (("bind as (c) / nothing", "protocol_later", "none"),
                                 ("tap opened / as long computed", "tap", "computing")):
            report.bar(Bar(f"flows: {flows}, largest gap between receives, {what}", gap[flows, way] / gap[flows, other],
                           "x", MOST_GAP))
    for flows in FLOWS_WITH_GAPS if timed.gaps else ():
        meanwhile, likely = timed.receives_meanwhile((flows, "tap"), WINDOW_ON_SEVERAL_CPUS)
        report.bar(Bar(f"flows: {flows}, receives while the tap is opened / at the rate of the window", meanwhile / likely,
                       "x", LEAST_RECEIVES, at_least=True))
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
    parser.add_argument("--cpus", type=int, help="of the guest, where time is measured; with several, the gaps also there")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    timed = run_in_lab(arguments, exact=False)
    counted = run_in_lab(arguments, exact=True)
    report = Report("tap", {"repeats": arguments.repeats, "windows": arguments.windows, "kernel": arguments.kernel,
                            "cpus": arguments.cpus, "absent": timed.absent})
    for flows in FLOWS:
        report.table(openings_table(timed, counted, flows))
    for measured, length, unit in ((counted, WINDOW, "thousands of guest instructions, on one CPU"),
                                   (timed, WINDOW_ON_SEVERAL_CPUS, f"µs, on {arguments.cpus} CPUs")):
        if measured.gaps:
            print_gaps(measured, length, unit)
            report.tables.append(gaps_table(measured, unit, drawn=measured is counted))
    print("\nThe system calls of gpurx-doctor tap\n")
    print("\n".join(timed.trace) or "not traced")
    print("\n".join(f"not measured: {what}" for what in timed.absent))
    add_bars(report, timed, counted)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
