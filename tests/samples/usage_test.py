#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every sample says its version, and 2 to what it cannot understand: usage_test.py PROGRAM..."""

import subprocess
import sys
import unittest
from pathlib import Path

PROGRAMS: list[str] = []


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


class Usage(unittest.TestCase):
    def test_version(self) -> None:
        for program in PROGRAMS:
            with self.subTest(program):
                done = run(program, "--version")
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertRegex(done.stdout, rf"^{Path(program).name} \d+\.\d+\.\d+\n$")

    def test_bad_usage(self) -> None:
        for program in PROGRAMS:
            for arguments in (), ("--no-such-option",):
                with self.subTest(program, arguments=arguments):
                    done = run(program, *arguments)
                    self.assertEqual((done.returncode, done.stdout), (2, ""))
                    self.assertNotEqual(done.stderr, "")


if __name__ == "__main__":
    PROGRAMS = sys.argv[1:]
    if not PROGRAMS:
        sys.exit("usage: usage_test.py PROGRAM...")
    unittest.main(argv=sys.argv[:1])
