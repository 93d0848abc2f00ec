#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages as pages of the site:  man_pages.py TO_DIRECTORY

mandoc makes HTML of each; its sections become sections of the page. Sphinx's search does not read what others made, so
the words of a page go into its keywords.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

from guides import REPO, manuals

SECTION = re.compile(r'<section class="Sh">\s*<h1 class="Sh" id="[^"]*"><a [^>]*>(.*?)</a></h1>(.*?)</section>', re.S)


def raw(text: str) -> list[str]:
    return [".. raw:: html", "", *(f"   {line}" for line in text.strip().splitlines()), ""]


def words_of(markup: str) -> str:
    """All that can be looked for."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", markup))
    return " ".join(sorted(set(re.findall(r"[A-Za-z][\w-]{2,}", text))))


def page(path: Path, others: list[str]) -> str:
    markup = subprocess.run(
        ["mandoc", "-T", "html", "-O", "fragment", str(path)], check=True, text=True, stdout=subprocess.PIPE
    ).stdout
    # A page of ours that is named leads there.
    for name in others:
        stem, section = name.rsplit(".", 1)
        if name != path.name:
            markup = re.sub(
                rf"<b>{re.escape(stem)}</b>\({section}\)", f'<a href="{name}.html">{stem}({section})</a>', markup
            )
    title = "{}({})".format(*path.name.rsplit(".", 1))
    lines = [title, "=" * len(title), "", ".. meta::", f"   :keywords: {words_of(markup)}", ""]
    for name, body in SECTION.findall(markup):
        heading = " ".join(html.unescape(name).split()).capitalize()
        # Its own marks would be here twice: sections have them, too.
        lines += [heading, "-" * len(heading), "", *raw(f'<div class="manual">{body}</div>')]
    return "\n".join(lines)


def main() -> None:
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    found = manuals(REPO)
    names = sorted(path.name for path in found)
    for path in found:
        (to / f"{path.name}.rst").write_text(page(path, names), encoding="utf-8")
    index = [
        "Manual pages",
        "============",
        "",
        ".. toctree::",
        "   :maxdepth: 1",
        "",
        *(f"   {name}" for name in names),
        "",
    ]
    (to / "index.rst").write_text("\n".join(index), encoding="utf-8")


if __name__ == "__main__":
    main()
