#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench rfc`: what was asked about in the discussion of the tokens, in guest instructions per page."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Iterable, NamedTuple

from report import Report, Table, print_table

ROOT = Path(__file__).resolve().parents[2]
HUGE_PAGES = 112
PAGES = ("1", "32", "128", "1024")

Line = dict[str, str]


class Contender(NamedTuple):
    name: str
    kernel: str
    kind: str


CONTENDERS = [
    Contender("stock", "stock", "setsockopt"),
    Contender("branch", "branch", "setsockopt"),
    Contender("netlink", "rfc", "netlink"),
    Contender("netlink, answered", "rfc", "netlink-ack"),
    Contender("ring", "rfc", "ring"),
    Contender("runs", "rfc", "runs"),
    Contender("zcrx", "stock", "zcrx"),
]

# What takes pages for the NIC that user space has given back, or that are new
TAKING = ("page_pool_alloc_netmems", "page_pool_refill_alloc_cache", "mp_dmabuf_devmem_alloc_netmems",
          "net_devmem_alloc_dmabuf", "gen_pool_alloc_algo_owner", "page_pool_set_pp_info", "io_pp_zc_alloc_netmems",
          "zcrx_put_refill_niov", "net_mp_niov_set_page_pool", "net_devmem_drain_rings", "net_devmem_put_ring")


def run_in_lab(one: Contender, sources: dict[str, str], options: list[str], arguments: list[str]) -> Iterable[str]:
    guest = Path(__file__).resolve().parent / "tokens" / "guest.sh"
    environment = dict(os.environ)
    kernel = one.kernel
    if kernel in sources:
        environment["GPURX_KERNEL_SOURCE"] = sources[kernel]
        kernel = "stock"
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--hugepages", str(HUGE_PAGES), "--timeout",
               "600", *options, "--", str(guest), *arguments]
    print(f"rfc: {one.name}, on kernel {one.kernel}", file=sys.stderr, flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as lab:
        assert lab.stdout is not None
        yield from lab.stdout
    if lab.returncode != 0:
        sys.exit(f"rfc: the lab run of '{one.name}' failed (exit code {lab.returncode})")


class Samples:
    """The lines of the program. Round 0 warms up and is left out."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        self.returns: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        self.memory: dict[str, Line] = {}

    def add(self, name: str, text: str) -> None:
        kind, *words = text.split() or [""]
        line = dict(word.split("=", 1) for word in words if "=" in word)
        if kind == "memory":
            self.memory[name] = line
        elif kind == "sample" and line["round"] != "0":
            self.samples[name, line["traffic"], line["flows"]].append(line)
        elif kind == "return" and line["round"] != "0":
            self.returns[name, line["separate"], line["pages"]].append(line)


def median(lines: list[Line], name: str, per: str) -> float:
    return statistics.median(int(line[name]) / int(line[per]) for line in lines)


def taking(one: Contender, sources: dict[str, str], program: Path) -> float:
    """Instructions for each page that the NIC takes, counted by function in the calls that send."""
    with tempfile.TemporaryDirectory() as directory:
        counts = Path(directory) / "counts"
        for _ in run_in_lab(one, sources, ["--profile", "sendto", "--profile-to", str(counts)],
                            [str(program), "1", one.kind]):
            pass
        rows = [line.split() for line in counts.read_text().splitlines()]
    instructions = sum(int(row[2]) for row in rows if row[1] in TAKING)
    pages = next(int(row[3]) for row in rows if row[1] == "page_pool_alloc_netmems")
    return instructions / pages


def traffic_table(names: list[str], samples: Samples, taken: dict[str, float]) -> Table:
    columns = ["queued, 1 flow", "4 flows", "paced, 1 flow", "4 flows", "taken by the NIC"]
    rows = {}
    for name in names:
        lines = [samples.samples[name, traffic, flows] for traffic in ("queued", "paced") for flows in ("1", "4")]
        rows[name] = [[int(line["instructions"]) / int(line["pages"]) for line in of] for of in lines] + [taken.get(name)]
    return Table("Guest instructions per page", columns, rows, emulated=True)


def print_calls(names: list[str], samples: Samples) -> None:
    print("\nSystem calls and sleeps per GiB, 1 flow; what one cmsg or completion stands for; KiB taken at rest\n")
    rows = []
    for name in names:
        cells = []
        for traffic in ("queued", "paced"):
            lines = samples.samples[name, traffic, "1"]
            cells += [f"{2**30 * median(lines, field, 'bytes'):.0f}" for field in ("calls", "sleeps")]
        pages = [f"{median(samples.samples[name, 'queued', flows], 'pages', 'fragments'):.2f}" for flows in ("1", "4")]
        rows.append([name, *cells, *pages, samples.memory[name]["taken"]])
    print_table(["", "queued: calls", "sleeps", "paced: calls", "sleeps", "pages each, 1 flow", "4 flows", "KiB"], rows)


def print_returns(names: list[str], samples: Samples) -> None:
    print("\nInstructions to give pages back at once; of a ring: to write, and what the kernel adds to the next recvmsg\n")
    rows = []
    for name in names:
        for separate, what in (("1", "one by one"), ("0", "as ranges")):
            if (name, separate, "1") not in samples.returns:
                continue
            cells = []
            for pages in PAGES:
                lines = samples.returns[name, separate, pages]
                call = median(lines, "instructions", "calls")
                drained = median(lines, "drained", "calls") - median(lines, "idle", "calls")
                cells.append(f"{call:.0f}" + (f" + {drained:.0f}" if drained else ""))
            rows.append([name, what, *cells])
    print_table(["", "", *(f"{pages} page{'s'[:pages != '1']}" for pages in PAGES)], rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run bench rfc", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("--only", metavar="NAME", action="append", choices=[one.name for one in CONTENDERS],
                        help="one of: " + ", ".join(one.name for one in CONTENDERS))
    parser.add_argument("--source", metavar="KERNEL=DIRECTORY", action="append", default=[],
                        help="take the source of a kernel from here, with all patches in it")
    parser.add_argument("--no-profile", action="store_true", help="leave out what the NIC's part costs")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    sources = dict(one.split("=", 1) for one in arguments.source)
    contenders = [one for one in CONTENDERS if not arguments.only or one.name in arguments.only]
    samples = Samples()
    taken: dict[str, float] = {}
    for one in contenders:
        for line in run_in_lab(one, sources, [], [str(arguments.program), str(arguments.rounds), one.kind]):
            samples.add(one.name, line)
        if not arguments.no_profile:
            taken[one.name] = taking(one, sources, arguments.program)
    names = [one.name for one in contenders]
    report = Report("rfc", {"rounds": arguments.rounds, "exact": True})
    report.table(traffic_table(names, samples, taken))
    print_calls(names, samples)
    print_returns(names, samples)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
