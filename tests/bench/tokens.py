#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench tokens`: what tokens cost in guest instructions per fragment, on stock and on the feature branch."""

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Callable, Iterable, NamedTuple

from report import Bar, Report, Table, print_table
from tokens_lab import KINDS, NAMES, PATCHES, run_in_lab
from tokens_profile import print_profile

BATCHES = ("1", "32", "128")
FULL_CONTROL = "128"

SEGMENT = 1448

LIMIT_FULL = 0.145
LIMIT_SEGMENTS = 0.155
LIMIT_LARGE = 0.147
LIMIT_PACKED_SHARED = 0.18
LIMIT_PACKED_OWNER = 1.02
LIMIT_PACKED_JOINED = 0.35
LIMIT_SINGLE = 560
LIMIT_LEFT_BEHIND = 0
LIMIT_AGAIN = 0.20
LIMIT_HALVES = 0.16
LIMIT_CLOSE = 50_000
LOOP = 40_000_000
RACES = 9

Line = dict[str, str]


class Traffic(NamedTuple):
    """What is received, and through how many sockets."""

    page: str
    memory: str
    fragment: str
    flows: str

    def __str__(self) -> str:
        size = {"segment": "1448 B", "half": "1448 B interleaved, two a page"}.get(self.fragment, "full")
        memory = "scattered " * (self.memory == "scattered")
        return f"{memory}{int(self.page) // 1024} KiB pages, {size}, {self.flows} flow{'s'[:self.flows != '1']}"

    @property
    def packed(self) -> bool:
        """Segments share pages."""
        return self.page != "4096" and self.fragment == "segment"


class Figure(NamedTuple):
    """Instructions per fragment over the rounds."""

    median: float
    least: float
    most: float

    @property
    def spread(self) -> float:
        return (self.most - self.least) / self.median

    def __str__(self) -> str:
        return f"{self.median:.0f} ({self.least:.0f})"


def figure(values: Iterable[float]) -> Figure:
    sample = list(values)
    return Figure(statistics.median(sample), min(sample), max(sample))


def measure(kernel: str, program: Path, rounds: int, samples: "Samples") -> None:
    kinds = KINDS[kernel]
    print(f"tokens: kernel {kernel}, {rounds} rounds after one to warm up, about {15 + 3 * rounds * len(kinds)} s",
          file=sys.stderr, flush=True)
    for line in run_in_lab(kernel, [], program, [str(rounds), "all", *kinds]):
        samples.add(line)


def race(kernels: list[str], program: Path) -> dict[str, list[float]]:
    """Nanoseconds per fragment of two threads at once, by kind of tokens."""
    found: dict[str, list[float]] = defaultdict(list)
    for kernel in kernels:
        print(f"tokens: two CPUs, kernel {kernel}, about 20 s", file=sys.stderr, flush=True)
        for text in run_in_lab(kernel, ["--cpus", "2"], program, [str(RACES), "race", *KINDS[kernel]]):
            kind, *words = text.split() or [""]
            line = dict(word.split("=", 1) for word in words if "=" in word)
            if kind == "race" and line["round"] != "0":
                found[line["tokens"]].append(int(line["nanoseconds"]) / int(line["fragments"]))
    return found


def print_race(found: dict[str, list[float]]) -> None:
    print("\nTwo threads, each with two flows of whole pages of 4 KiB, on two CPUs that QEMU emulates side by side: time per "
          "fragment,\nreceived and given back 128 at a time. A trend, and not exact: it is the emulator's time, which depends "
          "on the machine and\nwhat else it does.\n")
    stock = statistics.median(found["stock"]) if "stock" in found else None
    print_table(["tokens", "ns / fragment", "least", "most", "/ stock"],
                [[NAMES[kind], f"{statistics.median(values):.0f}", f"{min(values):.0f}", f"{max(values):.0f}",
                  ratio(statistics.median(values), stock)] for kind, values in found.items()])


