#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the figures of pages with the kept results, as framework/docs/figures.toml lists them, and the programs of
README.md with samples/quick_start."""

import functools
import json
import re
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
LIST = "framework/docs/figures.toml"
H200 = "tests/gpu/results/nvidia-h200.json"
FIGURE = re.compile(r"\{([\w.-]+)\}")
PRINTED = {"cpp": "samples/quick_start/receive.cpp", "python": "samples/quick_start/load.py"}


@functools.cache
def read(path: str) -> dict[str, Any]:
    return json.loads((REPO / path).read_text(encoding="utf-8"))


def result(benchmark: str) -> dict[str, Any]:
    return read(f"tests/bench/results/{benchmark}.json")


def of_row(benchmark: str, title: str, row: str, columns: dict[str, list[Any]]) -> dict[str, str]:
    """By the short names of the columns that the table has."""
    (table,) = [one for one in result(benchmark)["tables"] if one["title"] == title]
    cells = dict(zip(table["columns"], table["rows"][row]))
    medians = {short: (cells.get(column), digits) for short, (column, digits) in columns.items()}
    numbers = {short: (cell[0] if isinstance(cell, list) else cell, digits) for short, (cell, digits) in medians.items()}
    return {short: f"{number:.{digits}f}" for short, (number, digits) in numbers.items() if number is not None}


def of_bar(benchmark: str, name: str, digits: int) -> str:
    (bar,) = [one for one in result(benchmark)["bars"] if one["name"] == name]
    return f"{bar['value']:.{digits}f}"


def of_h200(loader: str, digits: int) -> str:
    load = read(H200)["load"]
    seconds = statistics.median(sample["seconds"] for sample in load["samples"][loader])
    return f"{load['bytes'] / 2**30 / seconds:.{digits}f}"


def of_flow(sender: str, receiver: str) -> dict[str, str]:
    (flow,) = [one for one in read(H200)["benchmarks"]["transport"] if (one["sender"], one["receiver"]) == (sender, receiver)]
    return {"rate": f"{flow['gb_per_s']:.1f}", "cpu": f"{flow['process_cpu_s_per_gib']:.2f}"}


def wrong_figures(listed: dict[str, Any]) -> list[str]:
    figures = {name: of_bar(*where) for name, where in listed["bars"].items()}
    figures |= {name: of_h200(*where) for name, where in listed["h200"].items()}
    rows = {name: of_row(*where, listed["columns"]) for name, where in listed["rows"].items()}
    rows |= {name: of_flow(*where) for name, where in listed["h200-flows"].items()}
    figures |= {f"{name}.{column}": figure for name, row in rows.items() for column, figure in row.items()}
    found, used = [], set()
    for page, texts in listed["shown"].items():
        shown = " ".join((REPO / page).read_text(encoding="utf-8").split())
        for text in texts:
            used |= {name.partition(".")[0] for name in FIGURE.findall(text)}
            expected = FIGURE.sub(lambda name: figures[name[1]], text)
            if expected not in shown:
                found.append(f"{page}: does not have: {expected}")
    names = rows.keys() | listed["bars"].keys() | listed["h200"].keys()
    return found + [f"{LIST}: no page shows {name}" for name in sorted(names - used)]


def wrong_programs() -> list[str]:
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    found = []
    for language, path in PRINTED.items():
        program = (REPO / path).read_text(encoding="utf-8").split("\n", 1)[1]
        if f"```{language}\n{program}```" not in readme:
            found.append(f"README.md: does not print {path}")
    return found


def main() -> int:
    listed = tomllib.loads((REPO / LIST).read_text(encoding="utf-8"))
    found = wrong_figures(listed) + wrong_programs()
    print("\n".join(found), end="\n" * bool(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
