#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench overhead`: what gpurx costs beside a hand-written C loop on the same traffic, in guest instructions.

devmem compares them per fragment. zcrx has both on io_uring and both on devmem in one run, per 4 KiB page, and the latency of
4 KiB every 20 ms. The lab counts instructions (./run lab --exact)."""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from report import Bar, Report, Table

BYTES = 8 << 20  # of each sample
PAGES = BYTES // 4096
TRAFFICS = ("queued", "paced")
CALLS = {"receive_calls": "recvmsg", "release_calls": "setsockopt", "allocations": "allocations"}
KERNELS = {"devmem": "stock", "zcrx": "debian"}  # where none is named
LIMIT_RATIO = {"stock": {"queued": 1.00, "paced": 1.05}, "branch": {"queued": 1.00, "paced": 1.08}}
LIMIT_LOOP = {"queued": 1.25, "paced": 1.35}
LIMIT_DEVMEM = 0.18  # queued; the ratio of paced traffic has no limit
LIMIT_RELEASE = 40
LIMIT_LATENCY = 1.05
ROOT = Path(__file__).resolve().parents[2]

Samples = list[dict[str, int]]


def run_in_lab(program: Path, kernel: str, rounds: int, transport: str) -> str:
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--timeout", "900", "--", str(program),
               str(rounds), transport]
    print(f"overhead: {rounds} rounds in the lab, about {60 + 12 * rounds} s", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"overhead: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    return done.stdout


class Measured:
    """The lines of the program: samples by loop and traffic, and what else there is by loop."""

    def __init__(self, output: str) -> None:
        names = ("instructions", "fragments", *CALLS)
        self.samples: dict[tuple[str, str], Samples] = defaultdict(list)
        self.latencies: dict[str, list[int]] = defaultdict(list)  # nanoseconds
        self.releases: dict[str, list[float]] = defaultdict(list)  # instructions per page
        for line in output.splitlines():
            kind, *fields = line.split() or [""]
            if kind == "sample":
                self.samples[fields[0], fields[1]].append(dict(zip(names, map(int, fields[2:]), strict=True)))
            elif kind == "latency":
                self.latencies[fields[0]].append(int(fields[1]))
            elif kind == "release":
                self.releases[fields[0]].append(int(fields[1]) / PAGES)

    def check(self, loops: dict[str, str], rounds: int, latencies: int) -> None:
        for loop in loops:
            if any(len(self.samples[loop, traffic]) != rounds for traffic in TRAFFICS) or len(self.latencies[loop]) != latencies:
                sys.exit(f"overhead: samples of {loop} are missing")

    def median(self, loop: str, traffic: str, name: str) -> float:
        return statistics.median(sample[name] for sample in self.samples[loop, traffic])

    def per(self, loop: str, traffic: str, name: str, divisor: float) -> list[float]:
        return [sample[name] / divisor for sample in self.samples[loop, traffic]]

    def ratio(self, loop: str, traffic: str, other: str) -> float:
        return self.median(loop, traffic, "instructions") / self.median(other, traffic, "instructions")

    def calls(self, loops: dict[str, str], columns: list[str]) -> Table:
        rows = {f"{traffic}: {shown}": [self.per(loop, traffic, one, 1) for one in ("fragments", *CALLS)]
                for traffic in TRAFFICS for loop, shown in loops.items()}
        return Table("Calls", ["fragments", *columns], rows, emulated=True)

    def allocations(self, report: Report, loop: str, traffic: str) -> None:
        report.bar(Bar(f"{traffic}: allocations while receiving", self.median(loop, traffic, "allocations"), "", 0))


def compare_on_devmem(measured: Measured, report: Report, kernel: str, rounds: int) -> None:
    loops = {"devmem-c": "C loop", "devmem-gpurx": "gpurx"}
    measured.check(loops, rounds, 0)
    # Fragments of the C loop are what the kernel delivered; gpurx may have joined neighbours.
    fragments = {traffic: measured.median("devmem-c", traffic, "fragments") for traffic in TRAFFICS}
    for traffic in TRAFFICS:
        report.bar(Bar(f"{traffic}: gpurx / C loop", measured.ratio("devmem-gpurx", traffic, "devmem-c"), "x",
                       LIMIT_RATIO[kernel][traffic]))
        measured.allocations(report, "devmem-gpurx", traffic)
    rows = {shown: [measured.per(loop, traffic, "instructions", fragments[traffic]) for traffic in TRAFFICS]
            for loop, shown in loops.items()}
    report.table(Table("Guest instructions per fragment", [*TRAFFICS], rows, drawn=2, emulated=True))
    report.table(measured.calls(loops, [*CALLS.values()]))


def compare_on_zcrx(measured: Measured, report: Report, rounds: int) -> None:
    loops = {"zcrx-c": "C loop on zcrx", "zcrx-gpurx": "gpurx on zcrx", "zcrx-gpurx-64k": "gpurx on zcrx, pages of 64 KiB",
             "devmem-c": "C loop on devmem", "devmem-gpurx": "gpurx on devmem"}
    measured.check(loops, rounds, rounds)
    for traffic in TRAFFICS:
        report.bar(Bar(f"{traffic}: gpurx / C loop, on zcrx", measured.ratio("zcrx-gpurx", traffic, "zcrx-c"), "x",
                       LIMIT_LOOP[traffic]))
        measured.allocations(report, "zcrx-gpurx", traffic)
    report.bar(Bar("queued: gpurx on zcrx / on devmem", measured.ratio("zcrx-gpurx", "queued", "devmem-gpurx"), "x",
                   LIMIT_DEVMEM))
    report.bar(Bar("queued: instructions to release a page, in a batch",
                   statistics.median(measured.releases["zcrx-gpurx"]), "", LIMIT_RELEASE))
    latency = {loop: statistics.median(measured.latencies[loop]) for loop in loops}
    report.bar(Bar("latency: gpurx / C loop, on zcrx", latency["zcrx-gpurx"] / latency["zcrx-c"], "x", LIMIT_LATENCY))
    rows = {shown: [*(measured.per(loop, traffic, "instructions", PAGES) for traffic in TRAFFICS),
                    measured.releases.get(loop)]
            for loop, shown in loops.items()}
    report.table(Table("Guest instructions per 4 KiB page", [*TRAFFICS, "release, queued"], rows, drawn=2, emulated=True))
    rows = {shown: [[nanoseconds / 1e3 for nanoseconds in measured.latencies[loop]]] for loop, shown in loops.items()}
    report.table(Table("4 KiB every 20 ms", ["median latency, µs"], rows, drawn=1, emulated=True))
    report.table(measured.calls(loops, ["recvmsg or io_uring_enter", "setsockopt", "allocations"]))
    ratios = {traffic: [measured.ratio("zcrx-gpurx", traffic, other) for other in ("zcrx-c", "devmem-gpurx")]
              for traffic in TRAFFICS}
    report.table(Table("gpurx on zcrx", ["/ C loop on zcrx", "/ gpurx on devmem"], ratios, emulated=True))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench overhead", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=7)
    parser.add_argument("--transport", choices=[*KERNELS], default="devmem", help="(devmem)")
    parser.add_argument("--kernel", choices=["stock", "branch", "debian"],
                        help="devmem: stock or branch (stock); zcrx: any that has it (debian, as Debian ships it)")
    arguments = parser.parse_args()
    arguments.kernel = arguments.kernel or KERNELS[arguments.transport]
    if arguments.transport == "devmem" and arguments.kernel not in LIMIT_RATIO:
        parser.error(f"transport devmem has no bars for kernel {arguments.kernel}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    rounds, kernel, transport = arguments.rounds, arguments.kernel, arguments.transport
    measured = Measured(run_in_lab(arguments.program, kernel, rounds, transport))
    name = "-".join(["overhead", *([transport] if transport != "devmem" else []),
                     *([kernel] if kernel != KERNELS[transport] else [])])
    report = Report(name, {"rounds": rounds, "bytes": BYTES, "kernel": kernel, "exact": True})
    if transport == "zcrx":
        compare_on_zcrx(measured, report, rounds)
    else:
        compare_on_devmem(measured, report, kernel, rounds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
