#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the plots that were made on this machine, and of how the others are made:  figures.py TO_DIRECTORY"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
PLOTS = REPO / "build/plots"

WHAT = {
    "overhead": "instructions of the library for each receive, beside those of plain calls",
    "gather": "the gather kernels, counted instruction by instruction in an interpreter of PTX",
    "tokens": "what giving pages back costs the kernel, with each kind of token",
    "connect": "connecting, with the rules that this makes",
    "tap": "what looking at flows costs them",
    "perf": "throughput, CPU and latency over the software NIC",
    "ingest": "loading objects, beside what people use without this library",
}


def benchmarks() -> list[str]:
    script = (REPO / "tests/bench/run.sh").read_text(encoding="utf-8")
    return re.search(r"^benchmarks=\((.*)\)$", script, re.M).group(1).split()


def section(name: str, plot: Path | None) -> list[str]:
    lines = [f"## {name}", "", f"{WHAT[name][0].upper()}{WHAT[name][1:]}.", ""] if name in WHAT else [f"## {name}", ""]
    if plot:
        return [*lines, f"![What {name} measured](plots/{plot.name})", ""]
    return [*lines, f"Not drawn here yet: `./run bench {name} && ./run plot && ./run docs`.", ""]


def main() -> None:
    to = Path(sys.argv[1])
    drawn = {path.stem: path for path in sorted(PLOTS.glob("*.svg"))}
    lines = [
        "# Plots",
        "",
        "Drawn by `./run plot` from what `./run bench` and `gpurx-perf` measured on the machine where this site was made. "
        "A bar is what the project asks of itself. In the lab the guest is emulated: instructions count, time does not. "
        "[Figures of the kernel series](kernel/linux-7.3-figures.md) and [how to measure](guides/measuring.md) have pages.",
        "",
    ]
    names = benchmarks()
    if missing := set(names) - set(WHAT):
        raise SystemExit(f"figures.py: say what {', '.join(sorted(missing))} measures")
    for name in [*names, *sorted(set(drawn) - set(names))]:
        lines += section(name, drawn.get(name))
    if drawn:
        (to / "plots").mkdir(parents=True, exist_ok=True)
        for path in drawn.values():
            shutil.copy(path, to / "plots" / path.name)
    (to / "figures.md").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
