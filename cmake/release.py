#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the tree is ready for a release, and makes its files:  ./run release VERSION [--allow-open]

VERSION must be that of CMakeLists.txt, and CHANGELOG.md must begin with "## VERSION (YYYY-MM-DD)". The tree must be clean, and
each test step green (--allow-open: or listed in the notes as open). The files go to build/release-VERSION: a source archive, the
Python wheel, the Debian packages of this machine's release, NOTES.md and SHA256SUMS. The last line is the command that tags
the commit; nothing is tagged or pushed."""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
# Earlier versions may lie beside them.
BUILT = ("build/wheel/gpurx-{}-*.whl", "build/wheel/gpurx-{}.tar.gz", "build/packages/*_{}-*.deb")


def declared_version(cmake: str) -> str:
    found = re.search(r"project\(gpurx\s+VERSION ([0-9.]+)", cmake)
    return found[1] if found else ""


def notes_of(changelog: str, version: str) -> str:
    """The section of the version; empty: the first section is another one, or has no date."""
    first = re.search(r"^## (\S+) \(\d{4}-\d{2}-\d{2}\)\n+(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    heading = re.search(r"^## .*$", changelog, re.M)
    if not first or not heading or heading.start() != first.start() or first[1] != version:
        return ""
    return first[2].strip() + "\n"


def obstacles(version: str, cmake: str, changelog: str, changed: str) -> list[str]:
    """The reasons against the release."""
    found = []
    if declared_version(cmake) != version:
        found.append(f"CMakeLists.txt has version {declared_version(cmake) or 'none'}: set it to {version}")
    if not notes_of(changelog, version):
        found.append(f'CHANGELOG.md does not begin with "## {version} (YYYY-MM-DD)" and notes')
    if changed:
        found.append(f"the tree has changes: commit them, or remove them\n{changed}")
    return found


def open_steps(status: str) -> list[str]:
    """Raises ValueError if the text has no step: it is no status then, and says nothing of what passed."""
    steps = [line.split() for line in status.splitlines() if re.match(r"(open|green|named) ", line)]
    if not steps:
        raise ValueError("./run test status lists no step")
    return [step[1] for step in steps if step[0] == "open"]


def output_of(*command: str) -> str:
    return subprocess.run(command, cwd=REPO, stdout=subprocess.PIPE, text=True, check=False).stdout


def make(version: str, notes: str, to: Path) -> None:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    for command in (
        ["git", "archive", f"--prefix=gpurx-{version}/", f"--output={to}/gpurx-{version}-source.tar.gz", "HEAD"],
        ["./run", "wheel"],
        ["./run", "packages"],
    ):
        subprocess.run(command, cwd=REPO, check=True)
    for pattern in BUILT:
        made = sorted(REPO.glob(pattern.format(version)))
        if not made:
            raise FileNotFoundError(f"no {pattern.format(version)} was made")
        for path in made:
            shutil.copy(path, to)
    (to / "NOTES.md").write_text(notes, encoding="utf-8")
    files = sorted(path for path in to.iterdir() if path.is_file())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (to / "SHA256SUMS").write_text(sums, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--allow-open", action="store_true", help="release with open test steps, and list them in the notes")
    arguments = parser.parse_args()
    changelog = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    cmake = (REPO / "CMakeLists.txt").read_text(encoding="utf-8")
    found = obstacles(arguments.version, cmake, changelog, output_of("git", "status", "--porcelain"))
    still_open = open_steps(output_of("./run", "test", "status"))
    if still_open and not arguments.allow_open:
        found.append(f"open test steps (./run test changed runs them): {', '.join(still_open)}")
    if found:
        print("\n".join(f"release: {one}" for one in found), file=sys.stderr)
        return 1
    notes = notes_of(changelog, arguments.version)
    if still_open:
        notes += f"\nNot run on this commit: {', '.join(still_open)}.\n"
    to = REPO / f"build/release-{arguments.version}"
    make(arguments.version, notes, to)
    print(f"made: {to.relative_to(REPO)}\ngit tag -s v{arguments.version} -F {to.relative_to(REPO)}/NOTES.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
