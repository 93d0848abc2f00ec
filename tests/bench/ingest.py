#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench ingest`: what it costs to bring an object of a file server into memory, here and over devmem in the lab."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ingest_contenders import Contenders, Cost
from report import Bar, Report, print_table

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "ingest"))

from servers import Nginx, nginx_program  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
# In the lab the cost of a MiB is how the cost grows from one size to the next: without what a start costs.
LAB_SIZES = (8 * MIB, 24 * MIB)
OURS, RIVAL, LOOP = "gpurx-fetch", "curl, then a copy", "recv_into loop"

Samples = dict[str, list[Cost]]


def write_object(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for begin in range(0, size, MIB):
            file.write(os.urandom(min(MIB, size - begin)))


def measure(directory: Path, programs: Path, size: int, rounds: int) -> Samples:
    write_object(directory / "object", size)
    server = Nginx(directory)
    try:
        contenders = Contenders(programs, server.host, server.port, ["--transport", "copy"], directory).all()
        samples: Samples = {name: [] for name in contenders}
        # The first round warms up.
        for number in range(rounds + 1):
            for name, fetch in contenders.items():
                cost = fetch("object")
                if number > 0:
                    samples[name].append(cost)
            print(f"ingest: round {number} of {rounds} done", file=sys.stderr, flush=True)
    finally:
        server.stop()
    return samples


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def report_here(report: Report, samples: Samples, size: int) -> None:
    cpu = {name: [cost.cpu * GIB / size for cost in costs] for name, costs in samples.items()}
    print_table(["transport copy, to host memory", "CPU s per GiB", "GiB/s"],
                [[name, spread(cpu[name]), spread([size / GIB / cost.seconds for cost in costs])]
                 for name, costs in samples.items()])
    # Of each round, as the machine may have been slower in one than in another.
    for rival in RIVAL, LOOP:
        ratio = statistics.median(mine / other for mine, other in zip(cpu[OURS], cpu[rival]))
        report.bar(Bar(f"copy: CPU time, {OURS} / {rival}", ratio, "x", 1.0))
    report.samples["copy"] = {name: [cost._asdict() for cost in costs] for name, costs in samples.items()}


def run_in_lab(programs: Path, rounds: int, kernel: str) -> dict[str, dict[int, list[float]]]:
    script = Path(__file__).resolve().parent / "ingest_guest.py"
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--timeout", "900", "--", "python3", str(script),
               str(programs), str(rounds), *map(str, LAB_SIZES)]
    print(f"ingest: {rounds} rounds in the lab", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False,
                          env=dict(os.environ, GPURX_TEST_NGINX=nginx_program()))
    if done.returncode != 0:
        sys.exit(f"ingest: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    samples: dict[str, dict[int, list[float]]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            sample = json.loads(line)
            samples.setdefault(sample["name"], {}).setdefault(sample["size"], []).append(sample["cpu"] * 1e9)
    return samples


def report_lab(report: Report, samples: dict[str, dict[int, list[float]]]) -> None:
    small, large = LAB_SIZES
    rows = []
    cost = {}
    for name, sizes in samples.items():
        each = [(more - less) * MIB / (large - small) for less, more in zip(sizes[small], sizes[large])]
        cost[name] = statistics.median(each)
        start = statistics.median(sizes[small]) - cost[name] * small / MIB
        rows.append([name, f"{cost[name]:,.0f} ({min(each):,.0f}–{max(each):,.0f})", f"{start / 1e6:,.0f}"])
    print_table(["devmem, in the lab", "instructions per MiB", "millions to start"], rows)
    report.bar(Bar(f"devmem: instructions, {OURS} / {RIVAL}", cost[OURS] / cost[RIVAL], "x", 1.0))
    report.samples["devmem"] = samples


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench ingest", description=__doc__)
    parser.add_argument("programs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=9)
    parser.add_argument("--lab-rounds", type=int, default=5)
    parser.add_argument("--kernel", choices=["stock", "branch"], default="stock")
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the object (512)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    size = arguments.mebibytes * MIB
    report = Report("ingest", {"rounds": arguments.rounds, "bytes": size, "lab_rounds": arguments.lab_rounds,
                               "lab_bytes": LAB_SIZES, "kernel": arguments.kernel})
    # In memory, so that no disk takes part.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        report_here(report, measure(Path(directory), arguments.programs, size, arguments.rounds), size)
    if arguments.lab_rounds:
        report_lab(report, run_in_lab(arguments.programs, arguments.lab_rounds, arguments.kernel))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
