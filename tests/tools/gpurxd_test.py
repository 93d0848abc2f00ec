#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurxd where it has nothing to do: gpurxd_test.py PROGRAM SOURCE-DIRECTORY."""

import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = ""
SOURCES = Path()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Gpurxd(unittest.TestCase):
    def check_policy(self, text: str, mode: int = 0o600) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as directory:
            policy = Path(directory) / "gpurxd.conf"
            policy.write_text(text, encoding="utf-8")
            policy.chmod(mode)
            return run("--check", "--policy", str(policy))

    def test_version_and_usage(self) -> None:
        self.assertRegex(run("--version").stdout, r"^gpurxd \d+\.\d+\.\d+\n$")
        self.assertEqual(run("--nonsense").returncode, 2)

    def test_policy(self) -> None:
        good = self.check_policy("allow user * interface eth1 queues 2\n")
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("1 lines", good.stdout)
        bad = self.check_policy("\nallow user * interface\n")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("line 2", bad.stderr)
        open_to_all = self.check_policy("", 0o666)
        self.assertEqual(open_to_all.returncode, 1)
        self.assertIn("let nobody but root write it", open_to_all.stderr)
        self.assertEqual(run("--check", "--policy", "/nonexistent").returncode, 1)

    def test_policy_as_shipped(self) -> None:
        shipped = (SOURCES / "gpurxd.conf").read_text(encoding="utf-8")
        self.assertIn("0 lines", self.check_policy(shipped).stdout)
        example = shipped.splitlines()[-1].removeprefix("# ")
        self.assertIn("1 lines", self.check_policy(example + "\n").stdout)

    def test_man_page(self) -> None:
        page = (SOURCES / "gpurxd.8").read_text(encoding="utf-8").replace("\\-", "-")
        options = set(re.findall(r"--[a-z-]+", run("--help").stdout)) - {"--help"}
        self.assertGreater(len(options), 3)
        self.assertEqual({option for option in options if option not in page}, set())


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    SOURCES = Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1])
