#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of steps, who may run beside whom, and what a step 'once' hangs on."""

from __future__ import annotations

import tempfile
import unittest
import unittest.mock
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import once
import run
from steps import Step, choose, is_too_late, may_start, read_steps

TABLE = """# a comment
format | 2 | check | | tests/lint/format.sh

lab    | 15 | once | debian branch | selfcheck.sh | cat
"""
BUILD = Step("dev", 20, "tests", (), "build", quick=True)
GUEST = Step("framework", 20, "tests", ("debian",), "run.sh", quick=False)
DEBUG = Step("tokens-debug", 20, "once", ("debug",), "run.sh", quick=False)


class Table(unittest.TestCase):
    def test_rows(self) -> None:
        self.assertEqual(read_steps(TABLE), [
            Step("format", 2, "check", (), "tests/lint/format.sh", quick=True),
            Step("lab", 15, "once", ("debian", "branch"), "selfcheck.sh | cat", quick=False)])

    def test_a_kind_that_is_none(self) -> None:
        with self.assertRaisesRegex(ValueError, "lab: no such kind: twice"):
            read_steps(TABLE.replace("once", "twice"))

    def test_ours(self) -> None:
        steps = read_steps((Path(__file__).parents[1] / "steps").read_text(encoding="utf-8"))
        self.assertEqual(len({step.name for step in steps}), len(steps))
        self.assertEqual([step.name for step in steps if step.quick][-1], "dev")

    def test_choice(self) -> None:
        steps = [BUILD, GUEST, DEBUG]
        self.assertEqual(choose(steps, quick=False, names=[]), steps)
        self.assertEqual(choose(steps, quick=True, names=[]), [BUILD])
        self.assertEqual(choose(steps, quick=True, names=["framework"]), [GUEST])

    def test_what_is_for_its_name_alone_is_not_among_all(self) -> None:
        (large,) = read_steps("ml | 60 | named | | run.sh\n")
        self.assertEqual(choose([BUILD, large], quick=False, names=[]), [BUILD])
        self.assertEqual(choose([BUILD, large], quick=True, names=[]), [BUILD])
        self.assertEqual(choose([BUILD, large], quick=False, names=["ml"]), [large])


class Late(unittest.TestCase):
    def test_what_is_once_begins_early_or_ends_in_time(self) -> None:
        once_only = replace(GUEST, kind="once")
        self.assertFalse(is_too_late(once_only, 39, 90))
        self.assertFalse(is_too_late(once_only, 50, 20))
        self.assertTrue(is_too_late(once_only, 50, 30))

    def test_all_others_begin_before_a_run_is_too_long(self) -> None:
        self.assertFalse(is_too_late(GUEST, 70, 60))
        self.assertTrue(is_too_late(GUEST, 76, 1))
        self.assertTrue(is_too_late(replace(GUEST, minutes=40), 70, 60))

    def test_what_is_once_comes_last(self) -> None:
        steps = read_steps((Path(__file__).parents[1] / "steps").read_text(encoding="utf-8"))
        kinds = [step.kind for step in steps if step.kind != "named"]
        self.assertEqual(kinds, sorted(kinds, key=lambda kind: kind == "once"))


class SideBySide(unittest.TestCase):
    def test_alone_whatever_there_is(self) -> None:
        self.assertTrue(may_start(DEBUG, [], guests=1, gib=0.5))

    def test_guests_up_to_their_number(self) -> None:
        self.assertTrue(may_start(GUEST, [GUEST], guests=2, gib=16))
        self.assertFalse(may_start(GUEST, [GUEST, GUEST], guests=2, gib=16))

    def test_guests_up_to_the_memory(self) -> None:
        self.assertTrue(may_start(GUEST, [GUEST], guests=4, gib=4))
        self.assertFalse(may_start(DEBUG, [GUEST], guests=4, gib=5.9))
        self.assertFalse(may_start(GUEST, [DEBUG], guests=4, gib=5.9))

    def test_what_builds_has_the_machine(self) -> None:
        self.assertFalse(may_start(BUILD, [GUEST], guests=8, gib=64))
        self.assertFalse(may_start(GUEST, [BUILD], guests=8, gib=64))


