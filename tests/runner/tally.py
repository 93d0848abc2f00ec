# SPDX-License-Identifier: Apache-2.0
"""Counts what a test step did, from its log.

A check passes or fails as a whole, by its exit status. Tests are counted by what the log says, in this order: a line
`results: DIRECTORY` says where JUnit files of ctest are; a line `N passed, N failed[, N skipped]`, or Catch2's totals; lines of
TAP; what Python's unittest says at its end. A line `==== NAME` begins a part, which is counted by itself.
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
    seconds: float | None = None  # None: it did not run

    def __str__(self) -> str:
        return f"{self.passed} passed, {len(self.failures)} failed, {len(self.skips)} skipped"

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


# The message of Catch2's SKIP.
SKIPPED = re.compile(r"\bSKIPPED:\n(?:explicitly with message:\n)?\s*(.+(?:\n  .+)*)")


# What Catch2 prints of a test case with a failure, up to the next one: its name, sections, place, and messages.
CATCH2_CASE = re.compile(r"^-{79}\n(\S.*)\n(?:.*\n)*?-{79}\n.+:\d+\n\.{79}\n((?:(?![-=]{79}$).*\n)*)", re.MULTILINE)


def catch2_failures(log: str) -> dict[str, str]:
    printed: dict[str, str] = {}
    for case in CATCH2_CASE.finditer(log):
        if first_fault(case[2]):
            printed[case[1]] = printed.get(case[1], "") + case[0]
    return printed


def first_fault(text: str) -> str:
    """The first failed assertion of Catch2 in TEXT on one line: its place, itself, its values."""
    fault = re.search(r"^(\S+:\d+): FAILED:\n((?:.*\S.*\n?){1,8})", text, re.MULTILINE)
    return f"{fault[1]}: {' '.join(fault[2].split())[:300]}" if fault else ""


def from_junit(path: Path) -> Tally:
    tally = Tally()
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name, status, output = case.get("name", "?"), case.get("status"), case.findtext("system-out", "")
        skipped = case.find("skipped")
        message = SKIPPED.search(output)
        last = output.rstrip().rsplit("\n", 1)[-1].strip()
        reason = " ".join(message[1].split()) if message else last or "no reason given"
        if status == "run":
            tally.passed += 1
        elif status == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_")):
            tally.skips.append(f"{name}: {reason}")
        elif skipped is not None:
            # Not run for a reason that is nobody's wish: the program is missing, or what it depends on failed.
            tally.failures.append(f"{name}: {reason}")
        else:
            tally.failures.append(name)
            tally.printed[name] = output
    return tally


def from_results(log: str) -> Tally:
    tally = Tally()
    for directory in re.findall(r"^results: (.+)$", log, re.MULTILINE)[-1:]:
        for file in sorted(Path(directory).glob("*.xml")):
            try:
                tally.add(from_junit(file))
            except xml.etree.ElementTree.ParseError as error:
                tally.failures.append(f"{file} cannot be read: {error}")
    return tally


def from_tap(log: str) -> Tally:
    tally = Tally()
    for match in re.finditer(r"^(not )?ok (?:\d+(?: -)?|-) ?(.*?)(?:\s*# *SKIP\b:? *(.*))?$", log, re.MULTILINE):
        failed, name, reason = match[1], match[2] or "unnamed", match[3]
        if reason is not None:
            tally.skips.append(f"{name}: {reason or 'no reason given'}")
        elif failed:
            tally.failures.append(name)
        else:
            tally.passed += 1
    return tally


def total(what: str, text: str) -> int:
    return sum(map(int, re.findall(what, text)))


def with_names(passed: int, failed: int, skipped: int, failures: list[str], skips: list[str]) -> Tally:
    """What has been counted, with the names that the log has."""
    failures = failures[:failed] + ["unnamed, see the log"] * (failed - len(failures))
    return Tally(passed, failures, skips + ["unnamed: no reason given"] * (skipped - len(skips)))


def skip_lines(log: str) -> list[str]:
    return re.findall(r"^SKIP (\S.*: .+)$", log, re.MULTILINE)


def from_closing_lines(log: str) -> Tally:
    forms = r"\d+ passed, \d+ failed(?:, \d+ skipped)?|test cases: .*|All tests passed \(.*\)"
    closing = "\n".join(re.findall(f"^(?:{forms})$", log, re.MULTILINE))
    if not closing:
        return Tally()
    printed = catch2_failures(log)
    failures = re.findall(r"^(?:FAIL|not ok)[: ]\s*(.+)$", log, re.MULTILINE) + list(printed)
    skips = skip_lines(log) + [f"skipped: {' '.join(message.split())}" for message in SKIPPED.findall(log)]
    tally = with_names(total(r"(\d+) (?:passed|test cases?\)$)", closing), total(r"(\d+) failed", closing),
                       total(r"(\d+) skipped", closing), failures, skips)  # fmt: skip
    tally.printed = printed
    return tally


def from_unittest(log: str) -> Tally:
    """Reasons of skips are in the log of a verbose run alone."""
    closing = re.findall(r"^Ran (\d+) tests? in (?:.*\n)+?(?:OK|FAILED)(?: \((.*)\))?$", log, re.MULTILINE)
    counts = "\n".join(counts for _, counts in closing)
    failed, skipped = total(r"\b(?<!expected )(?:failures|errors)=(\d+)", counts), total(r"\bskipped=(\d+)", counts)
    failures = re.findall(r"^(?:FAIL|ERROR): (.+)$", log, re.MULTILINE)
    skips = [": ".join(one) for one in re.findall(r"^(\w+) .*\bskipped ['\"](.+)['\"]$", log, re.MULTILINE)]
    # A class or a module whose setup fails is an error, and no test that ran.
    return with_names(max(0, sum(int(ran) for ran, _ in closing) - failed - skipped), failed, skipped, failures, skips[:skipped])


def count_part(log: str) -> Tally:
    parsers = (from_results, from_closing_lines, from_tap, from_unittest)
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


def read_log(kind: str, status: int, path: Path) -> Tally:
    """What the log of a step at PATH says; kind is check or tests."""
    log = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    log = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", log)
    return count_check(status, log) if kind == "check" else count_tests(status, log)
