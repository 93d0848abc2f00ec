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
</system-out></testcase>
<testcase name="off" status="disabled"><system-out>Disabled</system-out></testcase>
<testcase name="never started" status="notrun"><skipped message="Unable to find executable"/>
<system-out>Unable to find executable: x</system-out></testcase>
</testsuite>
"""
# Verbose, with what the kernel said between, and an "ok" at the beginning of a line, which is no TAP.
UNITTEST = """test_a (__main__.T.test_a) ... printed
ok
test_b (__main__.T.test_b) ... skipped 'no GPU'
ERROR: test_d (__main__.T.test_d)
ValueError
FAIL: test_c (__main__.T.test_c)
Ran 5 tests in 1.8s
[    3.1] link is up

FAILED (failures=1, errors=1, skipped=1, expected failures=1)
"""
OF_UNITTEST = ["test_d (__main__.T.test_d)", "test_c (__main__.T.test_c)"]
CLOSING = "ok    x\nFAIL  y   (1 = 2)\nSKIP a: no KVM\n7 passed, 2 failed, 2 skipped\n"
CATCH2 = "a.cpp:5: SKIPPED:\nexplicitly with message:\n  no NIC\n\ntest cases: 6 | 4 passed | 1 failed | 1 skipped\n"
BAR, DOTS = "-" * 79 + "\n", "." * 79 + "\n"
FAULT = "a.cpp:9: FAILED:\n  CHECK( a == 2 )\nwith expansion:\n  1 == 2\n\n0.1 s: second\n"
FAILED_CASES = (
    f"0.1 s: zeroth\n{BAR}first, with a name\nof two lines\n  section\n{BAR}a.cpp:3\n{DOTS}\na.cpp:5: SKIPPED:\n  no NIC\n\n"
    f"{BAR}second\n{BAR}a.cpp:8\n{DOTS}\n{FAULT}{BAR}second\n  section\n{BAR}a.cpp:8\n{DOTS}\n"
    "a.cpp:10: FAILED:\ndue to unexpected exception with message:\n  no\n\n"
    f"{'=' * 79}\ntest cases: 3 | 1 passed | 1 failed | 1 skipped\n"
)
ALL_PASSED = "All tests passed (9 assertions in 4 test cases)\n"
TAP = "TAP version 13\n1..4\nok 1 - a\nnot ok 2 b\nok 3 c # SKIP no GPU\n# ok 4 nested\nok 4 d\nok 5 # SKIP\n"
ERRORS = "Ran 1 test in 1s\n\nFAILED (errors=1)\n"
PARTS = f"==== demo\nok - it arrived\n==== lab_tests\n{ALL_PASSED}==== Python\n{ERRORS}==== nothing\nready\n"
UNNAMED = "unnamed, see the log"

# Status, log; how many passed, what failed, what was skipped.
LOGS: list[tuple[int, str, int, list[str], list[str]]] = [
    (0, "all is well\n", 0, ["ran no test"], []),
    (0, "0 passed, 0 failed\n", 0, ["ran no test"], []),
    (0, "Ran 0 tests in 0s\n\nOK\n", 0, ["ran no test"], []),
    (2, "cannot boot\n", 0, ["ended with status 2 before the first test"], []),
    (124, "ok 1 a\n", 1, ["ended with status 124 although no test failed"], []),
    (125, "3 passed, 0 failed\n", 3, ["ended with status 125 although no test failed"], []),
    (1, CLOSING, 7, ["y   (1 = 2)", UNNAMED], ["a: no KVM", "unnamed: no reason given"]),
    (0, "Ran 4 tests in 1.8s\n\nOK\n", 4, [], []),
    (1, UNITTEST, 2, OF_UNITTEST, ["test_b: no GPU"]),
    (1, "Ran 2 tests in 1s\n\nFAILED (failures=2)\n", 0, [UNNAMED] * 2, []),
    (1, TAP, 2, ["b"], ["c: no GPU", "unnamed: no reason given"]),
    # TAP of what runs unittest among other things, and closing lines of what shows the TAP of others.
    (0, "Ran 4 tests in 1.8s\n\nOK\nok - sources\nok - links # SKIP offline\n", 1, [], ["links: offline"]),
    (1, f"{TAP}FAIL x: 1 of its cases\n7 passed, 1 failed\n", 7, ["2 b"], []),
    (0, ALL_PASSED, 4, [], []),
    (1, CATCH2, 4, [UNNAMED], ["skipped: no NIC"]),
    (1, PARTS, 5, [UNNAMED, "nothing: ran no test"], []),
]


class Tallies(unittest.TestCase):
    def test_exit_status_decides_of_checks_and_a_skip_is_no_pass(self) -> None:
        self.assertEqual(tally.count_check(0, "whatever"), tally.Tally(1))
        self.assertEqual(tally.count_check(1, ""), tally.Tally(0, ["ended with status 1"]))
        self.assertEqual(tally.count_check(0, "SKIP tidy: no clang-tidy 14\n"), tally.Tally(0, [], ["tidy: no clang-tidy 14"]))

    def test_logs(self) -> None:
        for status, log, passed, failures, skips in LOGS:
            with self.subTest(log=log):
                self.assertEqual(tally.count_tests(status, log), tally.Tally(passed, failures, skips))

    def test_failed_cases_of_catch2_have_their_names_and_messages(self) -> None:
        result = tally.count_tests(1, FAILED_CASES)
        self.assertEqual((result.passed, result.failures, result.skips), (1, ["second"], ["skipped: no NIC"]))
        self.assertEqual(tally.first_fault(result.printed["second"]), "a.cpp:9: CHECK( a == 2 ) with expansion: 1 == 2")
        self.assertIn("due to unexpected exception", result.printed["second"])
        self.assertNotIn("no NIC", result.printed["second"])
        self.assertEqual(tally.first_fault("all is well\n"), "")

    def test_junit(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            log = f"results: {directory}\n"
            self.assertEqual(tally.count_tests(0, log).failures, ["ran no test"])
            Path(directory, "results.xml").write_text(JUNIT, encoding="utf-8")
            result = tally.count_tests(8, log)
            Path(directory, "more.xml").write_text("<", encoding="utf-8")
            self.assertEqual(str(tally.count_tests(0, log)), "1 passed, 3 failed, 2 skipped")
        self.assertEqual((result.passed, result.failures), (1, ["bad", "never started: Unable to find executable: x"]))
        self.assertEqual(result.skips, ["left out: no /dev/udmabuf: No such file or directory", "off: Disabled"])
        self.assertEqual(result.printed, {"bad": "1 != 2"})
