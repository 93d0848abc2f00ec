# SPDX-License-Identifier: Apache-2.0
"""The state of what a step depends on, as one word: its command, and its files. Comments of C++ count only for a step that
has +comments among its inputs."""

from __future__ import annotations

import functools
import hashlib
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

C_FAMILY = {".cpp", ".hpp", ".cu", ".c", ".h"}

# Strings and raw strings come first: in them nothing begins a comment.
TOKENS = re.compile(
    rb'R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|(?P<comment>//[^\n]*|/\*.*?\*/)',
    re.DOTALL,
)


def without_comments(text: bytes) -> bytes:
    """C++ without comments, blank lines and spaces at the ends of lines. Digit separators are no quotes."""
    text = re.sub(rb"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", b"", text)
    text = TOKENS.sub(lambda found: b" " if found["comment"] is not None else found[0], text)
    return b"\n".join(line.rstrip() for line in text.split(b"\n") if line.strip())


def digest(command: str, files: Iterable[tuple[str, str]]) -> str:
    """One word for a command, and for files by name, each with the hash of what it has."""
    total = hashlib.sha256(f"{command}\n".encode())
    for name, content in sorted(files):
        total.update(f"{name} {content}\n".encode())
    return total.hexdigest()[:16]


@functools.cache
def hash_of(name: str, *, comments: bool) -> str:
    path = Path(name)
    content = path.read_bytes()
    return hashlib.sha256(content if comments or path.suffix not in C_FAMILY else without_comments(content)).hexdigest()


def listed(pathspecs: Iterable[str]) -> set[str]:
    """The files of the tree, those that git does not know yet among them."""
    found = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *pathspecs],
                           check=True, stdout=subprocess.PIPE, text=True)  # fmt: skip
    return {name for name in found.stdout.split("\0") if name and Path(name).is_file()}


@functools.cache
def files_of(pathspecs: tuple[str, ...]) -> list[str]:
    """Files that pathspecs name; pages only where one of them does. Git is not told to leave pages out: beside pathspecs that
    are all in one folder it leaves out whatever there is."""
    pages = [one for one in pathspecs if one.endswith(".md")]
    files = {name for name in listed(pathspecs) if not name.endswith(".md") and name != "tests/record"}
    return sorted(files | listed(pages) if pages else files)


def state_of(command: str, words: tuple[str, ...]) -> str:
    comments = "+comments" in words
    pathspecs = tuple(word for word in words if word != "+comments")
    return digest(command, ((name, hash_of(name, comments=comments)) for name in files_of(pathspecs)))


@functools.cache
def compilers() -> str:
    """The compilers of this machine that tests use; - for one that is not there."""
    found = []
    for program in ("g++", "clang++-16"):
        try:
            said = subprocess.run([program, "-dumpfullversion", "-dumpversion"], stdout=subprocess.PIPE, text=True, check=True)
            found.append(said.stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            found.append("-")
    return "+".join(found)
