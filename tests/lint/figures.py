#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the figures of pages with the kept results, as framework/docs/figures.toml lists them, and the programs of
README.md with samples/quick_start."""

import json
import re
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
LIST = "framework/docs/figures.toml"
PRINTED = {"cpp": "samples/quick_start/receive.cpp", "python": "samples/quick_start/load.py"}


def result(benchmark: str) -> dict[str, Any]:
    return json.loads((REPO / f"tests/bench/results/{benchmark}.json").read_text(encoding="utf-8"))


def of_table(benchmark: str, title: str, row: str, column: str, digits: int) -> str:
    (table,) = [one for one in result(benchmark)["tables"] if one["title"] == title]
    cell = table["rows"][row][table["columns"].index(column)]
    return f"{cell[0] if isinstance(cell, list) else cell:.{digits}f}"


def of_bar(benchmark: str, name: str, digits: int) -> str:
    (bar,) = [one for one in result(benchmark)["bars"] if one["name"] == name]
    return f"{bar['value']:.{digits}f}"


def of_h200(loader: str, digits: int) -> str:
    load = json.loads((REPO / "tests/gpu/results/nvidia-h200.json").read_text(encoding="utf-8"))["load"]
    seconds = statistics.median(sample["seconds"] for sample in load["samples"][loader])
    return f"{load['bytes'] / 2**30 / seconds:.{digits}f}"


def wrong_figures(listed: dict[str, Any]) -> list[str]:
    figures = {name: of_table(*where) for name, where in listed["bench"].items()}
    figures |= {name: of_bar(*where) for name, where in listed["bars"].items()}
    figures |= {name: of_h200(*where) for name, where in listed["h200"].items()}
    found, used = [], set()
    for page, texts in listed["shown"].items():
        shown = " ".join((REPO / page).read_text(encoding="utf-8").split())
        for text in texts:
            used |= set(re.findall(r"\{([\w-]+)\}", text))
            expected = re.sub(r"\{([\w-]+)\}", lambda name: figures[name[1]], text)
            if expected not in shown:
                found.append(f"{page}: does not have: {expected}")
    return found + [f"{LIST}: no page shows {name}" for name in sorted(figures.keys() - used)]


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
