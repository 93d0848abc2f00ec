#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What importlib.metadata reads of an installed package, from pyproject.toml: dist_info.py PYPROJECT VERSION DIRECTORY"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def metadata(project: dict, version: str) -> str:
    # No dependencies: what the wheel has of other packages the Debian package has inside.
    return (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version}\nSummary: {project['description']}\n"
            f"License: {project['license']}\nRequires-Python: {project['requires-python']}\n")


def entry_points(project: dict) -> str:
    groups = project.get("entry-points", {})
    return "\n".join(f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
                     for group, entries in groups.items())


def main() -> None:
    pyproject, version, directory = sys.argv[1:]
    project = tomllib.loads(Path(pyproject).read_text(encoding="utf-8"))["project"]
    into = Path(directory)
    into.mkdir(parents=True, exist_ok=True)
    (into / "METADATA").write_text(metadata(project, version), encoding="utf-8")
    (into / "entry_points.txt").write_text(entry_points(project), encoding="utf-8")
    (into / "INSTALLER").write_text("dpkg\n", encoding="utf-8")


main()
