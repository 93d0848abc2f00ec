#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which CUDA toolkit is found, among directories that look like one:  cuda_toolkit_test.py REPOSITORY"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPO = Path()

NVCC = """#!/bin/sh
case $1 in
    --version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
    --dryrun) printf '#$ _HERE_=%s\\n#$ TOP=%s/..\\n' "${{0%/*}}" "${{0%/*}}" >&2 ;;
esac
"""


class Toolkit(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = Path(directory.name).resolve()

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def toolkit(self, name: str, version: str = "13.0") -> Path:
        root = self.at / name
        self.program(root / "bin/nvcc", NVCC.format(version=version))
        (root / "include").mkdir()
        (root / "include/cuda.h").touch()
        return root

    def links_to(self, toolkit: Path, name: str) -> Path:
        """As some machines have it: a script that starts nvcc, and links to the headers."""
        root = self.at / name
        self.program(root / "bin/nvcc", f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
        (root / "include").mkdir()
        (root / "include/cuda.h").symlink_to(toolkit / "include/cuda.h")
        return root

    def found(self, *, path: "Path | None" = None, named: "Path | None" = None) -> "subprocess.CompletedProcess[str]":
        environment = {"HOME": str(self.at), "PATH": f"{path}/bin:/usr/bin:/bin" if path else "/usr/bin:/bin"}
        if named:
            environment["GPURX_CUDA_ROOT"] = str(named)
        return subprocess.run([REPO / "cmake/cuda-toolkit.sh", "--path"], env=environment, capture_output=True, text=True, check=False)

    def test_the_one_on_the_path(self) -> None:
        toolkit = self.toolkit("cuda")
        self.assertEqual(self.found(path=toolkit).stdout, f"{toolkit}\n")

    def test_a_script_on_the_path_leads_to_the_toolkit_that_it_starts(self) -> None:
        toolkit = self.toolkit("cuda")
        self.assertEqual(self.found(path=self.links_to(toolkit, "local")).stdout, f"{toolkit}\n")

    def test_so_does_a_script_in_a_directory_that_is_named(self) -> None:
        toolkit = self.toolkit("cuda")
        self.assertEqual(self.found(named=self.links_to(toolkit, "local")).stdout, f"{toolkit}\n")

    def test_one_that_is_named_comes_before_the_path(self) -> None:
        toolkit = self.toolkit("cuda")
        self.assertEqual(self.found(path=self.toolkit("other"), named=toolkit).stdout, f"{toolkit}\n")

    def test_what_is_wrong_with_one_that_is_named(self) -> None:
        nothing = self.at / "nothing"
        self.assertIn(f"{nothing}: no such directory", self.found(named=nothing).stderr)
        nothing.mkdir()
        self.assertIn("bin/nvcc or include/cuda.h is missing", self.found(named=nothing).stderr)
        old = self.found(named=self.toolkit("old", version="12.4"))
        self.assertIn("is CUDA 12.4; 12.8 or later is needed", old.stderr)
        self.assertEqual((old.stdout, old.returncode), ("", 1))
        astray = self.links_to(self.at / "gone", "astray")
        (astray / "include/cuda.h").unlink()
        (astray / "include/cuda.h").touch()
        self.assertIn("its bin/nvcc belongs to no directory", self.found(named=astray).stderr)

    def test_an_old_one_on_the_path_is_none(self) -> None:
        old = self.toolkit("old", version="12.4")
        self.assertNotIn(str(old), self.found(path=old).stdout)


if __name__ == "__main__":
    REPO = Path(sys.argv.pop(1))
    os.chdir("/")
    unittest.main()
