# SPDX-License-Identifier: Apache-2.0
"""The record of green runs: a line a step, with the state of its inputs (inputs.py), the compilers, the date, how many
seconds it took and how many tests passed. build/record is this machine's; tests/record is committed, and nobody edits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

HEAD = """# SPDX-License-Identifier: Apache-2.0
# The last green run of each test step: step, state of its inputs, compilers, date, seconds, tests that passed.
# `./run test record` writes it and `./run test status` reads it.
"""


@dataclass(frozen=True)
class Green:
    step: str
    state: str
    compilers: str
    date: str
    seconds: int
    passed: int


def read(path: Path) -> dict[str, Green]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[0]: Green(row[0], row[1], row[2], row[3], int(row[4]), int(row[5])) for row in rows}


def write(path: Path, record: dict[str, Green]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(HEAD + "".join(f"{' '.join(map(str, astuple(record[name])))}\n" for name in sorted(record)), encoding="utf-8")
    new.replace(path)


def same_compilers(one: str, other: str) -> bool:
    """A compiler that is not there compares with any."""
    return all(a == b or "-" in (a, b) for a, b in zip(one.split("+"), other.split("+"), strict=True))


def merge(committed: dict[str, Green], local: dict[str, Green], is_green: Callable[[Green], bool]) -> dict[str, Green]:
    """The committed record with this machine's newer lines. A line that is green for the tree as it is stays."""
    kept = {name: line for name, line in committed.items() if name not in local or (is_green(line) and not is_green(local[name]))}
    return {**local, **kept}