class Samples:
    """The lines of the program, by what they measure. Round 0 warms up and is left out."""

    def __init__(self) -> None:
        self.receive: dict[tuple[str, Traffic, str], list[Line]] = defaultdict(list)
        self.release: dict[tuple[str, Traffic, str], list[Line]] = defaultdict(list)
        self.calls: dict[tuple[str, Traffic, str], list[Line]] = defaultdict(list)
        self.closes: dict[str, list[Line]] = defaultdict(list)
        self.calibration: list[Line] = []

    def add(self, text: str) -> None:
        kind, *words = text.split() or [""]
        line = dict(word.split("=", 1) for word in words if "=" in word)
        if kind == "calibration":
            self.calibration.append(line)
        elif kind == "done":
            print(f"tokens: {NAMES[line['tokens']]}: round {line['round']} done", file=sys.stderr, flush=True)
        elif kind == "close" and line["round"] != "0":
            self.closes[line["tokens"]].append(line)
        elif kind in ("receive", "release", "call") and line["round"] != "0":
            traffic = Traffic(line["page"], line["memory"], line["fragment"], line["flows"])
            into = {"receive": self.receive, "release": self.release, "call": self.calls}[kind]
            if kind != "release":
                into[line["tokens"], traffic, line["control"]].append(line)
            elif line["control"] == FULL_CONTROL:
                into[line["tokens"], traffic, line["batch"]].append(line)

    def check_clock(self) -> str:
        """What reading the clock adds, for the reader: nothing is subtracted anywhere."""
        pair = statistics.median(int(line["pair"]) for line in self.calibration)
        loop = statistics.median(int(line["loop"]) for line in self.calibration) / LOOP - 1
        if not 0 <= loop < 0.05:
            sys.exit(f"tokens: a loop of {LOOP} instructions reads {loop:+.1%}: this clock does not count instructions")
        return (f"clock: a pair of readings counts {pair:.0f}, a loop of {LOOP:,} instructions reads {loop:+.2%} "
                "(timer ticks; they are in all figures, nothing is subtracted)")


def units(line: Line) -> float:
    """What stock has as fragments: adjacent segments may have become one."""
    return int(line["fragments"]) if line["fragment"] == "page" else int(line["bytes"]) / SEGMENT


def per_fragment(lines: list[Line]) -> Figure:
    return figure(int(line["instructions"]) / units(line) for line in lines)


def ranges_per_call(lines: list[Line]) -> float:
    return statistics.median(int(line["ranges"]) / int(line["calls"]) for line in lines)


class Cost(NamedTuple):
    """Instructions per fragment of one kind of tokens with one traffic."""

    receive: Figure
    release: dict[str, Figure]
    ranges: float

    def both(self, batch: str) -> float:
        return self.receive.median + self.release[batch].median


class PartialCost(NamedTuple):
    """Calls that end because the control buffer is full."""

    receive: Figure
    inside: float  # instructions of a call, where it ends inside a packet
    at_end: float  # ... at the end of one; 0 where none did
    left_behind: float  # instructions for each fragment of the packet that it does not take


