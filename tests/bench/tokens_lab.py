# SPDX-License-Identifier: Apache-2.0
"""Runs the program of `./run bench tokens` in the lab."""

import subprocess
import sys
from pathlib import Path
from typing import Iterable

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "kernel-support" / "linux-7.3"

# Which kinds of tokens a kernel has, as the program calls them and as people do.
KINDS = {"stock": ["stock"], "branch": ["owner", "shared", "again"]}
NAMES = {"stock": "stock", "owner": "owner, branch", "shared": "shared, branch", "again": "owner again, branch"}

HUGE_PAGES = 112


def run_in_lab(kernel: str, options: list[str], program: Path, arguments: list[str]) -> Iterable[str]:
    guest = Path(__file__).resolve().parent / "tokens" / "guest.sh"
    exact = [] if "--cpus" in options else ["--exact"]
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, *exact, "--hugepages", str(HUGE_PAGES), "--timeout",
               "900", *options, "--", str(guest), str(program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        assert lab.stdout is not None
        yield from lab.stdout
    if lab.returncode != 0:
        sys.exit(f"tokens: the lab run on kernel {kernel} failed (exit code {lab.returncode})")
