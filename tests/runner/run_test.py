# SPDX-License-Identifier: Apache-2.0
"""Whole runs, with commands of a moment, and what is chosen to run."""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import time
import unittest
import unittest.mock
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import record
import run
from record import Records
from steps import Step, Table

sys.path.insert(0, str(Path(__file__).parents[1]))
import check  # noqa: E402: found by the line above


def one_step(name: str, command: str, kind: str = "check", *, kernels: Sequence[str] = (), tier: str = "full",
             cores: str = "1") -> Step:
    return Step(name, tier, kind, 1, cores, tuple(kernels), (), command)


def some_steps(*commands: str, kind: str = "check") -> list[Step]:
    return [one_step(f"step{i}", command, kind) for i, command in enumerate(commands)]


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.dict(os.environ))
        self.enterContext(unittest.mock.patch.multiple(record, LOCAL=self.place / "record", COMMITTED=self.place / "committed"))
        self.enterContext(unittest.mock.patch.multiple(run, LOGS=self.place / "logs", FLAKY=self.place / "flaky"))
        for module in (run, record):
            self.enterContext(unittest.mock.patch.object(module, "state_of", lambda step: step.command.replace(" ", "_")))

    def new_run(self, steps: list[Step], minutes: float = math.inf) -> run.Run:
        one = run.Run(steps, Records(), minutes=minutes)
        one.cores, one.gib = 2, 8
        return one

    def test_failures_are_counted_and_the_rest_goes_on(self) -> None:
        one = self.new_run(some_steps("true", "exit 3", "true"))
        self.assertFalse(one.carry_out())
        self.assertEqual([one.tallies[step.name].passed for step in one.steps], [1, 0, 1])
        self.assertEqual(one.tallies["step1"].failures, ["ended with status 3"])

    def test_what_was_green_is_recorded_and_nothing_else(self) -> None:
        commands = ("echo ok - a", "echo not ok - a", "echo 'ok - b # SKIP offline'", "echo ok - a; exit 1")
        self.new_run(some_steps(*commands, kind="tests")).carry_out()
        self.assertEqual(list(record.read(record.LOCAL)), ["step0"])

    def test_two_that_wait_for_each_other(self) -> None:
        meet = f"touch {self.place}/{{0}}; until [[ -e {self.place}/{{1}} ]]; do sleep 0.1; done"
        self.assertTrue(self.new_run(some_steps(meet.format("a", "b"), meet.format("b", "a"))).carry_out())

    def test_no_step_has_a_kernel_that_was_not_built(self) -> None:
        one = self.new_run([one_step("branch", "false", cores="all"), one_step("lab", "true", kernels=["branch"])])
        one.carry_out()
        self.assertEqual(one.tallies["lab"].skips, ["lab: its kernel is missing: branch has not passed"])

    def test_a_step_that_hangs_is_ended_and_all_that_it_started(self) -> None:
        one = self.new_run([replace(one_step("hangs", "sleep 1000; true"), minutes=0)])
        with unittest.mock.patch.object(run, "SECONDS_BETWEEN_LOOKS", 0):
            one.carry_out()
        self.assertEqual(one.tallies["hangs"].failures, ["ended with status -9"])

    def test_the_limit_of_a_step_is_as_long_as_the_machine_is_slow(self) -> None:
        with unittest.mock.patch.object(run, "times_slower", lambda: 4.0):
            one = run.Running(one_step("a", "a"), unittest.mock.Mock(pid=0), "", looked=time.monotonic() - 100)
            one.end_if_it_hangs()
        self.assertAlmostEqual(one.used, 25, delta=20)

    def test_an_interrupt_ends_what_was_started(self) -> None:
        begun, ended = self.place / "begun", self.place / "ended"
        one = self.new_run(some_steps(f"(trap 'touch {ended}; exit' TERM; touch {begun}; while sleep 0.1; do :; done) & wait"))

        def sleep(_: float) -> None:
            if begun.exists():
                raise KeyboardInterrupt

        with unittest.mock.patch("time.sleep", sleep), self.assertRaises(KeyboardInterrupt):
            one.carry_out()
        self.assertEqual(one.running[0].process.wait(60), -signal.SIGTERM)
        end = time.monotonic() + 60
        while not ended.exists():
            self.assertLess(time.monotonic(), end)

    def test_what_takes_longer_than_is_left_does_not_begin(self) -> None:
        record.write(record.COMMITTED, {"step0": record.Green("step0", "x", "-+-", "-", 30, 1)})
        one = self.new_run(some_steps("true", "true"), minutes=0.9)
        one.carry_out()
        self.assertEqual([one.tallies[step.name].passed for step in one.steps], [1, 0])
        self.assertRegex(one.tallies["step1"].skips[0], "it takes about 1:00, and 0:5[0-4] are left")

    def test_the_tiers(self) -> None:
        steps = [one_step("style", "a", tier="style"), one_step("test", "b", tier="default"), one_step("full", "c")]
        table = Table(steps, {"@unit_a": ()})
        for words, names in (("quick", ["style", "unit_a"]), ("default", ["style", "test"]), ("full", ["style", "test", "full"]),
                             ("changed", ["full"]), ("test full", ["test", "full"])):  # fmt: skip
            options = run.read_arguments(words.split(), {"test", "full"})
            self.assertEqual([step.name for step in run.choose(table, Records(), options)], names)

    def test_only_what_changed_runs_and_one_more_if_asked(self) -> None:
        def changed(*arguments: str) -> bool:
            return run.run_chosen(table, Records(), run.read_arguments(["changed", *arguments], set()))

        ran = self.place / "ran"
        table = Table([*some_steps(f"echo a >>{ran}", "echo"), one_step("unit", "false", tier="default")], {})
        self.assertTrue(changed())
        self.assertEqual(sorted(record.read(record.LOCAL)), ["step0", "step1"])
        table.steps[1] = one_step("step1", "false")
        self.assertFalse(changed())
        self.assertFalse(run.status(table, Records()))
        table.steps[1:] = []
        self.assertTrue(changed())
        self.assertTrue(run.status(table, Records()))
        self.assertEqual(ran.read_text(), "a\n")
        self.assertTrue(changed("--again"))
        self.assertEqual(ran.read_text(), "a\na\n")

    def test_the_unit_tests_are_green_with_all_of_them(self) -> None:
        table = Table([one_step("test", "echo ok - a", "tests", tier="default")], {"@unit_a": ("a",), "@core": ("b",)})
        self.assertTrue(run.run_chosen(table, Records(), run.read_arguments([], set())))
        self.assertEqual(sorted(record.read(record.LOCAL)), ["test", "unit_a"])
        self.assertEqual(run.choose(table, Records(), run.read_arguments(["quick"], set())), [])

    def test_a_flaky_step_is_seen(self) -> None:
        table = Table([one_step("a", f"[[ $(wc -l <{self.place}/ran) != 1 ]]; s=$?; echo >>{self.place}/ran; exit $s")], {})
        (self.place / "ran").touch()
        self.assertFalse(run.flaky(table, Records(), 3, ["a"]))
        self.assertEqual((self.place / "ran").read_text(), "\n" * 3)

    def test_arguments_that_make_no_sense(self) -> None:
        for good in ("", "quick", "a b", "changed --minutes 5 --again", "flaky 3", "flaky 3 a"):
            run.read_arguments(good.split(), {"a", "b"})
        for bad in ("quick a", "no-step", "a c", "changed --minutes x", "full --again", "flaky", "flaky a", "flaky 3 c"):
            with self.subTest(bad), unittest.mock.patch("sys.stderr"), self.assertRaises(SystemExit):
                run.read_arguments(bad.split(), {"a", "b"})


class Checks(unittest.TestCase):
    """tests/check.py"""

    def test_what_cmake_leaves(self) -> None:
        checks = check.read_checks("a|a: |FALSE|/b/x;/b/y\npackage|package.|TRUE|\n")
        self.assertEqual(checks, [check.Check("a", "a: ", False, frozenset({"/b/x", "/b/y"})),
                                  check.Check("package", "package.", True, frozenset())])  # fmt: skip
        for names, chosen in (([], checks[:1]), (["package"], checks[1:])):
            self.assertEqual(check.choose(checks, names), chosen)
        with self.assertRaises(SystemExit):
            check.choose(checks, ["b"])

    def test_programs_that_ninja_has_linked(self) -> None:
        lines = ["[1/3] Building CXX object x.o\n", "[2/3] Linking CXX executable tests/x\n", "FAILED: y.o\n", "y.cpp:1: error\n",
                 "[3/3] Linking CXX shared library tests/y.so.1\n"]  # fmt: skip
        errors: list[str] = []
        self.assertEqual(list(check.linked(iter(lines), Path("/b"), errors)), ["/b/tests/x", "/b/tests/y.so.1"])
        self.assertEqual(errors, lines[2:4])
