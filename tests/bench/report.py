# SPDX-License-Identifier: Apache-2.0
"""The result of a benchmark: tables of figures and bars, printed, and written as build/bench/NAME.json."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUTPUT = ROOT / "build" / "bench"
LONG = 200  # characters of a line of the JSON

# Samples become [median, least, most], or the one number that all of them are. None stands for no sample.
Cell = float | list[float] | None


def summary(samples: float | Iterable[float] | None) -> Cell:
    """Keeps seven digits of each figure. The summary of a summary is the same."""
    values = [] if samples is None else [samples] if isinstance(samples, (int, float)) else list(samples)
    if not values:
        return None
    rounded = [float(f"{each:.7g}") for each in (statistics.median(values), min(values), max(values))]
    figures = [int(each) for each in rounded] if all(each.is_integer() for each in rounded) else rounded
    return figures if figures[1] != figures[2] else figures[0]


def text_of(value: float) -> str:
    """Three digits at least, of what is no whole number."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 99.95 else f"{value:#.3g}"


def text_of_cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if not isinstance(cell, list):
        return text_of(cell)
    median, least, most = map(text_of, cell)
    return f"{median} ({least}–{most})"


@dataclass
class Table:
    """Figures by row and column. A row has samples of each column, or their summary."""

    title: str
    columns: list[str]
    rows: dict[str, list[Any]]
    drawn: int = 0  # columns that have a picture, from the first
    together: bool = False  # the columns are of one kind and share a picture
    emulated: bool = False  # measured in the lab

    def __post_init__(self) -> None:
        self.rows = {name: [summary(each) for each in cells] for name, cells in self.rows.items()}

    def content(self) -> dict[str, Any]:
        """Without what has its default."""
        return {key: value for key, value in asdict(self).items() if value}


@dataclass
class Bar:
    """A figure and its limit. `at_least` turns the comparison round."""

    name: str
    value: float
    unit: str
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def machine() -> dict[str, Any]:
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown")
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release()}


def commit() -> str:
    """Ends in -dirty where the sources differ from it; empty outside of a repository."""
    done = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True,
                          check=False)
    return done.stdout.strip()


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                        for column, (text, width) in enumerate(zip(row, widths))))


def dumped(value: Any, indent: str = "") -> str:
    """JSON. What fits in a line is in one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) <= LONG or not isinstance(value, (dict, list)):
        return flat
    inner = indent + " "
    parts = ([f"{json.dumps(key, ensure_ascii=False)}: {dumped(each, inner)}" for key, each in value.items()]
             if isinstance(value, dict) else [dumped(each, inner) for each in value])
    return flat[0] + "\n" + ",\n".join(inner + part for part in parts) + "\n" + indent + flat[-1]


@dataclass
class Report:
    name: str
    configuration: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)

    def table(self, table: Table) -> None:
        """Prints it, too."""
        self.tables.append(table)
        rows = [[name, *map(text_of_cell, cells)] for name, cells in table.rows.items()]
        print_table([table.title, *table.columns], rows)
        print()

    def bar(self, bar: Bar) -> None:
        self.bars.append(bar)

    def content(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": commit(),
            "command": os.environ.get("GPURX_BENCH", " ".join(sys.argv)),
            "machine": machine(),
            "configuration": self.configuration,
            "tables": [table.content() for table in self.tables],
            "bars": [asdict(bar) | {"value": summary(bar.value), "holds": bar.holds} for bar in self.bars],
        }

    def finish(self) -> int:
        """Writes the JSON, prints the bars; 3 if one falls short, else 0."""
        OUTPUT.mkdir(parents=True, exist_ok=True)
        path = OUTPUT / f"{self.name}.json"
        path.write_text(dumped(self.content()) + "\n", encoding="utf-8")
        for bar in self.bars:
            relation = ">=" if bar.at_least else "<="
            verdict = "holds" if bar.holds else "FALLS SHORT"
            print(f"bar: {bar.name}: {bar.value:.3f}{bar.unit} (limit {relation} {bar.limit}{bar.unit}) {verdict}")
        print(f"written: {os.path.relpath(path)}")
        return 0 if all(bar.holds for bar in self.bars) else 3
