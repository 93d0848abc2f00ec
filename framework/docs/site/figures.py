#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of the plots:  figures.py TO_DIRECTORY

The page draws the results that are kept with the sources. Of a benchmark without one it draws the result of this machine, if
it ran here; else it says which command draws it. Tables have every figure. Bars come last, and missed ones last of all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[3]
KEPT, MEASURED = REPO / "tests/bench/results", REPO / "build/bench"
sys.path.insert(0, str(REPO / "tests/bench"))

from report import text_of, text_of_cell  # noqa: E402

MISSED = ": missed"
# In the order of the page.
WHAT = {
    "ingest": "Loading objects, beside programs and libraries that do the same",
    "overhead": "Instructions of the library for each receive, beside those of plain calls",
    "overhead-zcrx": "The same of transport zcrx on Debian's kernel, beside io_uring in C and devmem",
    "tokens": "The kernel's cost of giving pages back, with each kind of token",
    "gather": "The gather kernels, counted instruction by instruction in an interpreter of PTX",
    "perf": "Throughput, CPU and latency over the software NIC",
    "connect": "Connecting, with the rules that this makes",
    "tap": "Opening a tap, and its effect on receivers",
    "including": "Time of the compiler for programs on gpurx, beside the same on sockets of Asio",
    "copy": "Transport copy into a GPU's memory, counted on the fake driver over loopback",
    "give-back": "Giving pages back behind streams: CPU time and delay, on the fake driver",
}


def benchmarks() -> list[str]:
    script = (REPO / "tests/bench/run.sh").read_text(encoding="utf-8")
    return re.search(r"^benchmarks=\((.*)\)$", script, re.M).group(1).split()


def results(kept: Path, measured: Path) -> dict[str, Path]:
    """By name. Results of this machine come second: another machine would make another site."""
    found = {path.stem: path for directory in (measured, kept) for path in sorted(directory.glob("*.json"))}
    # An older ./run bench wrote no tables.
    return {name: path for name, path in found.items() if "tables" in read(path)}


def read(result: Path) -> dict[str, Any]:
    return json.loads(result.read_text(encoding="utf-8"))


def draw(files: list[Path], to: Path) -> None:
    if files:
        subprocess.run([REPO / "tests/bench/plot.sh", "--to", to, *files], check=True, stdout=subprocess.DEVNULL)


def origin(content: dict[str, Any], result: Path, kept: Path) -> str:
    machine = content["machine"]
    on = f" on {machine['cpu']}, {machine['cpus']} cores, Linux {machine['kernel']}," if machine else ""
    where = f"; all figures are in `tests/bench/results/{result.name}`" if result.parent == kept else ", where this site was made"
    return f"Measured{on} on {content['date']} by `{content['command']}` at {content['commit']}{where}."


def markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines] + [""]


def section(name: str, result: Path | None, plots: Path, kept: Path) -> list[str]:
    lines = [f"## {name}", ""]
    if name in WHAT:
        lines += [f"{WHAT[name]}.", ""]
    if result is None:
        return [*lines, f"Not drawn here: `./run bench {name} && ./run docs` does it.", ""]
    content = read(result)
    for number, table in enumerate(content["tables"], 1):
        picture = plots / f"{name}-{number}.svg"
        if picture.exists():
            lines += [f"![{table['title']}](plots/{picture.name})", ""]
        rows = [[row, *map(text_of_cell, cells)] for row, cells in table["rows"].items()]
        lines += ["<details>", f"<summary>Figures: {table['title']}</summary>", ""]
        lines += [*markdown(["", *table["columns"]], rows), "</details>", ""]
    return [*lines, origin(content, result, kept), ""]


def bars(found: dict[str, Path]) -> list[str]:
    """Missed ones come last."""
    rows = []
    for name, path in found.items():
        for bar in read(path)["bars"]:
            limit = f"{'≥' if bar['at_least'] else '≤'} {bar['limit']}{bar['unit']}{MISSED * (not bar['holds'])}"
            rows.append([f"{name}: {bar['name']}", text_of(bar["value"]) + bar["unit"], limit])
    rows.sort(key=lambda row: row[-1].endswith(MISSED))
    return ["## Bars", "", "A bar is what the project asks of itself.", "", *markdown(["", "figure", "bar"], rows)]


def page(found: dict[str, Path], plots: Path, kept: Path = KEPT) -> str:
    lines = [
        "# Plots",
        "",
        "`./run docs` draws results of `./run bench`. The lab's guest is emulated: instructions there count, time does not. A "
        "picture shows medians; strokes go from the least to the most of the rounds. "
        "[Figures of the kernel series](kernel/linux-7.3-figures.md) and [how to measure](guides/measuring.md) have pages.",
        "",
    ]
    for name in [*WHAT, *sorted(set(found) - set(WHAT))]:
        lines += section(name, found.get(name), plots, kept)
    return "\n".join(lines + bars(found))


def main() -> None:
    to = Path(sys.argv[1])
    if missing := set(benchmarks()) - set(WHAT):
        raise SystemExit(f"figures.py: say what {', '.join(sorted(missing))} measures")
    found = results(KEPT, MEASURED)
    draw(list(found.values()), to / "plots")
    (to / "figures.md").write_text(page(found, to / "plots"), encoding="utf-8")


if __name__ == "__main__":
    main()
