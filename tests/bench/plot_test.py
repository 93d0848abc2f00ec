#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures are made of what benchmarks wrote, and what cannot be drawn is named:  plot_test.py

With a Python that has matplotlib; plot.sh finds one."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import drawings
import plot
from matplotlib.text import Text

HERE = Path(__file__).resolve().parent
# As gpurx-perf wrote it: tests/tools/perf_test.py sees that what it writes now has the same names.
PERF = HERE / "perf_sample.json"

MACHINE = {"cpu": "a CPU", "cpus": 2, "kernel": "7.3"}
BARS = [{"name": "holds", "value": 0.9, "unit": "x", "limit": 1.0, "at_least": False, "holds": True},
        {"name": "falls short", "value": 3.0, "unit": "", "limit": 4, "at_least": True, "holds": False},
        {"name": "none at all", "value": 0, "unit": "", "limit": 0, "at_least": False, "holds": True}]  # fmt: skip


def figure(median: float) -> dict[str, float]:
    return {"median": median, "least": median - 1, "spread": 0.1}


def token_cost(tokens: str, memory: str, median: float) -> dict[str, object]:
    return {"page": "4096", "memory": memory, "fragment": "segment", "flows": "4", "tokens": tokens,
            "recvmsg": figure(median), "dontneed": {batch: figure(median / 2) for batch in ("1", "32", "128")}}  # fmt: skip


def loop(instructions: int) -> list[dict[str, int]]:
    return [{"instructions": instructions + round_, "fragments": 100, "receive_calls": 1, "release_calls": 1, "allocations": 0}
            for round_ in range(3)]  # fmt: skip


def cost(cpu: float) -> dict[str, object]:
    return {"cpu": cpu, "seconds": 2 * cpu, "memory": 1 << 20, "first": None, "requests": 3}


SAMPLES = {
    "tokens": {"costs": [token_cost("stock", "huge", 1100), token_cost("owner, branch", "huge", 150),
                         token_cost("stock", "scattered", 31000), token_cost("owner, branch", "scattered", 151)]},
    "overhead": {f"{traffic} {name}": loop(cost)
                 for traffic in ("queued", "paced") for name, cost in (("c", 1000), ("gpurx", 990))},
    "gather": {"sm_90 gpurx_gather": {"registers": 64, "spills": 0},
               "plain 4096-odd": {"instructions": 40.0, "load-sectors": 17.0, "store-sectors": 16.0},
               "crc 65536-aligned": {"instructions": 99.0, "load-sectors": 16.0, "store-sectors": 16.0}},
    "ingest": {"memory": {"gpurx-fetch": [cost(0.5), cost(0.6)], "curl, then a copy": [cost(0.7), cost(0.8)]},
               "names": {"100,000 names": [cost(0.9), cost(1.0)]},
               "devmem": {"gpurx-fetch": {"8388608": [8e6, 9e6], "25165824": [16e6, 18e6]}}},
    "connect": {},
}  # fmt: skip
CONFIGURATION = {"rounds": 3, "tensors_and_bytes_of_each": [64, 1 << 20]}


def content(name: str) -> dict[str, object]:
    samples = SAMPLES["overhead" if name == "overhead-branch" else name]
    return {"name": name, "machine": MACHINE, "configuration": CONFIGURATION, "samples": samples, "bars": BARS}


def text_of(drawn: drawings.Figure) -> str:
    """All that is written in a figure."""
    return "\n".join(each.get_text() for each in drawn.findobj(Text))


