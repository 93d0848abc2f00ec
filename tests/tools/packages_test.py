#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How packages are installed, with an apt that only notes its calls:  packages_test.py REPOSITORY"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path()

# Fails once for each line of `failures`, with that line as its output.
APT_GET = """#!/bin/bash
[[ $* != *--print-uris* ]] || exit 0
echo "${@: -1}" >>"$HOME/calls"
failure=$(head -n 1 "$HOME/failures")
sed -i 1d "$HOME/failures"
[[ -z $failure ]] || { echo "$failure" && exit 100; }
"""
LOCKED = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)\n"


class Install(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.home = Path(directory.name)
        for name, text in {
            "apt-get": APT_GET,
            "apt-cache": "#!/bin/sh\necho 'unzip | 6.0 | a mirror'\n",
            "dpkg-query": "#!/bin/sh\nexit 1\n",
            "id": "#!/bin/sh\necho 0\n",
        }.items():
            (self.home / name).write_text(text, encoding="utf-8")
            (self.home / name).chmod(0o755)
        # Of a release that needs no backports.
        (self.home / "lab").mkdir()
        for name in ("packages.sh", "lib.sh"):
            text = (REPO / "kernel-support/lab" / name).read_text(encoding="utf-8")
            (self.home / "lab" / name).write_text(text.replace(". /etc/os-release", "ID=debian VERSION_ID=13"), encoding="utf-8")

    def install(self, failures: str) -> "tuple[int, str, list[str]]":
        (self.home / "failures").write_text(failures, encoding="utf-8")
        environment = {"HOME": str(self.home), "PATH": f"{self.home}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", self.home / "lab/packages.sh", "wheel"], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr, (self.home / "calls").read_text(encoding="utf-8").split()

    def test_nothing_in_the_way(self) -> None:
        status, said, calls = self.install("")
        self.assertEqual((status, calls), (0, ["update", "unzip"]), said)
        self.assertIn("missing: unzip", said)

    def test_a_lock_is_waited_for(self) -> None:
        status, said, calls = self.install(LOCKED + "\n" + LOCKED + LOCKED)
        self.assertEqual((status, calls), (0, ["update", "update", "unzip", "unzip", "unzip"]), said)
        self.assertEqual(said.count("apt is locked"), 2)
        self.assertIn("held by process 7 (unattended-upgr)", said)

    def test_another_failure_is_not_tried_again(self) -> None:
        status, said, calls = self.install("\nE: no space left\n")
        self.assertEqual((status, calls), (1, ["update", "unzip"]), said)
        self.assertIn("E: no space left", said)
        self.assertIn("apt could not install them", said)


if __name__ == "__main__":
    REPO = Path(sys.argv.pop(1))
    unittest.main(verbosity=2)
