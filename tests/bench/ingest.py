#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench ingest`: what it costs to bring an object of a server into memory, a file or Python, here and over devmem
in the lab. A comparison is an entry of SCENES; who takes part in it is in ingest_contenders.py."""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ingest_contenders import Contenders, Peers, Programs, check_memory, to_file, to_memory
from ingest_figures import (ANY, CPU, CPU_SECONDS, FIRST, MEMORY, MIB, RATE, REQUESTS, SECONDS, Column, Limit, Most,
                            Samples, cells, cpu, memory, requests, seconds, slopes_bar, slopes_table)
from ingest_lab import LAB_SIZES, run_in_lab
from ingest_servers import Object, Site
from report import Report, Table

COPY = ["--transport", "copy"]
# Tensors of the files, and bytes of each; those of the large one are as large as is asked for.
LARGE, SMALL, NAMES = 64, 40_000, 100_000
SMALL_SIZE, NAMES_SIZE = 1024, 64
EVERY_OTHER = f"{SMALL // 2:,} tensors, gaps between"
ALL_NAMES = f"{NAMES:,} names"
INTO = "gpurx, into="


class Stage(NamedTuple):
    """What contenders are made of."""

    programs: Programs
    site: Site
    peers: Peers
    large: Object
    small: Object
    names: Object


class Scene(NamedTuple):
    title: str
    contenders: Callable[[Stage], Contenders]
    columns: list[Column]
    limits: list[Limit | Most]


def into_memory(stage: Stage) -> Contenders:
    url, site = stage.site.http(stage.large.name), stage.site
    check_memory(stage.programs, url, COPY, stage.large.sha256)
    into = stage.peers.contender(INTO, url, stage.large.digests["1"], {})
    return to_memory(stage.programs, url, COPY, stage.large.sha256, site.scratch) | {INTO: into}


def into_a_file(stage: Stage) -> Contenders:
    site, name = stage.site, stage.large.name
    return to_file(stage.programs, site.http(name), COPY, site.path(name), site.scratch)


def into_a_file_by_https(stage: Stage) -> Contenders:
    site, name = stage.site, stage.large.name
    return to_file(stage.programs, site.https(name), COPY, site.path(name), site.scratch, site.certificate)


def from_s3(stage: Stage) -> Contenders:
    for name, reason in stage.peers.missing.items():
        print(f"not compared: {name}: {reason}")
    return stage.peers.from_s3(stage.site.s3(stage.large.name), stage.large.digests["1"], stage.site.s3_environment())


def many_tensors(stage: Stage) -> Contenders:
    def by_name(peer: str, file: Object, step: str) -> Callable[[], Any]:
        return stage.peers.contender(peer, stage.site.http(file.name), file.digests[step], {})

    return {EVERY_OTHER: by_name("gpurx, every other name", stage.small, "2"),
            ALL_NAMES: by_name("gpurx, all names", stage.names, "1")}


SCENES = {
    "memory": Scene(
        "Into host memory, http", into_memory, [CPU, RATE, MEMORY],
        [Limit("CPU time", cpu, "gpurx-fetch", "curl, then a copy", 1.0),
         Limit("CPU time", cpu, "gpurx-fetch", "recv_into loop", 0.5),
         Limit("CPU time", cpu, INTO, "recv_into loop", 0.35),
         Limit("time", seconds, "gpurx-fetch", "recv_into loop", 1.0)]),
    "file": Scene(
        "To a file, http", into_a_file, [CPU, RATE, MEMORY, REQUESTS],
        [Limit("time", seconds, "gpurx-fetch", ANY, 1.05), Most("memory", memory, "gpurx-fetch", "MiB", 64)]),
    "https": Scene(
        "To a file, https", into_a_file_by_https, [CPU, RATE, MEMORY, REQUESTS],
        [Limit("CPU time", cpu, "gpurx-fetch", "curl", 1.1),
         Limit("CPU time", cpu, "gpurx-fetch, 16 flows", "curl", 0.65)]),
    "s3": Scene(
        "Into one process of Python, S3", from_s3, [CPU, RATE, FIRST, REQUESTS],
        [Limit("time", seconds, "gpurx", ANY, 1.0), Limit("CPU time", cpu, "gpurx", ANY, 1.0)]),
    "names": Scene(
        "Tensors by their names, http", many_tensors, [CPU_SECONDS, SECONDS, REQUESTS],
        [Most("requests", requests, EVERY_OTHER, "", 20), Most("time", seconds, ALL_NAMES, " s", 1.5, statistics.median)]),
}


def take_back_memory(size: int) -> None:
    """Have the machine own so much free memory. A hypervisor takes free pages back (free page reporting), large blocks
    first, and the next program to need them pays: on one machine a GiB of huge pages takes 2.2 s of CPU time after a
    rest of 12 s, and 0.05 s right after a program that had as much. It may take some back meanwhile."""
    with mmap.mmap(-1, size) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1


def interleaved(contenders: Contenders, rounds: int, size: int, asked: Callable[[], int], label: str) -> Samples:
    names = list(contenders)
    samples: Samples = {name: [] for name in names}
    # The first round warms up. Each begins with another one: what ran before leaves caches, and memory, as they are.
    for number in range(rounds + 1):
        begin = number % len(names)
        for name in names[begin:] + names[:begin]:
            take_back_memory(3 * size)
            asked()
            cost = contenders[name]()._replace(requests=asked())
            if number > 0:
                samples[name].append(cost)
        print(f"ingest: {label}, round {number} of {rounds} done", file=sys.stderr, flush=True)
    return samples


def play(name: str, stage: Stage, rounds: int, report: Report) -> None:
    scene = SCENES[name]
    samples = interleaved(scene.contenders(stage), rounds, stage.large.bytes, stage.site.asked, name)
    rows = {contender: cells(costs, stage.large.bytes, scene.columns) for contender, costs in samples.items()}
    report.table(Table(scene.title, [column.title for column in scene.columns], rows, drawn=2))
    for limit in scene.limits:
        if bar := limit.bar(name, samples):
            report.bar(bar)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench ingest", description=__doc__)
    parser.add_argument("build", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("python", help=argparse.SUPPRESS)
    parser.add_argument("peers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=9)
    parser.add_argument("--only", nargs="+", choices=[*SCENES, "lab"], default=[*SCENES, "lab"], metavar="SCENE",
                        help=f"these: {', '.join(SCENES)}, lab")
    parser.add_argument("--lab-rounds", type=int, default=5)
    parser.add_argument("--kernel", choices=["debian", "stock", "branch"], default="stock",
                        help="of the lab; stock and branch are built the first time (stock)")
    parser.add_argument("--mebibytes", type=int, default=512, help="size of the large object (512)")
    parser.add_argument("--short", action="store_true", help="2 rounds with 64 MiB, none in the lab: does it work?")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.mebibytes, arguments.lab_rounds = 2, 64, 0
    return arguments


def main() -> int:
    arguments = parse_arguments()
    each = arguments.mebibytes * MIB // LARGE
    report = Report("ingest", {"rounds": arguments.rounds, "tensors_and_bytes_of_each": [LARGE, each],
                               "lab_rounds": arguments.lab_rounds, "lab_bytes": LAB_SIZES, "kernel": arguments.kernel})
    scenes = [name for name in SCENES if name in arguments.only]
    # In memory, so that no disk takes part.
    if scenes:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
            with Site(Path(directory), [(LARGE, each), (SMALL, SMALL_SIZE), (NAMES, NAMES_SIZE)]) as site:
                stage = Stage(Programs(arguments.build), site, Peers(arguments.python, arguments.peers), *site.objects)
                report.configuration["not_compared"] = stage.peers.missing
                for name in scenes:
                    play(name, stage, arguments.rounds, report)
    if arguments.lab_rounds and "lab" in arguments.only:
        samples = run_in_lab(arguments.build, arguments.lab_rounds, arguments.kernel)
        report.table(slopes_table(samples))
        report.bar(slopes_bar(samples))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
