#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Results are summaries, pictures are made of them, and refused files are named:  plot_test.py

With a Python that has matplotlib; plot.sh finds one."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import plot
import report
from matplotlib.text import Text
from report import Bar, Report, Table, summary, text_of, text_of_cell

HERE = Path(__file__).resolve().parent
# gpurx-perf wrote it; tests/tools/perf_test.py compares its names with those that gpurx-perf writes now.
PERF = HERE / "perf_sample.json"
KEPT = sorted((HERE / "results").glob("*.json"))
# CSS pixels of the text on a phone's page of 390, and points in one.
PAGE, POINT = 358, 0.75

COSTS = Table("Costs", ["CPU seconds", "GiB/s", "requests"], {"gpurx": [[1.5, 1.25, 2], [3, 4, 5], 7], "curl": [2.5, None, []]},
              drawn=2, emulated=True)  # fmt: skip
KINDS = Table("Tokens", ["stock", "branch"], {"1 flow": [1000, 150], "4 flows": [31000, None]}, drawn=2, together=True)
NOT_DRAWN = Table("Calls", ["calls"], {"gpurx": [12345]})
MISSED = Bar("missed", 3, "x", 2)


def shown(figure: plot.Figure) -> list[Text]:
    figure.canvas.draw()
    # Ticks beyond the ends of an axis are there, but not drawn.
    beyond = {id(tick.label1) for axes in figure.axes for tick in axes.xaxis.get_major_ticks()
              if not axes.viewLim.x0 <= tick.get_loc() <= axes.viewLim.x1}  # fmt: skip
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip() and id(text) not in beyond]


def text_in(figure: plot.Figure) -> str:
    return " ".join(" ".join(text.get_text().split()) for text in shown(figure))


@functools.cache
def kept_pictures() -> dict[str, tuple[str, plot.Figure, list[Text]]]:
    """Of the results in the sources: title, figure and texts, by name."""
    found = {}
    for file in KEPT:
        content = plot.content_of(file)
        for name, figure in plot.figures_of(file.stem, content).items():
            table = content["tables"][int(name.rsplit("-", 1)[1]) - 1]
            found[name] = table["title"], figure, shown(figure)
    return found


class Results(unittest.TestCase):
    def test_samples_become_the_median_and_the_ends(self) -> None:
        self.assertEqual(summary([3.0, 1, 8, 4]), [3.5, 1, 8])
        self.assertEqual(summary(iter([2.0, 2])), 2)
        self.assertEqual(summary(1 / 3), 0.3333333)
        self.assertIsNone(summary([]))
        self.assertIsNone(summary(None))
        self.assertEqual(summary(summary([3, 1, 9])), [3, 1, 9])

    def test_figures_have_three_digits_at_least(self) -> None:
        self.assertEqual([text_of(each) for each in (0.6, 12.34, 99.96, 1234.5, 65, 31905, 0.0)],
                         ["0.600", "12.3", "100", "1,234", "65", "31,905", "0.00"])  # fmt: skip
        self.assertEqual([text_of_cell(each) for each in (None, 65, [0.5, 0.25, 1.0])], ["–", "65", "0.500 (0.250–1.00)"])

    def test_a_report_is_written_as_a_summary(self) -> None:
        made = Report("made", {"rounds": 3}, bars=[MISSED])
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as directory, mock.patch.object(report, "OUTPUT", Path(directory)):
            with mock.patch.dict("os.environ", GPURX_BENCH="./run bench made 3"), contextlib.redirect_stdout(said):
                made.table(COSTS)
                self.assertEqual(made.finish(), 3)
            text = (Path(directory) / "made.json").read_text(encoding="utf-8")
        content = json.loads(text)
        self.assertEqual(content["command"], "./run bench made 3")
        self.assertRegex(content["date"], r"^\d{4}-\d\d-\d\d$")
        self.assertEqual(Table(**content["tables"][0]), COSTS)
        self.assertEqual(content["bars"][0]["holds"], False)
        self.assertIn("1.50 (1.25–2.00)", said.getvalue())
        self.assertIn("missed: 3.000x (limit <= 2x) FALLS SHORT", said.getvalue())

    def test_a_row_is_a_line(self) -> None:
        rows = {f"row {number}": [[number, 0, 100.5]] * 8 for number in range(3)}
        text = report.dumped({"rows": rows})
        self.assertEqual(json.loads(text), {"rows": rows})
        self.assertEqual([line.count("row") for line in text.splitlines()], [0, 1, 1, 1, 1, 0, 0])

    def test_kept_results_have_their_origin_and_their_bars(self) -> None:
        self.assertTrue(KEPT)
        for file in KEPT:
            with self.subTest(file.name):
                content = json.loads(file.read_text(encoding="utf-8"))
                self.assertEqual(content["name"], file.stem)
                self.assertTrue(content["date"] and content["commit"])
                # NAME, or a NAME-OPTION
                name, *option = file.stem.split("-")
                self.assertTrue(content["command"].startswith(f"./run bench {name}"))
                self.assertTrue(all(part in content["command"] for part in option))
                self.assertEqual([bar["holds"] for bar in content["bars"]],
                                 [Bar(**{key: bar[key] for key in bar if key != "holds"}).holds for bar in content["bars"]])
                self.assertEqual(file.read_text(encoding="utf-8"), report.dumped(content) + "\n")


