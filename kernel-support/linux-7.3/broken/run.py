#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Break each rule of owner tokens once, and see that the test which is for it fails.

    run.py [RULE...]

First all of those tests pass on the kernel `broken` as long as nothing is broken. Then it is started once for each rule of
rules.toml, or for those that are named. A rule is seen if its case is "not ok", or the kernel complains. A guest that hangs
shows nothing of a rule: it is ended and started once more, as what is freed too early may be anything by then; if that one
hangs too, the rule was not seen.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUN = HERE.parents[1] / "lab/run-selftests.sh"

# For a guest that hangs, and what timeout says of it.
SECONDS = 600
HUNG = 124


@dataclass(frozen=True)
class Rule:
    name: str
    number: int
    without: str
    test: str
    says: str = ""  # what has to be among what the case says


def read_rules() -> list[Rule]:
    rules = tomllib.loads((HERE / "rules.toml").read_text(encoding="utf-8"))
    return [Rule(name, **fields) for name, fields in rules.items()]


def run(number: int, tests: list[str]) -> tuple[int, str]:
    """The status and the output of these tests, with a rule broken, or 0."""
    limit = ["timeout", str(SECONDS)] if number else []
    done = subprocess.run([*limit, RUN, "--kernel", "broken", "--tests-of", "branch", "--append", f"devmem_token.broken={number}", *tests],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, errors="replace")
    return done.returncode, done.stdout


def said_before_failing(case: str, output: str) -> str | None:
    """What the case said last of all that is no stack of the test's own, if it is not ok."""
    said = ""
    for line in output.splitlines():
        if re.match(rf"not ok \d+ \S*{re.escape(case)}(?:\s|$)", line):
            return said or line
        if line.startswith("# ") and not re.match(r"# (?:Check|(?:Defer )?Exception)", line):
            said = line.removeprefix("# ")
    return None


def seen_by(rule: Rule, status: int, output: str) -> str:
    """What shows that the rule was broken; empty: nothing does."""
    if status == 0 or rule.says not in output:
        return ""
    said = said_before_failing(rule.test.partition(":")[2], output)
    complaint = re.search(r"^\[[ .\d]+\] ((?:WARNING|BUG|Oops|refcount_t)\b.*)$", output, re.MULTILINE)
    return said or (complaint[1] if complaint else "")


def main() -> int:
    every = read_rules()
    names = sys.argv[1:] or [rule.name for rule in every]
    rules = [rule for rule in every if rule.name in names]
    if len(rules) != len(set(names)):
        print(f"no such rule; there are: {' '.join(rule.name for rule in every)}", file=sys.stderr)
        return 2
    status, output = run(0, sorted({rule.test for rule in rules}))
    if status != 0:
        print(f"{output}\nFAIL with nothing broken: status {status}\n0 passed, 1 failed, 0 skipped")
        return 1
    failures = 0
    for rule in rules:
        status, output = run(rule.number, [rule.test])
        if status == HUNG:
            status, output = run(rule.number, [rule.test])
        seen = seen_by(rule, status, output)
        failures += not seen
        print(f"{'seen' if seen else 'FAIL'} {rule.name}: {rule.without}\n     {rule.test}: {seen or f'status {status}'}", flush=True)
        if not seen and status != 0:
            print(output)
    print(f"{len(rules) - failures} passed, {failures} failed, 0 skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
