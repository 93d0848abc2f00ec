# SPDX-License-Identifier: Apache-2.0
"""Pictures of what benchmarks measured: of those that are about more than their bars. Each takes the content of a JSON of
report.py and gives a matplotlib Figure; what it lacks is a KeyError, or another of ValueError's kind. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "gpurx"  # the same picture for the same figures
from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from ingest_figures import GIB, Cost, is_own, slope  # noqa: E402

Content = dict[str, Any]

HOLDS, FALLS_SHORT, BAR = "#2a6f97", "#c1121f", "#343a40"
OWN, OTHER = "#2a6f97", "#adb5bd"
WAYS = ("#2a6f97", "#e09f3e", "#5f0f40", "#386641", "#9a031e", "#6c757d")


def machine_of(content: Content) -> str:
    machine = content["machine"]
    return f"{machine['cpu']}, {machine['cpus']} cores"


def draw_bars(content: Content) -> Figure:
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
    axes.set_title(f"{content['name']}: {machine_of(content)}", fontsize=10)
    return figure


def across(axes: Axes, rows: list[tuple[str, list[float], str]], title: str) -> None:
    """A bar to the right for each row (name, values, colour): their median, and a stroke for each."""
    for place, (_, values, colour) in enumerate(rows):
        middle = statistics.median(values)
        axes.barh(place, middle, color=colour, height=0.66)
        axes.plot(values, [place] * len(values), "|", color=BAR, markersize=9, alpha=0.6)
        axes.annotate(f" {middle:,.0f}" if middle >= 1000 else f" {middle:.3g}", (max(values), place), va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(max(values) for _, values, _ in rows))
    axes.set_title(title, fontsize=10)


def draw_tokens(content: Content) -> Figure:
    """What a fragment costs the kernel, received and given back, with each kind of token: a line for each traffic. The
    axis is logarithmic: what scattered memory costs stock is out of all proportion."""
    costs = content["samples"]["costs"]

    def traffic(cost: Content) -> str:
        size = "1448 B" if cost["fragment"] == "segment" else "full"
        memory = "scattered " * (cost["memory"] == "scattered")
        return f"{memory}{int(cost['page']) // 1024} KiB pages, {size}, {cost['flows']} flow{'s'[:cost['flows'] != '1']}"

    names = list(dict.fromkeys(map(traffic, costs)))
    kinds = list(dict.fromkeys(cost["tokens"] for cost in costs))
    figure, axes = pyplot.subplots(figsize=(9, 1.4 + 0.36 * len(names)), layout="constrained")
    for kind, colour in zip(kinds, WAYS * len(kinds)):
        mine = [cost for cost in costs if cost["tokens"] == kind]
        sums = [cost["recvmsg"]["median"] + cost["dontneed"]["128"]["median"] for cost in mine]
        axes.plot(sums, [names.index(traffic(cost)) for cost in mine], "o", color=colour, label=kind, markersize=7)
    axes.set_xscale("log")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_xlabel("guest instructions per fragment: recvmsg, and SO_DEVMEM_DONTNEED with 128 a call")
    axes.set_title("what a token costs the kernel", fontsize=10)
    return figure


def draw_overhead(content: Content) -> Figure:
    """Of each loop the instructions per fragment, and every round."""
    samples = content["samples"]
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 2.2), layout="constrained")
    for axes, traffic in zip(panels, ("queued", "paced"), strict=True):
        # Fragments of the C loop are what the kernel delivered; gpurx may have joined neighbours.
        fragments = statistics.median(one["fragments"] for one in samples[f"{traffic} c"])
        across(axes, [(name, [one["instructions"] / fragments for one in samples[f"{traffic} {loop}"]], colour)
                      for name, loop, colour in (("C loop", "c", OTHER), ("gpurx", "gpurx", OWN))],
               f"{traffic}: guest instructions per fragment")  # fmt: skip
    figure.suptitle(f"{content['name']}: gpurx beside a hand-written loop, {content['configuration']['rounds']} rounds",
                    fontsize=11)
    return figure


def draw_gather(content: Content) -> Figure:
    """What the kernels cost for pieces of each size and alignment. They are counted, so there are no rounds. What the
    machine code is like is not drawn."""
    samples = {name: of for name, of in content["samples"].items() if "registers" not in of}

    def rows(figure: str) -> list[tuple[str, list[float], str]]:
        return [(name, [of[figure]], OWN if name.startswith("plain") else WAYS[1]) for name, of in samples.items()]

    figure, panels = pyplot.subplots(1, 3, figsize=(13, 1.2 + 0.3 * len(samples)), layout="constrained", sharey=True)
    titles = {"instructions": "PTX instructions of a warp per KiB", "load-sectors": "sectors per request: loads",
              "store-sectors": "sectors per request: stores"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        across(axes, rows(key), title)
    # Of all that share the axis.
    panels[0].set_ylim(len(samples) - 0.5, -0.5)
    figure.suptitle("gather: the kernels by their text (sm_80, 90, 100) and piece (bytes, alignment); with a CRC32C in the other colour", fontsize=11)
    return figure


def of_scene(costs: dict[str, list[list[Any]]], each: Callable[[Cost], float]) -> list[tuple[str, list[float], str]]:
    return [(name, [each(Cost(**cost)) for cost in of], OWN if is_own(name) else OTHER) for name, of in costs.items()]


def draw_ingest(content: Content) -> Figure:
    """Who brings an object at what cost: CPU time and throughput of each contender in each scene."""
    samples = dict(content["samples"])
    tensors, each = content["configuration"]["tensors_and_bytes_of_each"]
    lab = samples.pop("devmem", {})
    heights = [max(2, len(costs)) for costs in samples.values()] + [max(2, len(lab))] * bool(lab)
    figure = pyplot.figure(figsize=(13, 1 + sum(0.42 * height + 0.5 for height in heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=[height + 1 for height in heights])
    for row, (scene, costs) in enumerate(samples.items()):
        # The scene of many tensors has objects of its own.
        gib = 1 if scene == "names" else tensors * each / GIB
        unit = "" if scene == "names" else " per GiB"
        across(figure.add_subplot(grid[row, 0]), of_scene(costs, lambda cost: cost.cpu / gib), f"{scene}: CPU seconds{unit}")
        across(figure.add_subplot(grid[row, 1]), of_scene(costs, lambda cost: cost.seconds / gib), f"{scene}: seconds{unit}")
    if lab:
        slopes = {name: slope({int(size): values for size, values in by_size.items()}) for name, by_size in lab.items()}
        across(figure.add_subplot(grid[-1, 0]), [(name, [value / 1e6 for value in one.each], OWN if is_own(name) else OTHER)
                                                for name, one in slopes.items()],
               "devmem, in the lab: millions of instructions per MiB")  # fmt: skip
    figure.suptitle(f"ingest: {machine_of(content)}", fontsize=11)
    return figure


def label(setting: Content) -> str:
    return f"{setting['transport']}\n{setting['setting'].replace(' --', chr(10) + '--')}"


def draw_perf(name: str, content: Content) -> Figure:
    """Of gpurx-perf: the throughput of every round, the CPU, and latencies."""
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


# By the name of the benchmark. Of the others the bars are drawn.
DRAWINGS: dict[str, Callable[[Content], Figure]] = {
    "tokens": draw_tokens,
    "overhead": draw_overhead,
    "overhead-branch": draw_overhead,
    "gather": draw_gather,
    "ingest": draw_ingest,
}