class Plot(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.addCleanup(plot.pyplot.close, "all")
        self.directory = Path(directory.name)
        self.to = self.directory / "plots"

    def content(self, *tables: Table) -> dict[str, Any]:
        with mock.patch.object(report, "machine", return_value={"cpu": "a CPU", "cpus": 2, "kernel": "7.3"}):
            return Report("x", {}, list(tables)).content()

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

    def test_tables_become_pictures_by_their_number(self) -> None:
        file = self.file("costs.json", self.content(COSTS, NOT_DRAWN, KINDS))
        self.assertEqual(self.run_plot(file), (0, ""))
        self.assertEqual({path.name for path in self.to.iterdir()},
                         {f"costs-{number}.{ending}" for number in (1, 3) for ending in ("svg", "png")})  # fmt: skip
        first = (self.to / "costs-1.svg").read_bytes()
        self.assertTrue(ElementTree.fromstring(first).tag.endswith("svg"))
        self.assertEqual((self.to / "costs-1.png").read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.run_plot(file)
        self.assertEqual((self.to / "costs-1.svg").read_bytes(), first)

    def test_a_panel_has_every_row_and_its_figures_peers_first(self) -> None:
        figure = plot.draw_table(COSTS, "measured here")
        text = text_in(figure)
        for word in "Costs", "CPU seconds", "GiB/s", "1.50", "2.50", "4", "measured here":
            self.assertIn(word, text)
        self.assertNotIn("requests", text)
        self.assertLess(text.index("curl"), text.index("gpurx"))
        cpu, rate = figure.axes
        self.assertEqual([bar.get_width() for bar in cpu.patches], [2.5, 1.5])
        self.assertEqual([bar.get_width() for bar in rate.patches], [4])

    def test_columns_of_one_kind_share_a_panel(self) -> None:
        (axes,) = plot.draw_table(KINDS, "").axes
        self.assertEqual([(line.get_label(), list(line.get_xdata())) for line in axes.lines],
                         [("stock", [1000, 31000]), ("branch", [150, None])])  # fmt: skip
        self.assertEqual(axes.get_xscale(), "log")

    def test_rounds_of_gpurx_perf(self) -> None:
        content = json.loads(PERF.read_text(encoding="utf-8"))
        first, second = plot.figures_of("perf", content).values()
        self.assertIn("4 flows, messages of 262,144 bytes, 4 at once", text_in(first))
        for axes, key in zip(first.axes, ("gib_per_second", "process_cpu_per_gib", "machine_cpu_per_gib"), strict=True):
            drawn = [bar.get_width() for bar in axes.patches]
            self.assertEqual(drawn, [summary(one[key]) for one in content["settings"]])
        latencies = [list(line.get_xdata()) for line in second.axes[0].lines]
        self.assertEqual(latencies[0], [summary(one["latency_us"]["p50"] / 1e3) for one in content["settings"]])
        self.assertNotIn("emulated", text_in(first))
        self.assertEqual(self.run_plot(PERF), (0, ""))

    def test_pictures_can_be_read_on_a_phone(self) -> None:
        for name, (_, figure, texts) in kept_pictures().items():
            with self.subTest(name):
                edge = figure.bbox.padded(1)
                boxes = [(one.get_text(), one.get_window_extent()) for one in texts]
                clipped = [text for text, box in boxes if not (edge.contains(*box.min) and edge.contains(*box.max))]
                self.assertEqual(clipped, [])
                both = [(text, other) for (text, box), (other, beside) in itertools.combinations(boxes, 2)
                        if box.padded(-3).overlaps(beside.padded(-3))]  # fmt: skip
                self.assertEqual(both, [])
                scale = PAGE * POINT / (figure.get_figwidth() * 72)
                self.assertGreaterEqual(min(one.get_fontsize() for one in texts) * scale, 9)

    def test_pictures_of_the_lab_say_that_throughput_is_no_result(self) -> None:
        of_lab = {"overhead", "tokens", "connect", "tap", "perf"}
        for name, (title, figure, _) in kept_pictures().items():
            with self.subTest(name):
                is_emulated = name.split("-")[0] in of_lab or "in the lab" in title
                self.assertEqual(plot.EMULATED in text_in(figure), is_emulated)

    def test_a_refused_file_is_named_and_the_rest_is_drawn(self) -> None:
        good = self.file("good.json", self.content(COSTS))
        whole = self.content(KINDS)
        without_drawn = self.content(KINDS) | {"tables": [{"title": "x"}]}
        bad = {
            "cut.json": (json.dumps(whole)[:-20], "no JSON"),
            "list.json": ([1, 2], "neither of a ./run bench nor of gpurx-perf"),
            "other.json": ({"name": "x"}, "neither of a ./run bench nor of gpurx-perf"),
            "lacking.json": (without_drawn, "its data for the plot is incomplete: TypeError"),
            "perf.json": ({"gpurx_perf": "0.1"}, "its data for the plot is incomplete: KeyError"),
        }
        for name, (what, why) in bad.items():
            with self.subTest(name):
                file = self.file(name, what)
                status, said = self.run_plot(file, good)
                self.assertEqual(status, 1)
                self.assertIn(f"plot: {file}: {why}", said)
                self.assertTrue((self.to / "good-1.svg").exists())
                self.assertFalse([*self.to.glob(f"{file.stem}-*")])
        status, said = self.run_plot(self.directory / "missing.json")
        self.assertEqual(status, 1)
        self.assertIn("missing.json: No such file or directory", said)

    def test_a_result_without_a_picture_is_no_fault(self) -> None:
        bare = self.file("rfc.json", self.content(NOT_DRAWN))
        self.assertEqual(self.run_plot(bare)[0], 1)
        status, said = self.run_plot(bare, self.file("good.json", self.content(COSTS)))
        self.assertEqual(status, 0)
        self.assertIn("none of its tables has a plot", said)


if __name__ == "__main__":
    unittest.main()
