# SPDX-License-Identifier: Apache-2.0
"""The table of steps, and which of them may run side by side."""

from __future__ import annotations

import os
import unittest
from pathlib import Path

from record import files_of
from steps import Step, may_start, of_tiers, read_table

TABLE = """# a comment
@core   cmake framework
@unit_a @core tests/unit/a

format | style   | check |  2 | 1   |               | . +comments | tests/lint/format.sh
a      | default | tests | 15 | all |               | @unit_a | a.sh
lab    | full    | tests | 15 | 1   | debian branch | @core b | selfcheck.sh | cat
ml     | named   | tests | 60 | all |               | b | run.sh
"""
BUILD = Step("dev", "default", "tests", 20, "all", (), (), "build")
PLAIN = Step("python", "default", "tests", 20, "1", (), (), "run.sh")
GUEST = Step("framework", "full", "tests", 20, "1", ("debian",), (), "run.sh")
DEBUG = Step("tokens-debug", "full", "tests", 20, "1", ("debug",), (), "run.sh")


class Reading(unittest.TestCase):
    def test_rows_and_groups(self) -> None:
        table = read_table(TABLE)
        self.assertEqual(table.groups["@unit_a"], ("cmake", "framework", "tests/unit/a"))
        self.assertEqual(table.steps[1], Step("a", "default", "tests", 15, "all", (), table.groups["@unit_a"], "a.sh"))
        self.assertEqual((table.steps[2].kernels, table.steps[2].command), (("debian", "branch"), "selfcheck.sh | cat"))

    def test_a_word_that_is_none(self) -> None:
        for right, wrong, why in (("full", "fully", "tier, kind or cores"), ("check", "cheque", "tier, kind or cores"),
                                  ("| all |", "| 2 |", "tier, kind or cores"), ("@core b", "@b", "group: @b")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, f"no such {why}"):
                read_table(TABLE.replace(right, wrong))

    def test_tiers(self) -> None:
        for tier, names in (("style", ["format"]), ("default", ["format", "a"]), ("full", ["format", "a", "lab"])):
            self.assertEqual([step.name for step in of_tiers(read_table(TABLE).steps, tier)], names)

    def test_ours(self) -> None:
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(Path(__file__).parents[2])
        steps = read_table(Path("tests/steps").read_text(encoding="utf-8")).steps
        self.assertEqual(len({step.name for step in steps}), len(steps))
        for step in steps:
            words = tuple(word for word in step.inputs if word != "+comments")
            self.assertTrue(files_of(words), f"{step.name} depends on nothing")
            for word in words:
                self.assertTrue(word == "." or list(Path().glob(word.removeprefix(":!"))), f"{word} is not there")
            script = step.command.split()[0]
            if script.startswith("tests/") and script != "tests/check.py":
                covered = any(word in (".", script) or script.startswith(f"{word}/") for word in words)
                self.assertTrue(covered, f"{step.name} does not depend on its own {script}")


class SideBySide(unittest.TestCase):
    def test_cores_and_memory(self) -> None:
        for step, running, cores, gib, may in (
            (DEBUG, [], 1, 0.5, True),  # alone, whatever there is
            (GUEST, [PLAIN], 2, 16, True),
            (GUEST, [PLAIN, GUEST], 2, 16, False),
            (GUEST, [GUEST], 4, 4, True),
            (DEBUG, [GUEST], 4, 5.9, False),
            (GUEST, [DEBUG], 4, 5.9, False),
            (BUILD, [GUEST], 8, 64, False),
            (GUEST, [BUILD], 8, 64, False),
        ):
            self.assertEqual(may_start(step, running, cores=cores, gib=gib), may, (step.name, running, cores, gib))
