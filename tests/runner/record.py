# SPDX-License-Identifier: Apache-2.0
"""The record of green runs: a line a step, with the state of what it depends on, the compilers, the date, how many seconds it
took and how many tests passed. build/record is this machine's; tests/record is committed, and nobody edits it.

The state is one word for the step's command and its files. Comments of C++ count only for a step that has +comments among
its inputs.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from steps import Step

LOCAL = Path("build/record")
COMMITTED = Path("tests/record")
HEAD = """# SPDX-License-Identifier: Apache-2.0
# The last green run of each test step: step, state of its inputs, compilers, date, seconds, tests that passed.
# `./run test record` writes it and `./run test status` reads it.
"""
C_FAMILY = {".cpp", ".hpp", ".cu", ".c", ".h"}

# Strings and raw strings come first: in them nothing begins a comment.
TOKENS = re.compile(
    rb'R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?P<comment>//[^\n]*|/\*.*?\*/)',
    re.DOTALL,
)


def without_comments(text: bytes) -> bytes:
    """C++ without comments, blank lines and spaces at the ends of lines. Digit separators are no quotes."""
    text = re.sub(rb"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", b"", text)
    text = TOKENS.sub(lambda found: b" " if found["comment"] is not None else found[0], text)
    return b"\n".join(line.rstrip() for line in text.split(b"\n") if line.strip())


@functools.cache
def hash_of(name: str, *, comments: bool) -> str:
    path = Path(name)
    content = path.read_bytes()
    return hashlib.sha256(content if comments or path.suffix not in C_FAMILY else without_comments(content)).hexdigest()


def listed(pathspecs: Iterable[str]) -> set[str]:
    """The files of the tree, those that git does not know yet among them."""
    found = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *pathspecs],
                           check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    return {name for name in found.stdout.split("\0") if name and Path(name).is_file()}


@functools.cache
def files_of(pathspecs: tuple[str, ...]) -> list[str]:
    """Files that pathspecs name; pages only where one of them does. Git is not told to leave pages out: beside pathspecs that
    are all in one folder it leaves out whatever there is."""
    pages = [one for one in pathspecs if one.endswith(".md")]
    files = {name for name in listed(pathspecs) if not name.endswith(".md") and name != "tests/record"}
    return sorted(files | listed(pages) if pages else files)


def state_of(step: Step) -> str:
    comments = "+comments" in step.inputs
    total = hashlib.sha256(f"{step.command}\n".encode())
    for name in files_of(tuple(word for word in step.inputs if word != "+comments")):
        total.update(f"{name} {hash_of(name, comments=comments)}\n".encode())
    return total.hexdigest()[:16]


@functools.cache
def compilers() -> str:
    """The compilers of this machine that tests use; - for one that is not there."""
    found = []
    for program in ("g++", "clang++-16"):
        command = [program, "-dumpfullversion", "-dumpversion"] if shutil.which(program) else ["true"]
        found.append(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or "-")
    return "+".join(found)


class Green(NamedTuple):
    step: str
    state: str
    compilers: str
    date: str
    seconds: int
    passed: int


def read(path: Path) -> dict[str, Green]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[0]: Green(row[0], row[1], row[2], row[3], int(row[4]), int(row[5])) for row in rows}


def write(path: Path, record: dict[str, Green]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(HEAD + "".join(f"{' '.join(map(str, record[name]))}\n" for name in sorted(record)), encoding="utf-8")
    new.replace(path)


def is_green(step: Step, line: Green) -> bool:
    """Whether the line is of the tree as it is. A compiler that is not there compares with any."""
    pairs = zip(line.compilers.split("+"), compilers().split("+"), strict=True)
    return line.state == state_of(step) and all(a == b or "-" in (a, b) for a, b in pairs)


class Records:
    """What was green, here and in the committed record."""

    def __init__(self) -> None:
        self.local, self.committed = read(LOCAL), read(COMMITTED)

    def last(self, step: Step) -> Green | None:
        """The run that shows the step to be green as the tree is, or else its last green run, rather one of this machine."""
        lines = [record[step.name] for record in (self.local, self.committed) if step.name in record]
        return next((line for line in lines if is_green(step, line)), lines[0] if lines else None)

    def is_green(self, step: Step) -> bool:
        line = self.last(step)
        return line is not None and is_green(step, line)

    def seconds(self, step: Step) -> float:
        """How long the step takes: as last time, or else its limit."""
        line = self.last(step)
        return line.seconds if line else 60.0 * step.minutes

    def keep(self, step: Step, seconds: float, passed: int, state: str) -> None:
        if "GPURX_KERNEL_SOURCE" in os.environ:  # which may change under the same name
            return
        self.local = read(LOCAL)  # another run may have added to it
        self.local[step.name] = Green(step.name, state, compilers(), time.strftime("%F"), int(seconds), passed)
        write(LOCAL, self.local)

    def commit(self, steps: list[Step]) -> None:
        """Writes the committed record anew, with the newer lines of this machine."""
        write(COMMITTED, {step.name: line for step in steps if (line := self.last(step))})
