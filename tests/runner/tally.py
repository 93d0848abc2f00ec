# SPDX-License-Identifier: Apache-2.0
"""Counts what a test step did, from its log.

A check passes or fails as a whole, by its exit status. Tests are counted by what the log says, in this order: a line
`results: PATH` names a JUnit file of ctest, or a directory of such; a line `N passed, N failed[, N skipped]`; what Python's
unittest says at its end; TAP lines; Catch2's totals. A line `==== NAME` begins a part, which is counted by itself.
Tests that end with a status other than 0 without a failed test, or that ran nothing, are one failure.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    passed: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)
    # Of failed tests, by name: what they printed, where it is known.
    printed: dict[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.passed or self.failures or self.skips)

    @property
    def green(self) -> bool:
        return self.passed > 0 and not self.failures

    def add(self, other: Tally) -> None:
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips
        self.printed |= other.printed


def skip_reason(output: str) -> str:
    """The message of Catch2's SKIP, else the last line that was printed."""
    message = re.search(r"\bSKIPPED:\n(?:explicitly with message:\n)?\s*(.+(?:\n  .+)*)", output)
    if message:
        return " ".join(message.group(1).split())
    lines = output.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")


def from_junit(path: Path) -> Tally:
    tally = Tally()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = case.get("name", "?")
        output = case.findtext("system-out", "")
        skipped = case.find("skipped")
        if case.get("status") == "run":
            tally.passed += 1
        elif case.get("status") == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_")):
            tally.skips.append(f"{name}: {skip_reason(output)}")
        elif skipped is not None:
            # Not run for a reason that is nobody's wish: the program is missing, or what it depends on failed.
            tally.failures.append(f"{name}: {skip_reason(output)}")
        else:
            tally.failures.append(name)
            tally.printed[name] = output
    return tally


def skip_lines(log: str) -> list[str]:
    return re.findall(r"^SKIP (\S.*: .+)$", log, re.MULTILINE)


def from_closing_lines(log: str) -> Tally:
    tally = Tally()
    failed = skipped = 0
    for match in re.finditer(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", log, re.MULTILINE):
        tally.passed += int(match[1])
        failed += int(match[2])
        skipped += int(match[3] or 0)
    named = re.findall(r"^(?:FAIL|not ok)[: ]\s*(.+)$", log, re.MULTILINE)[:failed]
    tally.failures = named + ["unnamed, see the log"] * (failed - len(named))
    named = skip_lines(log)
    tally.skips = named + ["unnamed: no reason given"] * (skipped - len(named))
    return tally


def from_unittest(log: str) -> Tally:
    """Reasons of skips are in the log of a verbose run alone."""
    tally = Tally()
    failed = skipped = 0
    for match in re.finditer(r"^Ran (\d+) tests? in (?:.*\n)+?(?:OK|FAILED)(?: \((.*)\))?$", log, re.MULTILINE):
        counts = {word: int(number) for word, number in re.findall(r"([a-z][a-z ]*)=(\d+)", match[2] or "")}
        skipped_here = counts.pop("skipped", 0)
        passed_here = int(match[1]) - skipped_here - counts.pop("expected failures", 0)
        failed += sum(counts.values())
        skipped += skipped_here
        tally.passed += max(0, passed_here - sum(counts.values()))
    named = re.findall(r"^(?:FAIL|ERROR|UNEXPECTED SUCCESS): (.+)$", log, re.MULTILINE)[:failed]
    tally.failures = named + ["unnamed, see the log"] * (failed - len(named))
    named = [": ".join(one) for one in re.findall(r"^(\w+) .*\bskipped ['\"](.+)['\"]$", log, re.MULTILINE)][:skipped]
    tally.skips = named + ["unnamed: no reason given"] * (skipped - len(named))
    return tally


def from_tap(log: str) -> Tally:
    tally = Tally()
    for match in re.finditer(r"^(not )?ok\b(?: \d+)?(?: -)? ?(.*?)(?:\s*# *SKIP\b:? *(.*))?$", log, re.MULTILINE):
        failed, name, reason = match[1], match[2] or "unnamed", match[3]
        if reason is not None:
            tally.skips.append(f"{name}: {reason or 'no reason given'}")
        elif failed:
            tally.failures.append(name)
        else:
            tally.passed += 1
    return tally


def from_catch2(log: str) -> Tally:
    tally = Tally()
    skipped = 0
    for line in re.findall(r"^test cases: .*$", log, re.MULTILINE):
        counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", line)}
        tally.passed += counts.get("passed", 0)
        tally.failures += ["see the log"] * counts.get("failed", 0)
        skipped += counts.get("skipped", 0)
    for number in re.findall(r"^All tests passed \(.* in (\d+) test cases?\)$", log, re.MULTILINE):
        tally.passed += int(number)
    named = [skip_reason(found) for found in re.findall(r"\bSKIPPED:\n(?:.+\n)+", log)]
    tally.skips = [f"skipped: {reason}" for reason in named]
    tally.skips += ["unnamed: no reason given"] * (skipped - len(named))
    return tally


def from_results(log: str) -> Tally:
    named = re.findall(r"^results: (.+)$", log, re.MULTILINE)
    tally = Tally()
    if named:
        path = Path(named[-1])
        for file in sorted(path.glob("*.xml")) if path.is_dir() else [path]:
            try:
                tally.add(from_junit(file))
            except (OSError, xml.etree.ElementTree.ParseError) as error:
                tally.failures.append(f"{file} cannot be read: {error}")
    return tally


def count_part(log: str) -> Tally:
    parsers = (from_results, from_closing_lines, from_unittest, from_tap, from_catch2)
    return next((tally for parse in parsers if not (tally := parse(log)).empty), Tally())


def count_tests(status: int, log: str) -> Tally:
    _, *parts = re.split(r"^==== (.+)$", log, flags=re.MULTILINE)
    tally = Tally() if parts else count_part(log)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        counted = count_part(part)
        if counted.empty:
            counted.failures.append(f"{name}: ran no test")
        tally.add(counted)
    if tally.empty:
        tally.failures.append("ran no test" if status == 0 else f"ended with status {status} before the first test")
    elif status != 0 and not tally.failures:
        tally.failures.append(f"ended with status {status} although no test failed")
    return tally


def count_check(status: int, log: str) -> Tally:
    if status != 0:
        return Tally(failures=[f"ended with status {status}"])
    skips = skip_lines(log)
    return Tally(skips=skips) if skips else Tally(passed=1)


def text_of(path: Path) -> str:
    log = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", log)


def read_log(kind: str, status: int, path: Path) -> Tally:
    """What the log of a step at PATH says; kind is check or tests."""
    log = text_of(path)
    return count_check(status, log) if kind == "check" else count_tests(status, log)
