# SPDX-License-Identifier: Apache-2.0
"""Every option of a program is in its manual page, and the page has no other: documented.py PROGRAM PAGE"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def options_of(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z0-9][a-z0-9-]*", text))


def main() -> None:
    program, page = sys.argv[1:]
    known = subprocess.run([program, "--help"], check=True, stdout=subprocess.PIPE, text=True).stdout
    options = options_of("\n".join(re.findall(r"^ +(?:-\w,)?(--\S+)", known, re.MULTILINE))) - {"--help"}
    text = Path(page).read_text(encoding="utf-8").replace("\\-", "-")
    # Each has an entry of its own; elsewhere it may be mentioned.
    entries = options_of("\n".join(re.findall(r"^\.TP\n(.+)$", text, re.MULTILINE)))
    mentioned = options_of(text)
    complaints = [f"{name}: in --help, without an entry in {page}" for name in sorted(options - entries)]
    complaints += [f"{name}: in {page}, and not in --help" for name in sorted(mentioned - options - {"--help"})]
    print("\n".join(complaints) or f"{len(options)} options, all in {page}")
    sys.exit(bool(complaints))


main()
