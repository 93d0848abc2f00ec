#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run plot [FILE...]`: draws what benchmarks and gpurx-perf have measured, as build/plots/NAME.svg and .png.

FILE: JSON of a `./run bench` or of `gpurx-perf client --json`; without: all in build/bench. Token cost, overhead, gather and
ingest have pictures of their own; of every benchmark the figures that have a bar are drawn, each beside its bar (of those
four as NAME-bars); of gpurx-perf the throughput of every round, the CPU, and latencies."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from drawings import DRAWINGS, Content, Figure, draw_bars, draw_perf, pyplot
from report import OUTPUT

PLOTS = OUTPUT.parent / "plots"


class Refusal(Exception):
    """Why a file cannot be drawn, for people."""


class Bare(Refusal):
    """There is nothing in it to be drawn, and that is no fault."""


def content_of(path: Path) -> Content:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refusal(error.strerror or str(error)) from None
    except ValueError as error:
        raise Refusal(f"no JSON: {error}") from None
    if not isinstance(content, dict) or not ("gpurx_perf" in content or {"name", "machine", "bars"} <= content.keys()):
        raise Refusal("neither of a ./run bench nor of gpurx-perf")
    return content


def figures_of(stem: str, content: Content) -> dict[str, Figure]:
    """By the name of the file that they become."""
    if "gpurx_perf" in content:
        return {stem: draw_perf(stem, content)}
    figures = {}
    own = DRAWINGS.get(content["name"])
    if own:
        figures[stem] = own(content)
    if any(bar["limit"] for bar in content["bars"]):
        figures[f"{stem}-bars" if own else stem] = draw_bars(content)
    if not figures:
        raise Bare("it has no figure with a bar")
    return figures


def draw(path: Path, to: Path) -> None:
    content = content_of(path)
    try:
        figures = figures_of(path.stem, content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Refusal(f"it lacks what is drawn of it: {type(error).__name__}: {error}") from None
    for name, figure in figures.items():
        for ending in ("svg", "png"):
            written = to / f"{name}.{ending}"
            figure.savefig(written, dpi=110, metadata={"Date": None} if ending == "svg" else None)
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
