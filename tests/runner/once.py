# SPDX-License-Identifier: Apache-2.0
"""What a step of kind 'once' hangs on: kernel-support/ (documents aside; the NIC's own tests and the patches only for steps
that run them), with what it kills for the step that does; for the packages what they are made of, for what other
programs do with ours (OTHERS) what these see of it; its kernels, the packages it uses, its command, and what counts its log.
While none of that changes, a step that has passed leaves a stamp in the cache, and is skipped."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from steps import Step

PATCHED = ("branch", "debug", "fixes", "broken")

# What the packages are made of, Debian's and Python's. Those documents that are in them are among it.
PACKED = ("CMakeLists.txt", "CMakePresets.json", "CHANGELOG.md", "pyproject.toml", "run", "cmake", "framework", "samples",
          "kernel-support/devmemsim", "kernel-support/lab/packages.sh", ":!framework/docs", ":!kernel-support/devmemsim/tests")

# What writes the metrics that Prometheus reads, and pages that have YAML for it; where the scripts for bpftrace put their
# probes, and what makes these fire; the daemon that systemd starts, and who asks it.
OTHERS = {
    "prometheus": ("framework/src/metrics*", "framework/include/gpurx/metrics.hpp", "framework/include/gpurx/stats.hpp",
                   "framework/tools/gpurxd", "framework/docs/*.md", "tests/metrics"),
    "bpftrace": ("framework/tools/bpftrace", "tests/bpftrace", "tests/lab", "kernel-support/lab", "kernel-support/devmemsim",
                 ":!kernel-support/devmemsim/tests", ":!*.md"),
    "systemd": ("framework/tools/gpurxd", "framework/src", "framework/include", "samples/receive_file", "samples/common",
                "tests/systemd", "kernel-support/lab", "kernel-support/devmemsim", ":!kernel-support/devmemsim/tests", ":!*.md"),
}  # fmt: skip


# Groups of packages that one step alone uses.
USED = {"bpftrace": ["trace"], "systemd": ["systemd"]}


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def pathspecs(step: Step) -> list[str]:
    """The files of the repository that the step hangs on, as git's pathspecs."""
    if step.name.startswith("packages"):
        return [*PACKED, "tests/packages", "tests/package", "tests/python/ranges.py", "tests/runner/tally.py"]
    if step.name == "wheel-lab":
        return [*PACKED, "kernel-support/lab", "tests/ingest/daemon.py", "tests/ingest/strict_s3.py", "tests/python",
                "tests/runner/tally.py"]
    if step.name in OTHERS:
        return [*OTHERS[step.name], "tests/runner/tally.py"]
    found = ["kernel-support", ":!*.md", "tests/runner/tally.py"]
    if step.name == "kills":
        found += ["framework/include", "framework/src", "framework/tools/gpurxd", "samples/receive_file", "tests/lab"]
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
        groups = ["module", "kernel", "lab", "selftests", *USED.get(step.name, [])]
        facts.append(output_of("kernel-support/lab/packages.sh", "--versions", *groups))
    except (OSError, subprocess.CalledProcessError):
        return None
    facts += sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("GPURX_"))
    return cache / "passed" / f"{step.name}-{digest(step, files, facts)}"
