#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In the lab's guest: each script of framework/tools/bpftrace watches tests that do what it is there to show."""

import re
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
SCRIPTS = REPO / "framework/tools/bpftrace"
LAB_TESTS = REPO / "build/test/tests/lab_tests"


def watch(script: str, tests: str, *arguments: str) -> str:
    """What the script says of these tests."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        watching = subprocess.Popen(["bpftrace", str(SCRIPTS / script), *arguments], stdout=output, stderr=output)

        def said() -> str:
            output.seek(0)
            return output.read()

        end = time.monotonic() + 120
        # It says that it attaches its probes just before it does.
        while "Attaching" not in said() and watching.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        time.sleep(3)
        done = subprocess.run([LAB_TESTS, tests], capture_output=True, text=True, timeout=200, check=False)
        time.sleep(1.5)
        watching.send_signal(signal.SIGINT)
        watching.wait(60)
        text = said()
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr)
        if watching.returncode != 0:
            raise AssertionError(f"{script} ended with {watching.returncode}:\n{text}")
        print(text)
        return text


class Scripts(unittest.TestCase):
    def test_bindings(self) -> None:
        text = watch("bindings.bt", "pool_stats() names loans as holders while they have most of the pages")
        # The session's, and those by which the tests find out what the NIC is set to.
        bound = re.findall(r"^[\d:]+ +bind +dms0 +\d+ +lab_tests +\d+  id (\d+)$", text, re.MULTILINE)
        unbound = re.findall(r"^[\d:]+ +unbind +\d+ +\S+ +\d+  id (\d+)$", text, re.MULTILINE)
        self.assertGreater(len(bound), 0, text)
        self.assertEqual(bound, unbound, text)
        counted = [("bound", str(len(bound))), ("unbound", str(len(bound)))]
        self.assertEqual(re.findall(r"^@(bound|unbound): (\d+)$", text, re.MULTILINE), counted, text)

    def test_pool_dry(self) -> None:
        text = watch("pool_dry.bt", "a consumer without a loan limit takes all the memory; later both finish whole")
        self.assertGreater(int(re.search(r"^@dry_in_all\[dms0\]: (\d+)$", text, re.MULTILINE)[1]), 0, text)
        self.assertGreater(int(re.search(r"^@taken\[dms0\]: (\d+)$", text, re.MULTILINE)[1]), 0, text)
        self.assertRegex(text, r"(?m)^@dry\[dms0\]: \d+$")

    def test_give_back(self) -> None:
        text = watch("give_back.bt", "pool_stats() names loans as holders while they have most of the pages")
        self.assertRegex(text, r"(?m)^@microseconds\[lab_tests\]:")
        self.assertRegex(text, r"(?m)^@pages_a_call\[lab_tests\]:")
        self.assertNotIn("@failed", text)


if __name__ == "__main__":
    functions = {line.split()[2] for line in Path("/proc/kallsyms").read_text(encoding="ascii", errors="replace").splitlines()}
    probed = set(re.findall(r"^k(?:ret)?probe:(\w+)$", "".join(path.read_text() for path in SCRIPTS.glob("*.bt")), re.MULTILINE))
    print("functions that this kernel does not have:", sorted(probed - functions) or "none")
    unittest.main(verbosity=2)
