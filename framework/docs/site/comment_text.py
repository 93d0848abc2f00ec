# SPDX-License-Identifier: Apache-2.0
"""The comments of the headers as reStructuredText. Pure: text in, text out."""

from __future__ import annotations

import re
from collections.abc import Callable

# What our comments begin a paragraph with; what follows is indented, or not.
LABELS = (
    "Allocation|Back-pressure|Blocking|Cancellation|Cost|Errors and cost|Errors|Executor|How it works|Lifetimes?|Needs|"
    "One at a time|Per-operation cancellation|Preconditions?|Preconditions of everything below|Proxies|Servers|"
    "Signature|"
    "Thread safety|Token|https"
)
LABEL = re.compile(rf"^({LABELS}): (?=\S)")
# In a list: anything that is named before a colon.
ITEM_LABEL = re.compile(r"^([A-Za-z_][\w /,()-]{0,40}): (?=\S)")
WORD = re.compile(
    r"`[^`]+`|void\([^()]*\)"  # said to be code
    r"|\b[a-z0-9]+://[^\s,;)]+"
    r"|[\w./-]+\.(?:hpp|md|cpp)\b"
    r"|(?<![\w/.-])[A-Za-z_]\w*(?:(?:::|\.)~?[A-Za-z_]\w*)*(?:\(\))?(?:::\w+)?"
)

# What a name is a reference to, or none.
Resolve = Callable[[str], "str | None"]


def escaped(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def is_code(word: str) -> bool:
    """Whether nobody would take it for a word of English."""
    return word.startswith(("`", "void(")) or "://" in word or "_" in word or "::" in word or word.endswith("()")


def inline(text: str, resolve: Resolve) -> str:
    """A line of text with its names set as code, and linked where they are ours."""
    result, at = [], 0
    for match in WORD.finditer(text):
        word = match.group()
        bare = word.strip("`")
        known = resolve(bare)
        if known is None and not is_code(word):
            continue
        result.append(escaped(text[at : match.start()]))
        at = match.end()
        if known is None and word.endswith(".") and not word.startswith("`"):
            at -= 1
            bare = bare[:-1]
        result.append(f"\\ {known}\\ " if known else f"\\ ``{bare}``\\ ")
    result.append(escaped(text[at:]))
    return "".join(result)


def begins_listing(last: Block | None, line: str) -> bool:
    """Whether code begins, in a comment that shows some."""
    if last is None or last.kind not in ("paragraph", "field") or not last.lines[-1].endswith((":", ",")):
        return False
    if re.match(r"^ {4,}(// In a (coroutine|function)\b|#include <)", line):
        return True
    return bool(re.match(r"^ {4,}\S.*[;{,]$", line)) and bool(re.search(r"[({]", line))


class Block:
    """A paragraph, an item of a list or a listing, while its lines come."""

    def __init__(self, kind: str, text: str, indent: int, label: str = "") -> None:
        self.kind, self.lines, self.indent, self.label = kind, [text], indent, label


def blocks_of(lines: list[str]) -> list[Block | None]:
    """None is between paragraphs."""
    result: list[Block | None] = []
    last: Block | None = None
    for raw in lines:
        line = raw.rstrip()
        if not line.strip():
            last = None
            continue
        indent, text = len(line) - len(line.lstrip()), line.strip()
        bullet = re.match(r"^[*-] (?=\S)", text)
        label = (LABEL if indent == 0 else ITEM_LABEL).match(text)
        if last is not None and last.kind == "listing" and indent >= last.indent:
            last.lines.append(line[last.indent :])
            continue
        if begins_listing(last, line):
            last = Block("listing", text, indent)
        elif bullet:
            last = Block("item", text[2:], indent)
        elif indent == 0 and label:
            last = Block("field", text[label.end() :], 0, label.group(1))
        elif last is None:
            last = Block("paragraph", text, indent)
        elif indent == 0 and last.kind in ("item", "listing"):
            last = Block("paragraph", text, 0)
        elif indent > 0 and starts_item(last, text, indent, label is not None):
            if label:
                last = Block("item", text[label.end() :], indent, label.group(1))
            else:
                last = Block("item", text, indent)
        else:
            last.lines.append(text)
            continue
        result.append(last)
    return result


def starts_item(last: Block, text: str, indent: int, has_label: bool) -> bool:
    """Whether an indented line is an item of a list, or goes on with what is above."""
    if last.kind == "item":
        return indent == last.indent and (has_label or last.lines[-1].endswith((";", ".")))
    if last.kind == "field":
        return False
    ends = last.lines[-1]
    return ends.endswith(":") or ends.endswith(("Made from", "from"))


def rst(comment: str, resolve: Resolve, extra: str = "") -> list[str]:
    """Lines of reStructuredText."""
    result: list[str] = []
    previous = ""
    for block in blocks_of(comment.splitlines()):
        text = inline(" ".join(block.lines), resolve)
        label = f"**{escaped(block.label)}:** " if block.label else ""
        if block.kind != "item" or previous != "item":
            result.append("")
        if block.kind == "listing":
            result += [".. code-block:: cpp", "", *("   " + line for line in block.lines)]
        elif block.kind == "item":
            result.append(f"* {label}{text}")
        else:
            result.append(f"{label}{text}")
        previous = block.kind
    return [*result, ""] if result else []
