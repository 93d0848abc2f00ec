#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the library and the samples, or over a folder:  tidy.py BUILD_DIRECTORY [FOLDER]

The directory is one that is built, by Ninja: it knows the commands and what each file includes. A file that passed is
not looked at again until it, a header of ours that it includes, its command, .clang-tidy or the tool changes.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

root = Path(__file__).resolve().parents[2]
cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpurx" / "tidy"
checked_folders = ("framework", "samples")


def find_tool() -> tuple[str, str] | None:
    """clang-tidy 14 and its version; other versions have other checks."""
    for name in ("clang-tidy-14", "clang-tidy"):
        if path := shutil.which(name):
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            if "version 14." in version:
                return path, version
    return None


def included_files(build: Path) -> dict[str, list[Path]]:
    """Object file to the files of ours that it was made from."""
    deps: dict[str, list[Path]] = {}
    listing = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    for block in listing.split("\n\n"):
        head, *lines = block.splitlines() or [""]
        paths = [(build / line.strip()).resolve() for line in lines]
        deps[head.split(":")[0]] = [path for path in paths if path.is_relative_to(root) and not path.is_relative_to(build)]
    return deps


def key_of(entry: dict[str, str], included: list[Path], version: str) -> str:
    key = hashlib.sha256()
    for text in (version, (root / ".clang-tidy").read_text(), entry["command"].replace(str(root), ".")):
        key.update(hashlib.sha256(text.encode()).digest())
    for path in sorted({Path(entry["file"]), *included}):
        key.update(str(path.relative_to(root)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return key.hexdigest()


def check(tool: str, build: Path, file: str, key: str) -> tuple[str, str]:
    """The file and what there is to say about it: nothing if it is clean."""
    done = subprocess.run([tool, "--quiet", "-p", build, file], capture_output=True, text=True, cwd=root, check=False)
    if done.returncode == 0:
        (cache / key).touch()
        return file, ""
    return file, done.stdout + done.stderr


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    folders = [root / folder for folder in sys.argv[2:] or checked_folders]
    found = find_tool()
    if not found:
        print("SKIP tidy: clang-tidy 14 is not on this machine, and other versions have other checks")
        return 0
    tool, version = found
    cache.mkdir(parents=True, exist_ok=True)

    deps = included_files(build)
    pending: list[tuple[str, str]] = []
    total = 0
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not any(Path(entry["file"]).is_relative_to(folder) for folder in folders):
            continue
        total += 1
        words = shlex.split(entry["command"])
        key = key_of(entry, deps.get(words[words.index("-o") + 1], []), version)
        if not (cache / key).exists():
            pending.append((entry["file"], key))
    print(f"{total} files, {total - len(pending)} unchanged since they passed", flush=True)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in concurrent.futures.as_completed([pool.submit(check, tool, build, *item) for item in pending]):
            file, complaint = job.result()
            print(f"{'failed' if complaint else 'clean'}: {Path(file).relative_to(root)}", flush=True)
            if complaint:
                failed += 1
                print(complaint.replace(f"{root}/", ""), flush=True)
    if not total:
        print("no file to check: is the build directory right?")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
