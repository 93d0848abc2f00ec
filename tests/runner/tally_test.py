# SPDX-License-Identifier: Apache-2.0
"""What tally.py makes of the logs that steps leave: above all, that nothing red or empty counts as green."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import tally

JUNIT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="x" tests="3" failures="1" skipped="1">
<testcase name="good" status="run"><system-out>fine</system-out></testcase>
<testcase name="bad" status="fail"><failure message=""/><system-out>1 != 2</system-out></testcase>
<testcase name="left out" status="notrun"><skipped message="SKIP_RETURN_CODE=4"/>
<system-out>x.cpp:3: SKIPPED:
explicitly with message:
  no /dev/udmabuf: No such file
  or directory

===============================================================================
test cases: 1 | 1 skipped
assertions: 3 | 3 passed

</system-out></testcase>
<testcase name="never started" status="notrun"><skipped message="Unable to find executable"/>
<system-out>Unable to find executable: x</system-out></testcase>
</testsuite>
"""


class Checks(unittest.TestCase):
    def test_exit_status_decides(self) -> None:
        self.assertEqual(tally.count_check(0, "whatever").passed, 1)
        self.assertEqual(tally.count_check(1, "").failures, ["ended with status 1"])

    def test_skip_is_not_a_pass(self) -> None:
        result = tally.count_check(0, "SKIP tidy: no clang-tidy 14\n")
        self.assertEqual((result.passed, result.skips), (0, ["tidy: no clang-tidy 14"]))


class Tests(unittest.TestCase):
    def counts(self, status: int, log: str) -> tuple[int, int, int]:
        result = tally.count_tests(status, log)
        return result.passed, len(result.failures), len(result.skips)

    def test_nothing_run_is_a_failure(self) -> None:
        self.assertEqual(self.counts(0, "all is well\n"), (0, 1, 0))
        self.assertEqual(self.counts(0, "0 passed, 0 failed\n"), (0, 1, 0))
        self.assertEqual(self.counts(2, "cannot boot\n"), (0, 1, 0))

    def test_bad_status_without_failed_test_is_a_failure(self) -> None:
        self.assertEqual(self.counts(124, "ok 1 a\n"), (1, 1, 0))
        self.assertEqual(self.counts(125, "3 passed, 0 failed\n"), (3, 1, 0))

    def test_closing_line(self) -> None:
        log = "ok    x\nFAIL  y   (1 = 2)\nSKIP a: no KVM\n7 passed, 2 failed, 2 skipped\n"
        self.assertEqual(self.counts(1, log), (7, 2, 2))
        self.assertEqual(tally.count_tests(1, log).failures, ["y   (1 = 2)", "unnamed, see the log"])
        self.assertEqual(tally.count_tests(1, log).skips, ["a: no KVM", "unnamed: no reason given"])

    def test_unittest(self) -> None:
        line = "-" * 70
        self.assertEqual(self.counts(0, f"....\n{line}\nRan 4 tests in 1.8s\n\nOK\n"), (4, 0, 0))
        # Verbose, with what the kernel said between, and an "ok" at the beginning of a line, which is no TAP.
        log = (
            "test_a (__main__.T.test_a) ... printed\nok\ntest_b (__main__.T.test_b) ... skipped 'no GPU'\n"
            "test_c (__main__.T.test_c) ... FAIL\ntest_d (__main__.T.test_d) ... ERROR\n"
            "ERROR: test_d (__main__.T.test_d)\nValueError\nFAIL: test_c (__main__.T.test_c)\n"
            f"{line}\nRan 5 tests in 1.8s\n[    3.1] link is up\n\nFAILED (failures=1, errors=1, skipped=1)\n"
        )
        result = tally.count_tests(1, log)
        self.assertEqual((result.passed, result.skips), (2, ["test_b: no GPU"]))
        self.assertEqual(result.failures, ["test_d (__main__.T.test_d)", "test_c (__main__.T.test_c)"])
        self.assertEqual(self.counts(1, f"{line}\nRan 2 tests in 1s\n\nFAILED (failures=2)\n"), (0, 2, 0))
        self.assertEqual(self.counts(0, f"{line}\nRan 0 tests in 0s\n\nOK\n"), (0, 1, 0))

    def test_tap(self) -> None:
        log = "TAP version 13\n1..4\nok 1 - a\nnot ok 2 b\nok 3 c # SKIP no GPU\n# ok 4 nested\nok 4 d\n"
        self.assertEqual(self.counts(1, log), (2, 1, 1))
        self.assertEqual(tally.count_tests(1, log).skips, ["c: no GPU"])

    def test_catch2(self) -> None:
        self.assertEqual(self.counts(0, "All tests passed (9 assertions in 4 test cases)\n"), (4, 0, 0))
        log = "a.cpp:5: SKIPPED:\nexplicitly with message:\n  no NIC\n\ntest cases: 6 | 4 passed | 1 failed | 1 skipped\n"
        self.assertEqual(self.counts(1, log), (4, 1, 1))

    def test_parts_are_counted_each_by_itself(self) -> None:
        log = ("==== demo\nok - it arrived\n==== lab_tests\nAll tests passed (9 assertions in 4 test cases)\n"
               "==== Python\n" + "-" * 70 + "\nRan 1 test in 1s\n\nFAILED (errors=1)\n==== nothing\nready\n")  # fmt: skip
        self.assertEqual(self.counts(1, log), (5, 2, 0))
        self.assertEqual(tally.count_tests(1, log).failures, ["unnamed, see the log", "nothing: ran no test"])

    def test_junit(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "results.xml"
            path.write_text(JUNIT, encoding="utf-8")
            result = tally.count_tests(8, f"results: {path}\n")
            for name in ("results.xml", "more.xml"):
                (Path(directory) / name).write_text(JUNIT, encoding="utf-8")
            self.assertEqual(self.counts(8, f"results: {directory}\n"), (2, 4, 2))
            (Path(directory) / "more.xml").write_text("<", encoding="utf-8")
            self.assertEqual(self.counts(0, f"results: {directory}\n"), (1, 3, 1))
        self.assertEqual((result.passed, result.failures), (1, ["bad", "never started: Unable to find executable: x"]))
        self.assertEqual(result.skips, ["left out: no /dev/udmabuf: No such file or directory"])
        self.assertEqual(result.printed, {"bad": "1 != 2"})
