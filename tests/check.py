#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configures a preset, builds, and runs the tests of each program as soon as it is linked, beside the compiler.

    check.py [--build TARGET] PRESET [CHECK...]

Without names it runs each check of the preset but those that run by name only (gpurx_check() in tests/CMakeLists.txt
declares them). --build: a target to build, too. A failure stops nothing else. Each check leaves a JUnit file in
build/PRESET/results. With GPURX_TEST_AS_BUILT in the environment nothing is built.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import queue
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
# What takes minutes under a sanitizer and is optimised in every preset.
NOT_SANITIZED = ["--label-exclude", "interpreter"]


@dataclass(frozen=True)
class Check:
    name: str
    prefix: str  # of the names of its tests
    alone: bool
    programs: frozenset[str]  # their files; none: it needs all that can be built


def read_checks(text: str) -> list[Check]:
    """The checks of a build directory, from the file that CMake leaves there."""
    rows = (line.split("|") for line in text.splitlines())
    return [Check(name, prefix, alone == "TRUE", frozenset(programs.split(";")) - {""}) for name, prefix, alone, programs in rows]


def choose(checks: list[Check], names: list[str]) -> list[Check]:
    unknown = set(names) - {check.name for check in checks}
    if unknown or not checks:
        sys.exit(f"error: no check {', '.join(sorted(unknown))}; there are: {' '.join(check.name for check in checks)}")
    return [check for check in checks if (check.name in names if names else not check.alone)]


def linked(lines: Iterator[str], build: Path, errors: list[str]) -> Iterator[str]:
    """Prints what ninja says, and yields the file of each program that it has linked. Ninja says so when that has ended.
    Errors are kept, too."""
    is_error = False
    for line in lines:
        print(line, end="", flush=True)
        is_error = line.startswith("FAILED: ") or (is_error and not re.match(r"\[\d+/\d+\] ", line))
        if is_error:
            errors.append(line)
        found = re.match(r"\[\d+/\d+\] Linking CXX (?:executable|shared library) (\S+)", line)
        if found:
            yield str(build / found[1])


def configure(preset: str, build: Path) -> None:
    # A CUDA toolkit that does not work here is a failure, where AUTO would go on without.
    toolkit = subprocess.run([REPO / "cmake/cuda-toolkit.sh", "--path"], stdout=subprocess.PIPE, text=True, check=False)
    cuda = "ON" if toolkit.stdout.strip() else "AUTO"
    subprocess.run(["cmake", "--preset", preset, f"-DGPURX_CUDA={cuda}"], cwd=REPO, check=True)


def compile_and_hand_on(build: Path, command: list[str], checks: list[Check], ready: queue.SimpleQueue[Check | None]) -> str:
    """Puts each check into the queue once all its programs are linked, and None at the end. Programs that were up to date
    are not linked: their checks are not put there. Returns the errors."""
    waiting = {check: set(check.programs) for check in checks}
    ninja = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert ninja.stdout
    errors: list[str] = []
    for program in linked(iter(ninja.stdout.readline, ""), build, errors):
        for check, needs in list(waiting.items()):
            needs.discard(program)
            if check.programs and not needs:
                ready.put(check)
                del waiting[check]
    status = ninja.wait()
    ready.put(None)
    return "".join(errors) or (f"ninja ended with status {status}\n" if status else "")


def run_tests(build: Path, check: Check) -> bool:
    sanitized = "-fsanitize" in re.search(r"^CMAKE_CXX_FLAGS:.*$", (build / "CMakeCache.txt").read_text(), re.M)[0]
    # One test more than there are cores: many wait for something most of the time.
    done = subprocess.run(["ctest", "--test-dir", build, "--tests-regex", "^" + check.prefix.replace(".", "\\."), "--parallel", str(CORES + 1),
                           *(NOT_SANITIZED if sanitized else []), "--no-tests=error", "--output-on-failure",
                           "--output-junit", f"results/{check.name}.xml"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)  # fmt: skip
    print(f"\n{check.name}:\n{done.stdout}", end="", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", action="append", default=[])
    parser.add_argument("preset")
    parser.add_argument("checks", nargs="*")
    arguments = parser.parse_args()
    build = REPO / "build" / arguments.preset
    as_built = "GPURX_TEST_AS_BUILT" in os.environ
    if not as_built:
        configure(arguments.preset, build)
    for old in (build / "results").glob("*.xml"):
        old.unlink()
    checks = choose(read_checks((build / "checks").read_text()), arguments.checks)
    programs = {os.path.relpath(program, build) for check in checks for program in check.programs}
    targets = [*(sorted(programs) if all(check.programs for check in checks) else ["all"]), *arguments.build]
    command = ["true"] if as_built else ["ninja", "-C", str(build), "-k", "0", "-j", str(CORES + 1), *targets]

    ready: queue.SimpleQueue[Check | None] = queue.SimpleQueue()
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        built = pool.submit(compile_and_hand_on, build, command, checks, ready)
        passed: dict[Check, bool] = {}
        for check in iter(ready.get, None):
            if built.done():
                break
            passed[check] = run_tests(build, check)
        errors = built.result()
        # ctest asks each new program for its tests, and two that ask one program are in each other's way.
        subprocess.run(["ctest", "--test-dir", build, "-N"], stdout=subprocess.DEVNULL, check=False)
        rest = [check for check in checks if check not in passed]
        passed |= zip(rest, pool.map(lambda check: run_tests(build, check), rest))
        print(f"results: {build}/results\n{errors}", end="")
        return 0 if not errors and all(passed.values()) else 1


if __name__ == "__main__":
    # ThreadSanitizer's memory map does not survive the address randomisation that some kernels are set to.
    fixed = ["setarch", "--addr-no-randomize"]
    if "GPURX_FIXED_ADDRESSES" not in os.environ and subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        os.execvpe(fixed[0], [*fixed, sys.executable, *sys.argv], os.environ | {"GPURX_FIXED_ADDRESSES": "1"})
    os.environ["TSAN_OPTIONS"] = f"suppressions={REPO}/tests/support/tsan.txt:" + os.environ.get("TSAN_OPTIONS", "")
    sys.exit(main())
