# SPDX-License-Identifier: Apache-2.0
"""What a step of kind 'once' hangs on: kernel-support/ (documents aside; the NIC's own tests and the patches only for steps
that run them), or for the Debian packages what they are made of; its kernels, the packages it uses, its command, and what
counts its log. While none of that changes, a step
that has passed leaves a stamp in the cache, and is skipped."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from steps import Step

PATCHED = ("branch", "debug", "fixes")

# What the Debian packages are made of. Those documents that are in them are among it.
PACKED = ("CMakeLists.txt", "CMakePresets.json", "CHANGELOG.md", "pyproject.toml", "run", "cmake", "framework", "samples",
          "kernel-support/devmemsim", "kernel-support/lab/packages.sh", ":!framework/docs", ":!kernel-support/devmemsim/tests")


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def pathspecs(step: Step) -> list[str]:
    """The files of the repository that the step hangs on, as git's pathspecs."""
    if step.name.startswith("packages"):
        return [*PACKED, "tests/packages", "tests/package", "tests/python/ranges.py", "tests/runner/tally.py"]
    found = ["kernel-support", ":!*.md", "tests/runner/tally.py"]
    if not step.name.startswith("nic"):
        found.append(":!kernel-support/devmemsim/tests")
    if not set(step.kernels) & set(PATCHED):
        found.append(":!kernel-support/linux-7.3")
    return found


def digest(step: Step, files: dict[str, bytes], facts: list[str]) -> str:
    """One word for all of it: files by name, and lines that stand for the rest."""
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n".encode())
    for line in [step.command, *facts]:
        total.update(f"{line}\n".encode())
    return total.hexdigest()[:16]


def stamp(step: Step, cache: Path) -> Path | None:
    """Where the step leaves its stamp. None where that cannot be told: outside git, and with a kernel source of the user's
    own, which may change under the same name."""
    if os.environ.get("GPURX_KERNEL_SOURCE"):
        return None
    try:
        names = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *pathspecs(step))
        files = {name: Path(name).read_bytes() for name in names.split("\0") if name and Path(name).is_file()}
        # A kernel's directory is named by all that went into it.
        facts = [Path(output_of("kernel-support/lab/kernel.sh", "--path", kernel).strip()).name for kernel in step.kernels]
        facts.append(output_of("kernel-support/lab/packages.sh", "--versions", "module", "kernel", "lab", "selftests"))
    except (OSError, subprocess.CalledProcessError):
        return None
    facts += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("GPURX_"))
    return cache / "passed" / f"{step.name}-{digest(step, files, facts)}"
