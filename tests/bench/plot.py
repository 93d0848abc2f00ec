#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run plot [FILE...]`: draws results of benchmarks and of gpurx-perf as build/plots/NAME-N.svg and .png.

FILE: JSON of a `./run bench` or of `gpurx-perf client --json`; without: all in build/bench. N counts the tables of the file;
some have no picture. A bar ends at the median, and its stroke goes from the least to the most."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
# A picture is as wide as the page of a phone, and its letters keep their size there. The same figures make the same picture.
matplotlib.rcParams.update({"font.size": 11.5, "axes.titlesize": 12.5, "figure.titlesize": 12.5, "svg.hashsalt": "gpurx"})
from matplotlib import pyplot, ticker  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from perf import tables_of  # noqa: E402
from report import OUTPUT, Table, text_of  # noqa: E402

PLOTS = OUTPUT.parent / "plots"
WIDTH = 4.5  # inches
LINE = 0.21  # inches, of text
EMULATED = "The guest is emulated: throughput there is no result."
OWN, OTHER = "#2a6f97", "#adb5bd"
KINDS = (("#6c757d", "s"), ("#2a6f97", "o"), ("#e09f3e", "^"), ("#5f0f40", "D"), ("#386641", "v"))


class Refusal(Exception):
    """Why a file cannot be drawn, for people."""


class Bare(Refusal):
    """There is nothing in it to be drawn, and that is no fault."""


def wrapped(text: str, width: int = 40) -> str:
    return textwrap.fill(text, width, break_long_words=False)


def peers_first(table: Table) -> dict[str, list[Any]]:
    return dict(sorted(table.rows.items(), key=lambda row: "gpurx" in row[0]))


def draw_bars(axes: Axes, rows: dict[str, Any]) -> None:
    """The median of each row, with a stroke from its least to its most."""
    for place, (name, cell) in enumerate(rows.items()):
        if cell is None:
            continue
        median, least, most = cell if isinstance(cell, list) else (cell, cell, cell)
        spread = [[median - least], [most - median]] if least < most else None
        axes.barh(place, median, 0.34, xerr=spread, color=OWN if "gpurx" in name else OTHER, ecolor="#343a40", capsize=2)
        axes.text(1, place - 0.24, text_of(median), ha="right", va="bottom", transform=axes.get_yaxis_transform())
    axes.set_xlim(left=0)


def draw_dots(axes: Axes, rows: dict[str, list[Any]], columns: list[str]) -> None:
    """Medians, a mark for each column. The axis is logarithmic where they differ that much."""
    medians = [[cell[0] if isinstance(cell, list) else cell for cell in cells] for cells in rows.values()]
    for (colour, mark), column, values in zip(KINDS * len(columns), columns, zip(*medians)):
        axes.plot(values, range(len(rows)), mark, color=colour, label=column, markersize=7, alpha=0.85)
    values = [value for row in medians for value in row if value is not None]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, handletextpad=0.1, columnspacing=1)


def draw_table(table: Table, caption: str) -> Figure:
    """Panels below each other: one of all columns if they are of one kind, else one of each."""
    rows, columns = peers_first(table), table.columns[: table.drawn]
    names = [wrapped(name) for name in rows]
    lines = max(name.count("\n") + 1 for name in names)
    panels = 1 if table.together else len(columns)
    height = LINE * (4 + panels * (3 + len(rows) * (lines + 1)) + (table.together * (len(columns) + 1) // 2))
    figure, grid = pyplot.subplots(panels, figsize=(WIDTH, height), squeeze=False, layout="constrained")
    for number, axes in enumerate(grid[:, 0]):
        if table.together:
            draw_dots(axes, {name: cells[: table.drawn] for name, cells in rows.items()}, columns)
        else:
            draw_bars(axes, {name: cells[number] for name, cells in rows.items()})
            axes.set_title(wrapped(columns[number]), loc="left")
        for place, name in enumerate(names):
            axes.text(0, place - 0.24, name, va="bottom", linespacing=1, transform=axes.get_yaxis_transform())
        axes.set_ylim(len(rows) - 0.7, -0.24 - lines / (lines + 1))
        axes.set_yticks([])
        if axes.get_xscale() == "linear":
            axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.9g}")
        axes.spines[["top", "right", "left"]].set_visible(False)
    figure.suptitle(wrapped(table.title, 34), fontweight="bold")
    figure.supxlabel(wrapped(caption, 44), fontsize=matplotlib.rcParams["font.size"])
    return figure


def content_of(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(error.strerror or str(error)) from None
    except ValueError as error:
        raise Refusal(f"no JSON: {error}") from None
    if not isinstance(content, dict) or not ("gpurx_perf" in content or {"name", "tables"} <= content.keys()):
        raise Refusal("neither of a ./run bench nor of gpurx-perf")
    return content


def figures_of(stem: str, content: dict[str, Any]) -> dict[str, Figure]:
    """By the name of the file that they become."""
    perf = "gpurx_perf" in content
    tables = tables_of(content, emulated=False) if perf else [Table(**table) for table in content["tables"]]
    machine = None if perf else content["machine"]
    about = f"{machine['cpu']}, {machine['cpus']} cores, {content['date']}. " if machine else ""
    figures = {f"{stem}-{number}": draw_table(table, about + EMULATED * table.emulated)
               for number, table in enumerate(tables, 1) if table.drawn}  # fmt: skip
    if not figures:
        raise Bare("none of its tables has a plot")
    return figures


def draw(path: Path, to: Path) -> None:
    content = content_of(path)
    try:
        figures = figures_of(path.stem, content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise Refusal(f"its data for the plot is incomplete: {type(error).__name__}: {error}") from None
    for name, figure in figures.items():
        for ending in ("svg", "png"):
            written = to / f"{name}.{ending}"
            figure.savefig(written, dpi=192, metadata={"Date": None} if ending == "svg" else None)
            print(f"written: {os.path.relpath(written)}")
        pyplot.close(figure)


def main() -> int:
    """1: a file could not be drawn, or there was nothing in any."""
    parser = argparse.ArgumentParser(prog="./run plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--to", type=Path, default=PLOTS, metavar="DIRECTORY", help="where pictures go (build/plots)")
    arguments = parser.parse_args()
    files = arguments.files or sorted(OUTPUT.glob("*.json"))
    if not files:
        sys.exit("plot: nothing was measured yet; ./run bench measures")
    arguments.to.mkdir(parents=True, exist_ok=True)
    drawn = refused = 0
    for path in files:
        try:
            draw(path, arguments.to)
            drawn += 1
        except Refusal as refusal:
            print(f"plot: {path}: {refusal}", file=sys.stderr)
            refused += not isinstance(refusal, Bare)
    return 0 if drawn and not refused else 1


if __name__ == "__main__":
    sys.exit(main())
