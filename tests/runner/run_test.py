# SPDX-License-Identifier: Apache-2.0
"""Whole runs, with commands of a moment, and what is chosen to run."""

from __future__ import annotations

import sys
import tempfile
import unittest
import unittest.mock
from collections.abc import Sequence
from pathlib import Path

import record
import run
from steps import Step, Table

sys.path.insert(0, str(Path(__file__).parents[1]))
import check  # noqa: E402: found by the line above


class Runs(unittest.TestCase):
    def setUp(self) -> None:
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.multiple(record, LOCAL=self.place / "record", COMMITTED=self.place / "committed"))
        self.enterContext(unittest.mock.patch.multiple(run, LOGS=self.place / "logs", FLAKY=self.place / "flaky"))
        for module in (run, record):
            self.enterContext(unittest.mock.patch.object(module, "state_of", lambda step: step.command.replace(" ", "_")))

    def step(self, name: str, command: str, kind: str = "check", kernels: Sequence[str] = (), tier: str = "full",
             cores: str = "1") -> Step:
        return Step(name, tier, kind, 1, cores, tuple(kernels), (), command)

    def steps(self, *commands: str, kind: str = "check") -> list[Step]:
        return [self.step(f"step{i}", command, kind) for i, command in enumerate(commands)]

    def run_steps(self, steps: list[Step], minutes: float | None = None) -> run.Run:
        one = run.Run(steps, run.Records(), minutes=minutes)
        one.cores, one.gib = 2, 8
        self.passed = run.carry_out(one)
        return one

    def test_failures_are_counted_and_the_rest_goes_on(self) -> None:
        one = self.run_steps(self.steps("true", "exit 3", "true"))
        self.assertEqual([one.tallies[name].passed for name in one.order], [1, 0, 1])
        self.assertEqual(one.tallies["step1"].failures, ["ended with status 3"])
        self.assertFalse(self.passed)

    def test_what_was_green_is_recorded_and_nothing_else(self) -> None:
        self.run_steps(self.steps("echo ok - a", "echo not ok - a", "echo 'ok - b # SKIP offline'", "echo ok - a; exit 1", kind="tests"))
        self.assertEqual(list(record.read(self.place / "record")), ["step0"])

    def test_two_that_wait_for_each_other(self) -> None:
        meet = f"touch {self.place}/{{0}}; until [[ -e {self.place}/{{1}} ]]; do sleep 0.1; done"
        self.run_steps(self.steps(meet.format("a", "b"), meet.format("b", "a")))
        self.assertTrue(self.passed)

    def test_no_step_has_a_kernel_that_was_not_built(self) -> None:
        one = self.run_steps([self.step("branch", "false", cores="all"), self.step("lab", "true", kernels=["branch"])])
        self.assertEqual(one.tallies["lab"].skips, ["lab: its kernel is not there: branch has not passed"])

    def test_a_step_that_hangs_is_ended_and_all_that_it_started(self) -> None:
        with unittest.mock.patch.object(run.Running, "end_if_it_hangs", lambda one: one.stop(run.signal.SIGKILL)):
            with unittest.mock.patch.object(run, "SECONDS_BETWEEN_LOOKS", 0):
                one = self.run_steps(self.steps("sleep 1000; true"))
        self.assertEqual(one.tallies["step0"].failures, ["ended with status -9"])

    def test_the_limit_of_a_step_is_as_long_as_the_machine_is_slow(self) -> None:
        with unittest.mock.patch.object(run, "times_slower", lambda: 4.0):
            one = run.Running(self.step("a", "a"), unittest.mock.Mock(pid=0), "", looked=run.time.monotonic() - 100)
            one.end_if_it_hangs()
        self.assertAlmostEqual(one.used, 25, delta=20)

    def test_what_takes_longer_than_is_left_does_not_begin(self) -> None:
        record.write(self.place / "committed", {"step0": record.Green("step0", "x", "-+-", "-", 30, 1)})
        one = self.run_steps(self.steps("true", "true"), minutes=0.9)
        self.assertEqual([one.tallies[name].passed for name in one.order], [1, 0])
        self.assertRegex(one.tallies["step1"].skips[0], "it takes about 1:00, and 0:5[0-4] are left")

    def test_only_what_changed_runs(self) -> None:
        table = Table([*self.steps("true", "echo"), self.step("unit", "false", tier="default")], {})
        self.assertTrue(run.changed(table, run.Records(), []))
        self.assertEqual(sorted(record.read(self.place / "record")), ["step0", "step1"])
        table.steps[1] = self.step("step1", "false")
        self.assertFalse(run.changed(table, run.Records(), []))
        self.assertFalse(run.status(table, run.Records()))
        table.steps[1:] = []
        self.assertTrue(run.changed(table, run.Records(), []))
        self.assertTrue(run.status(table, run.Records()))

    def test_one_of_the_others_runs_again(self) -> None:
        table = Table(self.steps(f"echo a >>{self.place}/ran"), {})
        run.changed(table, run.Records(), [])
        run.changed(table, run.Records(), ["--again"])
        run.changed(table, run.Records(), [])
        self.assertEqual((self.place / "ran").read_text(), "a\na\n")

    def test_a_flaky_step_is_seen(self) -> None:
        table = Table([self.step("a", f"[[ $(wc -l <{self.place}/ran) != 1 ]]; s=$?; echo >>{self.place}/ran; exit $s")], {})
        (self.place / "ran").touch()
        self.assertFalse(run.flaky(table, run.Records(), ["3", "a"]))
        self.assertEqual((self.place / "ran").read_text(), "\n" * 3)


class Checks(unittest.TestCase):
    """tests/check.py"""

    TEXT = "a|a: |FALSE|/b/x;/b/y\npackage|package.|TRUE|\n"

    def test_what_cmake_leaves(self) -> None:
        checks = check.read_checks(self.TEXT)
        self.assertEqual(checks, [check.Check("a", "a: ", False, frozenset({"/b/x", "/b/y"})),
                                  check.Check("package", "package.", True, frozenset())])  # fmt: skip
        self.assertEqual([one.name for one in check.choose(checks, [])], ["a"])
        self.assertEqual([one.name for one in check.choose(checks, ["package"])], ["package"])
        with self.assertRaises(SystemExit):
            check.choose(checks, ["b"])

    def test_programs_that_ninja_has_linked(self) -> None:
        lines = ["[1/3] Building CXX object x.o\n", "[2/3] Linking CXX executable tests/x\n", "FAILED: y.o\n", "y.cpp:1: error\n",
                 "[3/3] Linking CXX shared library tests/y.so.1\n"]  # fmt: skip
        errors: list[str] = []
        self.assertEqual(list(check.linked(iter(lines), Path("/b"), errors)), ["/b/tests/x", "/b/tests/y.so.1"])
        self.assertEqual(errors, ["FAILED: y.o\n", "y.cpp:1: error\n"])