class Plot(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.to = self.directory / "plots"

    def file(self, name: str, what: object) -> Path:
        path = self.directory / name
        path.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
        return path

    def run_plot(self, *files: Path) -> tuple[int, str]:
        said = io.StringIO()
        arguments = ["plot.py", "--to", str(self.to), *map(str, files)]
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stderr(said):
            with contextlib.redirect_stdout(io.StringIO()):
                return plot.main(), said.getvalue()

    def test_each_benchmark_becomes_an_svg_and_a_png(self) -> None:
        own = [*drawings.DRAWINGS]
        status, said = self.run_plot(*(self.file(f"{name}.json", content(name)) for name in [*own, "connect"]))
        self.assertEqual((status, said), (0, ""))
        expected = {"connect", *own, *(f"{name}-bars" for name in own)}
        self.assertEqual({path.stem for path in self.to.glob("*.svg")}, expected)
        self.assertEqual({path.stem for path in self.to.glob("*.png")}, expected)
        for path in self.to.glob("*.svg"):
            self.assertTrue(ElementTree.parse(path).getroot().tag.endswith("svg"))
        for path in self.to.glob("*.png"):
            self.assertEqual(path.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_the_same_figures_become_the_same_picture(self) -> None:
        file = self.file("gather.json", content("gather"))
        self.run_plot(file)
        first = (self.to / "gather.svg").read_bytes()
        self.run_plot(file)
        self.assertEqual((self.to / "gather.svg").read_bytes(), first)

    def test_a_picture_has_every_contender_and_its_median(self) -> None:
        words = {
            "tokens": ["scattered 4 KiB pages, 1448 B, 4 flows", "4 KiB pages, 1448 B, 4 flows", "stock", "owner, branch"],
            "overhead": ["C loop", "gpurx", "10", "9.91"],
            "gather": ["plain 4096-odd", "crc 65536-aligned", "40", "99"],
            "ingest": ["gpurx-fetch", "curl, then a copy", "100,000 names", "memory: CPU seconds per GiB", "names: CPU seconds",
                       "8.8", "17.6", "0.531"],
        }  # fmt: skip
        for name, wanted in words.items():
            drawn = drawings.DRAWINGS[name](content(name))
            text = text_of(drawn)
            drawings.pyplot.close(drawn)
            for word in wanted:
                with self.subTest(benchmark=name, word=word):
                    self.assertIn(word, text)

    def test_rounds_of_gpurx_perf(self) -> None:
        content = json.loads(PERF.read_text(encoding="utf-8"))
        drawn = drawings.draw_perf("perf", content)
        self.addCleanup(drawings.pyplot.close, drawn)
        text = text_of(drawn)
        for word in "perf: 4 flows, messages of 262144 bytes, 4 under way", "copy --read --transport copy", "copy --loan":
            self.assertIn(word, text)
        speed, cpu, latency = drawn.axes
        settings = content["settings"]
        self.assertEqual([bar.get_height() for bar in speed.patches], [one["gib_per_second"] for one in settings])
        rounds = [sorted(each["gib_per_second"] for each in content["rounds"] if each["setting"] == one["setting"])
                  for one in settings]  # fmt: skip
        self.assertEqual([sorted(line.get_ydata()) for line in speed.lines], rounds)
        self.assertEqual([bar.get_height() for bar in cpu.patches],
                         [one[f"{whose}_cpu_per_gib"] for one in settings for whose in ("process", "machine")])
        for line, one in zip(latency.lines, settings, strict=True):
            self.assertEqual(dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) | {"count": one["latency_us"]["count"]},
                             one["latency_us"])  # fmt: skip

        self.assertEqual(self.run_plot(PERF), (0, ""))
        self.assertEqual({path.name for path in self.to.iterdir()}, {f"{PERF.stem}.svg", f"{PERF.stem}.png"})

    def test_what_is_kept_can_be_drawn(self) -> None:
        kept = sorted((HERE / "results").glob("*.json"))
        self.assertTrue(kept)
        for file in kept:
            with self.subTest(file.name):
                figures = plot.figures_of(file.stem, plot.content_of(file))
                self.assertIn(file.stem, figures)
                for drawn in figures.values():
                    self.assertGreater(len("".join(text_of(drawn).split())), 100)
                    drawings.pyplot.close(drawn)

    def test_what_cannot_be_drawn_is_named_and_the_rest_is_drawn(self) -> None:
        good = self.file("overhead.json", content("overhead"))
        cut = json.dumps(content("gather"))[:-20]
        lacking = content("ingest") | {"configuration": {}}
        bad = {
            "cut.json": (cut, "no JSON"),
            "list.json": ([1, 2], "neither of a ./run bench nor of gpurx-perf"),
            "other.json": ({"name": "x"}, "neither of a ./run bench nor of gpurx-perf"),
            "lacking.json": (lacking, "it lacks what is drawn of it: KeyError: 'tensors_and_bytes_of_each'"),
            "perf.json": ({"gpurx_perf": "0.1"}, "it lacks what is drawn of it: KeyError"),
        }
        for name, (what, why) in bad.items():
            with self.subTest(name):
                file = self.file(name, what)
                status, said = self.run_plot(file, good)
                self.assertEqual(status, 1)
                self.assertIn(f"plot: {file}: {why}", said)
                self.assertTrue((self.to / "overhead.svg").exists())
                self.assertFalse((self.to / f"{file.stem}.svg").exists())
        status, said = self.run_plot(self.directory / "missing.json")
        self.assertEqual(status, 1)
        self.assertIn("missing.json: No such file or directory", said)

    def test_without_a_bar_there_is_nothing_and_that_is_no_fault(self) -> None:
        bare = self.file("rfc.json", content("connect") | {"name": "rfc", "bars": []})
        self.assertEqual(self.run_plot(bare)[0], 1)
        status, said = self.run_plot(bare, self.file("connect.json", content("connect")))
        self.assertEqual(status, 0)
        self.assertIn("it has no figure with a bar", said)


if __name__ == "__main__":
    unittest.main()
