#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the library and the samples, or over a folder:  tidy.py [--minutes N] BUILD_DIRECTORY [FOLDER]

The directory is one that is built, by Ninja: it knows the commands and what each file includes. A file that passed is
not looked at again until it, a header of ours that it includes, its command, .clang-tidy or the tool changes.

A file takes 15 seconds of a core, so a machine that has seen none of them needs half an hour. With --minutes, those that
changed last come first, none begins after that time, and what is left is said: the next run goes on with it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
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


def latest_first() -> list[str]:
    """Files that differ from the last commit, then those of each commit before; empty where git knows nothing."""
    names = ["git", "diff", "--name-only", "HEAD"], ["git", "log", "--format=", "--name-only", "-n", "300"]
    printed = [subprocess.run(command, capture_output=True, text=True, cwd=root, check=False).stdout for command in names]
    return list(dict.fromkeys("".join(printed).split("\n")))


def check(tool: str, build: Path, file: str, key: str, deadline: float) -> tuple[str, str | None]:
    """The file and what there is to say about it: nothing if it is clean, None if there was no time left for it."""
    if time.monotonic() >= deadline:
        return file, None
    # The command is g++'s, which has warnings of its own.
    command = [tool, "--quiet", "--extra-arg=-Wno-unknown-warning-option", "-p", build, file]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    if done.returncode == 0:
        (cache / key).touch()
        return file, ""
    return file, done.stdout + done.stderr


def check_all(tool: str, build: Path, pending: list[tuple[str, str]], deadline: float) -> tuple[int, int]:
    """How many failed, and how many there was no time for."""
    failed = left = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for job in concurrent.futures.as_completed([pool.submit(check, tool, build, *item, deadline) for item in pending]):
            file, complaint = job.result()
            if complaint is None:
                left += 1
                continue
            print(f"{'failed' if complaint else 'clean'}: {Path(file).relative_to(root)}", flush=True)
            if complaint:
                failed += 1
                print(complaint.replace(f"{root}/", ""), flush=True)
    return failed, left


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("build", type=Path)
    parser.add_argument("folders", nargs="*", default=list(checked_folders))
    return parser.parse_args()


def main() -> int:
    arguments = read_arguments()
    deadline = time.monotonic() + 60 * arguments.minutes
    build = arguments.build.resolve()
    folders = [root / folder for folder in arguments.folders]
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
    if not total:
        print("no file to check: is the build directory right?")
        return 1

    age = {str(root / name): place for place, name in enumerate(latest_first())}
    pending.sort(key=lambda item: age.get(item[0], len(age)))
    failed, left = check_all(tool, build, pending, deadline)
    if left:
        print(f"SKIP tidy: {left} of {total} files: {arguments.minutes:g} minutes were over; the next run goes on with them")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
