#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Doxygen's INPUT_FILTER: the comments of our headers, as they stand, for the declarations that they stand at.

The headers have plain // comments, laid out by hand. Here each block above a declaration, and each comment behind one,
becomes a comment of Doxygen's with all of its text verbatim: reference.py sets it. No line moves. Comments inside of
function bodies are for readers of the code, and stay what they are.
"""

import re
import sys

COMMENT = re.compile(r"^(\s*)//( ?)(.*)$")
BEHIND = re.compile(r"^(\s*)([^\s/].*?)(\s+)// (.*)$")
SCOPE = re.compile(r"\b(namespace|class|struct|union|enum)\b[^()=]*$")


class Scopes:
    """Whether a line is at a place where declarations are: in namespaces, classes and enumerations only."""

    def __init__(self) -> None:
        self._stack: list[bool] = []
        self._head = ""

    def declares(self) -> bool:
        return all(self._stack)

    def read(self, code: str) -> None:
        for character in re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'', "", code):
            if character == "{":
                self._stack.append(bool(SCOPE.search(re.sub(r"template\s*<.*>", "", self._head))))
                self._head = ""
            elif character == "}":
                if self._stack:
                    self._stack.pop()
                self._head = ""
            elif character == ";":
                self._head = ""
            else:
                self._head += character
        self._head += " "


def is_said(text: str) -> bool:
    """A comment that says something to users."""
    return not re.match(r"SPDX-|NOLINT|----", text)


def without_foreign(lines: list[str]) -> list[str]:
    """Specialisations of others' templates are no names of ours, and Doxygen does not see what they belong to."""
    foreign = {at for at, line in enumerate(lines) if re.match(r"struct (boost|std)::", line)}
    return ["" if at in foreign or at + 1 in foreign else line for at, line in enumerate(lines)]


def converted(lines: list[str]) -> list[str]:
    scopes, result, at = Scopes(), [], 0
    while at < len(lines):
        line = lines[at]
        end = at
        while end < len(lines) and COMMENT.match(lines[end]):
            end += 1
        if end > at:
            block = [COMMENT.match(one).group(3) for one in lines[at:end]]
            declared = end < len(lines) and lines[end].strip() and not lines[end].startswith(("#", "}"))
            if scopes.declares() and declared and is_said(block[0]):
                block[0] = "/** @verbatim " + block[0]
                block[-1] += " @endverbatim */"
                result += block
            else:
                result += lines[at:end]
            at = end
            continue
        behind = BEHIND.match(line) if scopes.declares() else None
        if behind and is_said(behind.group(4)) and not line.lstrip().startswith("#") and "}  //" not in line:
            column = line.index("//", behind.end(2))
            block = [behind.group(4)]
            # What goes on below, in the same column.
            while at + 1 < len(lines) and re.match(rf"^ {{{column}}}// ", lines[at + 1]):
                at += 1
                block.append(lines[at][column + 3 :])
            block[0] = f"{line[:column]}/**< @verbatim {block[0]}"
            block[-1] += " @endverbatim */"
            result += block
            scopes.read(behind.group(2))
        else:
            result.append(line)
            scopes.read(line.split("//")[0])
        at += 1
    return result


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(converted(without_foreign(file.read().splitlines()))))


if __name__ == "__main__":
    main()
