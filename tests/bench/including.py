#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench including`: what gpurx's headers cost a compiler, beside the same program on Asio's own socket."""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from report import Bar, Report, Table

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).resolve().parent / "including" / "program.cpp"
# By PART of the program: its name, and how much more than on tcp::socket it may take.
PARTS = {0: ("an empty main", 1.0), 1: ("a coroutine that reads", 1.1), 2: ("a server with Beast", 1.0)}


def seconds_to_compile(compiler: str, part: int, on_gpurx: bool) -> float:
    """Of processor time: it does not depend on what else the machine does, as the time on the clock would."""
    define = ["-DON_GPURX"] if on_gpurx else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([compiler, "-std=c++20", "-O2", f"-DPART={part}", *define, f"-I{ROOT}/framework/include", "-c", str(PROGRAM),
                    "-o", os.devnull], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench including", description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    rounds = parser.parse_args().rounds
    compiler = os.environ.get("CXX", "g++")
    report = Report("including", {"compiler": subprocess.run([compiler, "--version"], stdout=subprocess.PIPE, text=True,
                                                             check=True).stdout.splitlines()[0], "rounds": rounds})
    rows = {}
    for part, (name, limit) in PARTS.items():
        # In turns, so that what changes on the machine meets both.
        times = [(seconds_to_compile(compiler, part, False), seconds_to_compile(compiler, part, True)) for _ in range(rounds)]
        asio, ours = zip(*times)
        rows[name] = [asio, ours]
        report.bar(Bar(f"{name}: compiler's time, gpurx / tcp::socket", statistics.median(ours) / statistics.median(asio), "x", limit))
    report.table(Table("Compiler's time at -O2, s", ["tcp::socket", "gpurx"], rows, drawn=2, together=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