def left_behind(lines: list[Line]) -> float:
    """How the cost of a call grows with the fragments left, calls that finish as many packets compared with each other."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for line in lines:
        if int(line["left"]) and line["delivered"] == line["control"]:
            groups[int(line["finished"]), int(line["left"])].append(int(line["instructions"]))
    covariance = variance = 0.0
    for finished in {key[0] for key in groups}:
        # Each group counts by its calls, but with their median: a timer tick in one of them shall not matter.
        points = [(left, statistics.median(costs)) for (same, left), costs in groups.items() if same == finished
                  for _ in costs]
        mean_left, mean_cost = (statistics.fmean(axis) for axis in zip(*points))
        covariance += sum((left - mean_left) * (cost - mean_cost) for left, cost in points)
        variance += sum((left - mean_left) ** 2 for left, _ in points)
    return covariance / variance


def partial_cost(receive: list[Line], calls: list[Line]) -> PartialCost:
    full = [line for line in calls if line["delivered"] == line["control"]]
    inside = [int(line["instructions"]) for line in full if line["left"] != "0"]
    at_end = [int(line["instructions"]) for line in full if line["left"] == "0"]
    return PartialCost(per_fragment(receive), statistics.median(inside), statistics.median(at_end or [0]),
                       left_behind(calls))


def costs_of(samples: Samples, rounds: int) -> dict[Traffic, dict[str, Cost]]:
    costs: dict[Traffic, dict[str, Cost]] = defaultdict(dict)
    for (kind, traffic, control), lines in samples.receive.items():
        if control != FULL_CONTROL:
            continue
        release = {batch: samples.release[kind, traffic, batch] for batch in BATCHES}
        if any(len(found) != rounds for found in (lines, *release.values())):
            sys.exit(f"tokens: samples are missing for {traffic}, {NAMES[kind]}")
        costs[traffic][kind] = Cost(per_fragment(lines), {batch: per_fragment(found) for batch, found in release.items()},
                                    ranges_per_call(release["128"]))
    return costs


def partial_costs_of(samples: Samples) -> dict[tuple[Traffic, str], dict[str, PartialCost]]:
    costs: dict[tuple[Traffic, str], dict[str, PartialCost]] = defaultdict(dict)
    for (kind, traffic, control), lines in samples.calls.items():
        costs[traffic, control][kind] = partial_cost(samples.receive[kind, traffic, control], lines)
    return costs


def ratio(value: float, stock: float | None) -> str:
    return f"{value / stock:.3f}x" if stock else "-"


def print_costs(costs: dict[Traffic, dict[str, Cost]]) -> None:
    print("\nInstructions per fragment: median (least) of the rounds. recvmsg takes 128 fragments a call; DONTNEED gives back "
          "1, 32 or 128,\nthose in the given number of ranges. Segments that are received as one fragment count each. spread: the "
          "worst of the row,\nbetween least and most. sum: recvmsg and DONTNEED at 128.\n")
    rows = []
    for traffic, kinds in sorted(costs.items(), key=lambda item: (int(item[0].page), item[0])):
        stock = kinds["stock"].both("128") if "stock" in kinds else None
        for kind, cost in kinds.items():
            worst = max(value.spread for value in (cost.receive, *cost.release.values()))
            rows.append([str(traffic), NAMES[kind], str(cost.receive), *(str(cost.release[batch]) for batch in BATCHES),
                         f"{cost.ranges:.1f}", f"{100 * worst:.1f} %", f"{cost.both('128'):.0f}",
                         ratio(cost.both("128"), stock)])
    print_table(["traffic", "tokens", "recvmsg", "DONTNEED 1", "32", "128", "ranges", "spread", "sum", "/ stock"], rows)


def print_partial(costs: dict[tuple[Traffic, str], dict[str, PartialCost]]) -> None:
    print("\nCalls of recvmsg whose control buffer is full inside a packet (skb) of up to 17 fragments; instructions.\n")
    rows = []
    for (traffic, control), kinds in costs.items():
        for kind, cost in kinds.items():
            rows.append([str(traffic), control, NAMES[kind], str(cost.receive), f"{cost.inside:.0f}",
                         f"{cost.at_end:.0f}" if cost.at_end else "-", f"{cost.left_behind:.1f}"])
    print_table(["traffic", "control", "tokens", "per fragment", "a call that ends inside", "at an end",
                 "per fragment left behind"], rows)


def close_costs_of(samples: Samples) -> dict[str, Figure]:
    return {kind: figure(int(line["instructions"]) for line in lines) for kind, lines in samples.closes.items()}


def print_closes(costs: dict[str, Figure]) -> None:
    print("\nclose() of a socket that has one page of 12,288, and has given back 4,607 others; with the reset that it sends; "
          "instructions.\n")
    print_table(["tokens", "median", "least", "most"],
                [[NAMES[kind], *(f"{value:.0f}" for value in cost)] for kind, cost in costs.items()])


def full_limit(traffic: Traffic) -> float:
    if traffic.page != "4096":
        return LIMIT_LARGE
    return LIMIT_SEGMENTS if traffic.fragment == "segment" else LIMIT_FULL


def add_bars(report: Report, costs: dict[Traffic, dict[str, Cost]],
             partial: dict[tuple[Traffic, str], dict[str, PartialCost]], closes: dict[str, Figure]) -> None:
    worst_again, worst_single = ("", 0.0), ("", 0.0)

    def both(traffic: Traffic, kind: str, limit: float) -> None:
        value = costs[traffic][kind].both("128") / costs[traffic]["stock"].both("128")
        report.bar(Bar(f"recvmsg + DONTNEED at 128 a call, {kind} / stock, {traffic}", value, "x", limit))

    for traffic, kinds in costs.items():
        if traffic.packed:
            both(traffic, "shared", LIMIT_PACKED_SHARED)
            both(traffic, "owner", LIMIT_PACKED_JOINED if traffic.flows == "1" else LIMIT_PACKED_OWNER)
        elif traffic.fragment == "half":
            both(traffic, "owner", LIMIT_HALVES)
        elif traffic.page != "4096" or traffic.flows == "4":
            both(traffic, "owner", full_limit(traffic))
        if not traffic.packed:
            worst_single = max(worst_single, (str(traffic), kinds["owner"].release["1"].median), key=lambda one: one[1])
        if not traffic.packed:
            worst_again = max(worst_again, (str(traffic), kinds["again"].both("128") / kinds["stock"].both("128")),
                              key=lambda one: one[1])
    for (traffic, control), by_kind in partial.items():
        report.bar(Bar(f"a fragment left behind, owner / stock, {traffic}, control buffer of {control}",
                       by_kind["owner"].left_behind / by_kind["stock"].left_behind, "x", LIMIT_LEFT_BEHIND))
    report.bar(Bar("close() with one of 12,288 pages out, owner", closes["owner"].median, " instructions", LIMIT_CLOSE))
    report.bar(Bar(f"DONTNEED of one owner token, worst of all ({worst_single[0]})", worst_single[1], " instructions",
                   LIMIT_SINGLE))
    report.bar(Bar(f"recvmsg + DONTNEED at 128 a call of pages that the socket has already / stock, worst of all "
                   f"({worst_again[0]})", worst_again[1], "x", LIMIT_AGAIN))


def tables_of(costs: dict[Traffic, dict[str, Cost]]) -> list[Table]:
    kinds = list(dict.fromkeys(kind for found in costs.values() for kind in found))

    def table(what: str, of: Callable[[Cost], float | Figure], drawn: int = 0) -> Table:
        rows = {str(traffic): [of(found[kind]) if kind in found else None for kind in kinds] for traffic, found in costs.items()}
        return Table(f"Guest instructions per fragment: {what}", [NAMES[kind] for kind in kinds], rows, drawn, together=True,
                     emulated=True)

    return [table("recvmsg and SO_DEVMEM_DONTNEED with 128 a call", lambda cost: cost.both("128"), drawn=len(kinds)),
            table("recvmsg", lambda cost: cost.receive),
            *(table(f"SO_DEVMEM_DONTNEED with {batch} a call", lambda cost, batch=batch: cost.release[batch])
              for batch in BATCHES)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench tokens", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kernel", action="append", choices=list(KINDS), help="only this one (twice: both, the default)")
    parser.add_argument("--profile", action="store_true",
                        help="instead: instructions by function of the kernel, for 4 flows with whole pages of 4 KiB")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    kernels = arguments.kernel or [name for name in KINDS if name == "stock" or PATCHES.is_dir()]
    if arguments.profile:
        print_profile(kernels, arguments.program)
        return 0
    samples = Samples()
    for kernel in kernels:
        measure(kernel, arguments.program, arguments.rounds, samples)
    raced = race(kernels, arguments.program)
    clock = samples.check_clock()
    costs, partial = costs_of(samples, arguments.rounds), partial_costs_of(samples)
    print_costs(costs)
    print_partial(partial)
    closes = close_costs_of(samples)
    print_closes(closes)
    print_race(raced)
    print(f"\n{clock}\nmemory: huge pages, or scattered pages of 4 KiB; page-pool ring of 1024, fewer than there are pages\n")
    report = Report("tokens", {"rounds": arguments.rounds, "kernels": kernels, "exact": True})
    report.tables = tables_of(costs)
    if set(kernels) == set(KINDS):
        add_bars(report, costs, partial, closes)
    else:
        print("tokens: bars compare stock with branch; not both ran, so none was looked at")
    status = report.finish()
    if status:
        print("tokens: where the instructions go: ./run bench tokens --profile")
    return status


if __name__ == "__main__":
    sys.exit(main())
