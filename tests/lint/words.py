#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts sentences of the documentation that are too long, and comment sentences of public headers without an actor.

Each count has a limit, which only goes down. `words.py -v` prints what it counts.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LONGEST = 25  # words
LIMITS = {"long": 1, "openings": 0}
MEANINGS = {
    "long": f"sentences above {LONGEST} words in documentation",
    "openings": "comment sentences of public headers that begin with What, Who, Whoever, Where, How or One that",
}
OPENING = re.compile(r"(What|Who|Whoever|Whatever|Where|How|One that|One who)\b")


def sentences(paragraph: str) -> list[str]:
    # A full stop inside a name or a number ends nothing, nor does one after a common abbreviation.
    words = re.sub(r"\b(e\.g|i\.e|etc|vs|cf)\.", r"\1", paragraph)
    return [one for one in re.split(r"(?<=[.!?:])\s+(?=[\"'`(*\[]*(?:[A-Z0-9`]|gpurx))", words) if one.strip()]


def paragraphs_of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items and cells of tables, without code; each with its line."""
    collected: list[str] = []
    first, in_code = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if stripped.startswith("```"):
            in_code = not in_code
        starts_anew = in_code or not stripped or re.match(r"```|#|\||<|:::|(?:[-*+]|\d+\.)\s", stripped)
        if starts_anew and collected:
            yield first, " ".join(collected)
            collected = []
        if in_code or not stripped or re.match(r"```|#|<|:::", stripped) or (line.startswith("    ") and not collected):
            continue
        if stripped.startswith("|"):
            yield from ((number, cell.strip()) for cell in stripped.strip("|").split("|") if cell.strip())
            continue
        if not collected:
            first = number
        collected.append(re.sub(r"^(?:[-*+]|\d+\.)\s+", "", stripped))


def paragraphs_of_header(text: str) -> Iterator[tuple[int, str]]:
    """Runs of whole-line comments and comments at the end of a line; each with its line."""
    collected: list[str] = []
    first = 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        comment = re.match(r"\s*//[/!<]*\s?(.*)", line)
        if comment and comment[1].strip():
            if not collected:
                first = number
            collected.append(comment[1].strip())
            continue
        if collected:
            yield first, " ".join(collected)
            collected = []
        if at_end := re.search(r"[;,{)]\s+//[/!<]*\s?(.*)", line):
            yield number, at_end[1]


def found_in(path: Path) -> Iterator[tuple[str, int, str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for line, paragraph in paragraphs_of_markdown(text):
            for sentence in sentences(paragraph):
                if len(sentence.split()) > LONGEST:
                    yield "long", line, sentence
    else:
        for line, paragraph in paragraphs_of_header(text):
            for sentence in sentences(paragraph):
                if OPENING.match(sentence):
                    yield "openings", line, sentence


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", ":!kernel-support/linux-*", "framework/include", "framework/ingest/include"],
        stdout=subprocess.PIPE, text=True, check=True).stdout  # fmt: skip
    counts = dict.fromkeys(LIMITS, 0)
    for path in map(Path, listed.split()):
        for kind, line, sentence in found_in(path) if path.exists() else ():
            counts[kind] += 1
            if "-v" in sys.argv:
                print(f"{path}:{line}: {kind}: {sentence}")
    for kind, count in counts.items():
        if count > LIMITS[kind]:
            print(f"{MEANINGS[kind]}: {count}, limit {LIMITS[kind]}; words.py -v lists them", file=sys.stderr)
        elif count < LIMITS[kind]:
            print(f"{MEANINGS[kind]}: {count}; lower the limit of {LIMITS[kind]} in tests/lint/words.py")
    return int(any(count > LIMITS[kind] for kind, count in counts.items()))


if __name__ == "__main__":
    sys.exit(main())