class Once(unittest.TestCase):
    def test_all_of_it_counts(self) -> None:
        files = {"a": b"1", "b": b"2"}
        whole = once.digest(DEBUG, files, ["kernel"])
        self.assertEqual(whole, once.digest(DEBUG, dict(reversed(files.items())), ["kernel"]))
        for other in (once.digest(DEBUG, {"a": b"1", "b": b"3"}, ["kernel"]), once.digest(DEBUG, {"a": b"1"}, ["kernel"]),
                      once.digest(DEBUG, files, ["another"]),
                      once.digest(replace(DEBUG, command="run.sh --longer"), files, ["kernel"])):
            self.assertNotEqual(whole, other)

    def test_only_who_runs_them_hangs_on_patches_and_the_nics_tests(self) -> None:
        plain = replace(DEBUG, name="selftests", kernels=("debian",))
        self.assertIn(":!kernel-support/linux-7.3", once.pathspecs(plain))
        self.assertNotIn(":!kernel-support/linux-7.3", once.pathspecs(DEBUG))
        self.assertIn(":!kernel-support/devmemsim/tests", once.pathspecs(DEBUG))
        self.assertNotIn(":!kernel-support/devmemsim/tests", once.pathspecs(replace(DEBUG, name="nic-stress")))

    def test_others_hang_on_what_they_see_of_ours(self) -> None:
        metrics = once.pathspecs(Step("prometheus", 5, "once", (), "run.sh", quick=False))
        self.assertIn("framework/src/metrics*", metrics)
        self.assertNotIn("kernel-support", metrics)
        scripts = once.pathspecs(Step("bpftrace", 10, "once", ("debian",), "run.sh", quick=False))
        self.assertIn("framework/tools/bpftrace", scripts)
        steps = read_steps((Path(__file__).parents[1] / "steps").read_text(encoding="utf-8"))
        self.assertLessEqual(set(once.OTHERS), {step.name for step in steps if step.kind == "once"})
        # A name that is none hangs on nothing.
        for path in (path for paths in once.OTHERS.values() for path in paths if not path.startswith(":!")):
            self.assertTrue(list(Path(__file__).parents[2].glob(path)), path)

    def test_packages_hang_on_what_they_are_made_of(self) -> None:
        packages = once.pathspecs(Step("packages", 30, "once", (), "run.sh", quick=False))
        self.assertIn("framework", packages)
        self.assertIn("kernel-support/devmemsim", packages)
        self.assertNotIn("kernel-support", packages)
        wheel = once.pathspecs(Step("wheel-lab", 30, "once", ("debian",), "wheel.sh", quick=False))
        self.assertLessEqual({"framework", "kernel-support/lab", "tests/python"}, set(wheel))


class Runs(unittest.TestCase):
    """The whole of it, with commands of a moment."""

    def run_steps(self, *commands: str, kind: str = "check", named: bool = True, kernels: Sequence[tuple[str, ...]] = ()) -> run.Run:
        with tempfile.TemporaryDirectory() as directory:
            logs, run.LOGS = run.LOGS, Path(directory)
            try:
                steps = [Step(f"step{i}", 1, kind, kernels[i] if kernels else ("debian",), command, quick=True)
                         for i, command in enumerate(commands)]
                one = run.Run(steps, named=named)
                one.guests, one.gib = 2, 8
                one.all_steps()
                return one
            finally:
                run.LOGS = logs

    def test_failures_are_counted_and_the_rest_goes_on(self) -> None:
        one = self.run_steps("true", "exit 3", "true")
        self.assertEqual([one.tallies[name].passed for name in one.order], [1, 0, 1])
        self.assertEqual(one.tallies["step1"].failures, ["ended with status 3"])

    def test_what_runs_when_the_run_is_over_is_ended_and_fails_by_what_has_failed(self) -> None:
        commands = ("echo ok 1 - a; sleep 60", "echo not ok 1 - b; sleep 60", "sleep 60", "sleep 60; true")
        with unittest.mock.patch.multiple(run, RUN_END=1 / 60, is_too_late=lambda *_: False):
            one = self.run_steps(*commands, kind="tests", named=False)
        counts = [(tally.passed, len(tally.failures), len(tally.skips)) for tally in one.tallies.values()]
        self.assertEqual(counts, [(1, 0, 1), (0, 1, 1), (0, 0, 1), (0, 0, 1)])
        self.assertRegex(one.tallies["step0"].skips[0], "^step0: ended after 0:0[01], as this run is over; it comes with")

    def test_no_step_has_a_kernel_that_another_was_to_build(self) -> None:
        with unittest.mock.patch.object(run, "is_too_late", lambda step, *_: step.command == "build"):
            one = self.run_steps("build", "true", kernels=[(), ("step0",)], named=False)
        self.assertEqual(one.tallies["step1"].skips, ["step1: its kernel is not there: step0 has not passed"])

    def test_two_that_wait_for_each_other(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            meet = f"touch {place}/{{0}}; for _ in $(seq 100); do [[ -e {place}/{{1}} ]] && exit 0; sleep 0.1; done; exit 1"
            one = self.run_steps(meet.format("a", "b"), meet.format("b", "a"))
        self.assertEqual([tally.passed for tally in one.tallies.values()], [1, 1])

    def test_results_that_cannot_be_read_are_a_failure(self) -> None:
        with tempfile.NamedTemporaryFile(suffix=".xml") as results:
            one = self.run_steps(f"echo results: {results.name}", kind="tests")
        self.assertEqual(len(one.tallies["step0"].failures), 1)

    def test_what_was_skipped_as_a_whole_has_not_passed(self) -> None:
        with tempfile.TemporaryDirectory() as place, unittest.mock.patch.object(once, "stamp", lambda step, _: Path(place, step.name)):
            self.run_steps("echo ok - a", "echo 'ok - b # SKIP offline'", kind="once")
            self.assertEqual([path.name for path in Path(place).iterdir()], ["step0"])


if __name__ == "__main__":
    unittest.main(buffer=True)
