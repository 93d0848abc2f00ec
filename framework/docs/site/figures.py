#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the plots:  figures.py TO_DIRECTORY

Drawn from the results that are kept with the sources; of a benchmark that has none there from what it measured here, if it
ran; else the page says which command draws it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
KEPT, MEASURED = REPO / "tests/bench/results", REPO / "build/bench"

WHAT = {
    "overhead": "instructions of the library for each receive, beside those of plain calls",
    "gather": "the gather kernels, counted instruction by instruction in an interpreter of PTX",
    "give-back": "what giving pages back behind streams takes of a core, and how late they are, on the fake driver",
    "tokens": "what giving pages back costs the kernel, with each kind of token",
    "connect": "connecting, with the rules that this makes",
    "tap": "what looking at flows costs them",
    "perf": "throughput, CPU and latency over the software NIC",
    "ingest": "loading objects, beside what people use without this library",
}


def benchmarks() -> list[str]:
    script = (REPO / "tests/bench/run.sh").read_text(encoding="utf-8")
    return re.search(r"^benchmarks=\((.*)\)$", script, re.M).group(1).split()


def results(kept: Path, measured: Path) -> dict[str, Path]:
    """By name. What was measured where the site is made differs from machine to machine, so it comes second."""
    return {path.stem: path for directory in (measured, kept) for path in sorted(directory.glob("*.json"))}


def draw(files: list[Path], to: Path) -> None:
    if files:
        subprocess.run([REPO / "tests/bench/plot.sh", "--to", to, *files], check=True, stdout=subprocess.DEVNULL)


def origin(result: Path, kept: Path) -> str:
    machine = json.loads(result.read_text(encoding="utf-8")).get("machine")
    on = f" on {machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}" if machine else ""
    if result.parent == kept:
        return f"Measured{on}; all figures are in `tests/bench/results/{result.name}`."
    return f"Measured{on}, where this site was made."


def section(name: str, result: Path | None, plots: Path, kept: Path) -> list[str]:
    lines = [f"## {name}", ""]
    if name in WHAT:
        lines += [f"{WHAT[name][0].upper()}{WHAT[name][1:]}.", ""]
    pictures = [path for path in (plots / f"{name}.svg", plots / f"{name}-bars.svg") if path.exists()]
    if result is None or not pictures:
        return [*lines, f"Not drawn here: `./run bench {name} && ./run docs` does it.", ""]
    for path in pictures:
        beside = ", beside its bars" if path.stem.endswith("-bars") else ""
        lines += [f"![What {name} measured{beside}](plots/{path.name})", ""]
    return [*lines, origin(result, kept), ""]


def page(names: list[str], found: dict[str, Path], plots: Path, kept: Path = KEPT) -> str:
    lines = [
        "# Plots",
        "",
        "Drawn by `./run docs` from what `./run bench` and `gpurx-perf` measured. A bar is what the project asks of itself. In the "
        "lab the guest is emulated: instructions count, time does not. "
        "[Figures of the kernel series](kernel/linux-7.3-figures.md) and [how to measure](guides/measuring.md) have pages.",
        "",
    ]
    for name in [*names, *sorted(set(found) - set(names))]:
        lines += section(name, found.get(name), plots, kept)
    return "\n".join(lines)


def main() -> None:
    to = Path(sys.argv[1])
    names = benchmarks()
    if missing := set(names) - set(WHAT):
        raise SystemExit(f"figures.py: say what {', '.join(sorted(missing))} measures")
    found = results(KEPT, MEASURED)
    draw(list(found.values()), to / "plots")
    (to / "figures.md").write_text(page(names, found, to / "plots"), encoding="utf-8")


if __name__ == "__main__":
    main()
