#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of each library compile as one unit: one_unit.py BUILD

No file's own names are in another's way. The builds with sanitizers put six files into a unit, and which six changes with each
file that comes. BUILD is a configured build directory, for its compile_commands.json.
"""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBRARIES = ("framework/src", "framework/ingest/src")


def compiler_and_options(command: str) -> list[str]:
    """Without what names files, and without the launcher before the compiler."""
    words = shlex.split(command)
    words = words[next(at for at, word in enumerate(words) if word.startswith("-")) - 1:]
    system = [word for at, word in enumerate(words) if word == "-isystem" or words[at - 1] == "-isystem"]
    return [words[0], *(word for word in words if word.startswith(("-I", "-D", "-std="))), *system]


def check(library: str, commands: list[dict[str, Any]]) -> bool:
    files = [each for each in commands if f"/{library}/" in each["file"]]
    unit = "".join(f'#include "{each["file"]}"\n' for each in files)
    compile_unit = [*compiler_and_options(files[0]["command"]), "-fsyntax-only", "-w", "-x", "c++", "-"]
    done = subprocess.run(compile_unit, input=unit, text=True, stderr=subprocess.PIPE, check=False,
                          cwd=files[0]["directory"])
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    print(*errors[:20], f"{library}: {len(files)} files as one unit, {len(errors)} errors", sep="\n")
    return done.returncode == 0


def main() -> int:
    commands = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text())
    return 0 if all([check(library, commands) for library in LIBRARIES]) else 1


if __name__ == "__main__":
    sys.exit(main())
