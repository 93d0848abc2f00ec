#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run plot [FILE...]`: draws what benchmarks and gpurx-perf have measured, as build/plots/NAME.svg and .png.

FILE: JSON of a `./run bench` or of `gpurx-perf client --json`; without: all in build/bench. Of a benchmark the figures that
have a bar are drawn, each beside its bar; of gpurx-perf the throughput of every round, the CPU, and latencies."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "gpurx"  # the same picture for the same figures
from matplotlib import pyplot  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from report import OUTPUT  # noqa: E402

PLOTS = OUTPUT.parent / "plots"
HOLDS, FALLS_SHORT, BAR = "#2a6f97", "#c1121f", "#343a40"
WAYS = ("#2a6f97", "#e09f3e", "#5f0f40", "#386641", "#9a031e", "#6c757d")


def draw_bars(name: str, content: dict[str, Any]) -> Figure:
    """Each figure as a part of its bar, so that ones of different units fit in one picture."""
    bars = [bar for bar in content["bars"] if bar["limit"]]
    figure, axes = pyplot.subplots(figsize=(9, 1.2 + 0.34 * len(bars)), layout="constrained")
    places = range(len(bars))
    parts = [bar["value"] / bar["limit"] for bar in bars]
    axes.barh(places, parts, color=[HOLDS if bar["holds"] else FALLS_SHORT for bar in bars], height=0.7)
    axes.axvline(1, color=BAR, linewidth=1.5)
    for place, bar, part in zip(places, bars, parts, strict=True):
        relation = "≥" if bar["at_least"] else "≤"
        axes.annotate(f" {bar['value']:.3g}{bar['unit']} ({relation} {bar['limit']:g}{bar['unit']})", (part, place),
                      va="center", fontsize=8)  # fmt: skip
    axes.set_yticks(places, [bar["name"] for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.35 * max([1.0, *parts]))
    axes.set_xlabel("of its bar (the line)")
    axes.set_title(f"{name}: {content['machine']['cpu']}, {content['machine']['cpus']} cores", fontsize=10)
    return figure


def label(setting: dict[str, Any]) -> str:
    return f"{setting['transport']}\n{setting['setting'].replace(' --', chr(10) + '--')}"


def draw_perf(name: str, content: dict[str, Any]) -> Figure:
    figure, (speed, cpu, latency) = pyplot.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    settings = content["settings"]
    names = [label(one) for one in settings]
    for place, (one, colour) in enumerate(zip(settings, WAYS * len(settings))):
        rounds = [each["gib_per_second"] for each in content["rounds"]
                  if (each["setting"], each["transport"]) == (one["setting"], one["transport"])]  # fmt: skip
        speed.bar(place, one["gib_per_second"], color=colour, alpha=0.6)
        speed.plot([place] * len(rounds), rounds, "_", color=BAR, markersize=14)
        cpu.bar(place - 0.2, one["process_cpu_per_gib"], 0.4, color=colour)
        cpu.bar(place + 0.2, one["machine_cpu_per_gib"], 0.4, color=colour, alpha=0.4)
        percents = [key for key in one["latency_us"] if key != "count"]
        latency.plot(percents, [one["latency_us"][key] for key in percents], "o-", color=colour, label=names[place].replace("\n", " "))
    for axes, title in ((speed, "GiB/s: median, and each round"), (cpu, "CPU seconds per GiB: process, machine (pale)")):
        axes.set_xticks(range(len(names)), names, fontsize=7)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=10)
    latency.set_yscale("log")
    latency.set_title("latency of a message, us", fontsize=10)
    latency.legend(fontsize=7)
    load = content["load"]
    figure.suptitle(f"{name}: {load['flows']} flows, messages of {load['message']} bytes, {load['window']} under way", fontsize=11)
    return figure


def draw(path: Path) -> bool:
    """False: there is nothing in it to be drawn."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if "gpurx_perf" in content:
        figure = draw_perf(path.stem, content)
    elif any(bar["limit"] for bar in content.get("bars", [])):
        figure = draw_bars(path.stem, content)
    else:
        return False
    for ending in ("svg", "png"):
        written = PLOTS / f"{path.stem}.{ending}"
        figure.savefig(written, dpi=110, metadata={"Date": None} if ending == "svg" else None)
        print(f"written: {os.path.relpath(written)}")
    pyplot.close(figure)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    files = parser.parse_args().files or sorted(OUTPUT.glob("*.json"))
    if not files:
        sys.exit("plot: nothing was measured yet; ./run bench measures")
    PLOTS.mkdir(parents=True, exist_ok=True)
    drawn = [path for path in files if draw(path)]
    for path in files:
        if path not in drawn:
            print(f"{path.name} has no figure with a bar", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
