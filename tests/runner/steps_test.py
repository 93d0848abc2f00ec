# SPDX-License-Identifier: Apache-2.0
"""The table of steps, and which of them may run side by side."""

from __future__ import annotations

import os
import unittest
from pathlib import Path

from record import files_of
from steps import Step, of_tiers, may_start, read_table

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
    def test_rows(self) -> None:
        steps = read_table(TABLE).steps
        self.assertEqual(steps[1], Step("a", "default", "tests", 15, "all", (), ("cmake", "framework", "tests/unit/a"), "a.sh"))
        self.assertEqual(steps[2].kernels, ("debian", "branch"))
        self.assertEqual(steps[2].command, "selfcheck.sh | cat")

    def test_groups(self) -> None:
        self.assertEqual(read_table(TABLE).groups["@unit_a"], ("cmake", "framework", "tests/unit/a"))
        with self.assertRaisesRegex(ValueError, "no such group: @b"):
            read_table(TABLE.replace("@core b", "@b"))

    def test_a_word_that_is_none(self) -> None:
        for right, wrong in (("full", "fully"), ("check", "cheque"), ("| all |", "| 2 |")):
            with self.assertRaisesRegex(ValueError, "no such tier, kind or cores"):
                read_table(TABLE.replace(right, wrong))

    def test_tiers(self) -> None:
        steps = read_table(TABLE).steps
        for tier, names in (("style", ["format"]), ("default", ["format", "a"]), ("full", ["format", "a", "lab"])):
            self.assertEqual([step.name for step in of_tiers(steps, tier)], names)


class Ours(unittest.TestCase):
    """tests/steps itself."""

    def setUp(self) -> None:
        self.root = Path(__file__).parents[2]
        self.table = read_table((self.root / "tests/steps").read_text(encoding="utf-8"))

    def test_names_are_unique(self) -> None:
        self.assertEqual(len({step.name for step in self.table.steps}), len(self.table.steps))

    def test_inputs_are_there(self) -> None:
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.root)
        for step in self.table.steps:
            words = tuple(word for word in step.inputs if word != "+comments")
            self.assertTrue(files_of(words), step.name)
            for word in words:
                self.assertTrue(word == "." or list(self.root.glob(word.removeprefix(":!"))), word)

    def test_a_step_depends_on_its_own_script(self) -> None:
        for step in self.table.steps:
            script = step.command.split()[0]
            if script.startswith("tests/") and script != "tests/check.py":
                covered = any(script == word or script.startswith(f"{word}/") or word == "." for word in step.inputs)
                self.assertTrue(covered, f"{step.name}: {script}")


class SideBySide(unittest.TestCase):
    def test_alone_whatever_there_is(self) -> None:
        self.assertTrue(may_start(DEBUG, [], cores=1, gib=0.5))

    def test_as_many_as_there_are_cores(self) -> None:
        self.assertTrue(may_start(GUEST, [PLAIN], cores=2, gib=16))
        self.assertFalse(may_start(GUEST, [PLAIN, GUEST], cores=2, gib=16))

    def test_guests_up_to_the_memory(self) -> None:
        self.assertTrue(may_start(GUEST, [GUEST], cores=4, gib=4))
        self.assertFalse(may_start(DEBUG, [GUEST], cores=4, gib=5.9))
        self.assertFalse(may_start(GUEST, [DEBUG], cores=4, gib=5.9))

    def test_a_build_has_the_machine(self) -> None:
        self.assertFalse(may_start(BUILD, [GUEST], cores=8, gib=64))
        self.assertFalse(may_start(GUEST, [BUILD], cores=8, gib=64))
