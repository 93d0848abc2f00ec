#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The test of times.py, and of what it keeps."""

from __future__ import annotations

import json
import tempfile
import unittest
from pathlib import Path

from times import RUNS_KEPT, keep, load, warnings


def runs(*seconds: int) -> list[dict[str, object]]:
    return [{"date": "", "steps": {"dev": one}} for one in seconds]


class Warnings(unittest.TestCase):
    def test_a_third_slower_is_said(self) -> None:
        self.assertEqual(warnings(runs(100, 90, 110), {"dev": 140}),
                         ["slower: dev took 140 s, 100 s in the last 3 runs"])

    def test_less_is_not(self) -> None:
        self.assertEqual(warnings(runs(100, 90, 110), {"dev": 130}), [])

    def test_seconds_are_not(self) -> None:
        self.assertEqual(warnings(runs(5, 5), {"dev": 19}), [])

    def test_one_run_says_nothing(self) -> None:
        self.assertEqual(warnings(runs(100), {"dev": 1000}), [])

    def test_a_new_step_says_nothing(self) -> None:
        self.assertEqual(warnings(runs(100, 100), {"lab": 1000}), [])


class File(unittest.TestCase):
    def test_runs_are_kept_the_oldest_go(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "new" / "times.json"
            for number in range(RUNS_KEPT + 1):
                keep(path, {"dev": number})
            self.assertEqual([run["steps"]["dev"] for run in load(path)], list(range(1, RUNS_KEPT + 1)))

    def test_what_is_no_such_file_is_begun_anew(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "times.json"
            for text in ("", "{}", "[1]", json.dumps([{"steps": 3}])):
                path.write_text(text, encoding="utf-8")
                self.assertEqual(load(path), [])


if __name__ == "__main__":
    unittest.main()
