#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of Markdown that the repository has, for the site:  guides.py TO_DIRECTORY

They stay what they are; only their links change: to a page of the site where it has what they lead to, else to nothing,
with the path in the text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]

# Where pages stand that are not framework/docs.
ELSEWHERE = {
    "README.md": "overview",
    "SECURITY.md": "security",
    "CHANGELOG.md": "changelog",
    "CONTRIBUTING.md": "contributing",
    "samples/README.md": "guides/samples",
    "framework/python/README.md": "guides/python",
    "kernel-support/README.md": "kernel/index",
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def pages(repo: Path) -> dict[str, str]:
    """From the path in the repository to the page of the site, without its ending."""
    found = dict(ELSEWHERE)
    for path in sorted((repo / "framework/docs").rglob("*.md")):
        name = path.relative_to(repo / "framework/docs").with_suffix("").as_posix()
        if name.startswith("site/"):
            continue
        found[path.relative_to(repo).as_posix()] = name if name.startswith("decisions/") else f"guides/{name}"
    for path in sorted((repo / "kernel-support").rglob("*.md")):
        name = path.relative_to(repo / "kernel-support").with_suffix("").as_posix()
        name = name.removesuffix("/README").replace("/", "-")
        found.setdefault(path.relative_to(repo).as_posix(), f"kernel/{name}")
    return found


def manuals(repo: Path) -> list[Path]:
    """The man pages."""
    return sorted(path for where in ("framework/tools", "samples") for path in (repo / where).rglob("*.[1-8]"))


def targets(repo: Path) -> dict[str, str]:
    """All that a link can lead to: pages, man pages, headers, and the directories that have a page."""
    known = pages(repo)
    for path, page in list(known.items()):
        if path.endswith("/README.md"):
            known[path.removesuffix("/README.md")] = page
    for path in manuals(repo):
        known[path.relative_to(repo).as_posix()] = f"man/{path.name}"
    for root in ("framework/include", "framework/ingest/include"):
        for path in (path for path in (repo / root).rglob("*.hpp") if "detail" not in path.parts):
            known[path.relative_to(repo).as_posix()] = "reference/cpp/" + path.relative_to(repo / root).with_suffix(
                ""
            ).as_posix().replace("/", "-")
    known["framework/include/gpurx"] = "reference/cpp/index"
    known["framework/docs/decisions"] = "decisions/index"
    return known


def rewritten(text: str, path: str, page: str, known: dict[str, str]) -> str:
    """The text of a file of the repository, for its page."""
    here, at = posixpath.dirname(path), posixpath.dirname(page)

    def link(match: re.Match[str]) -> str:
        shown, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match.group()
        file, mark, anchor = target.partition("#")
        full = posixpath.normpath(posixpath.join(here, file))
        if full in known:
            to = posixpath.relpath(known[full], at or ".")
            return f"[{shown}]({to}.md{mark}{anchor})" if full.endswith(".md") else f"[{shown}]({to}{mark}{anchor})"
        if not (REPO / full).exists():
            raise SystemExit(f"{path}: links to {target}, which is not there")
        plain = shown.strip("`")
        return f"`{full}`" if full.endswith(plain) else f"{shown} (`{full}`)"

    result, fenced = [], False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        code = fenced or line.startswith("    ")
        result.append(line if code else LINK.sub(link, line))
    return "\n".join(result) + "\n"


def title_of(text: str) -> str:
    return re.search(r"^# (.+)$", text, re.M).group(1)


def with_list(text: str, pages_below: list[str]) -> str:
    """A page, and those below it."""
    return f"{text}\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n" + "\n".join(pages_below) + "\n```\n"


def labelled(text: str, page: str) -> str:
    """A guide with the name that the headers' comments have for it as a label, the target of their links."""
    return re.sub(r"^# ", f"(docs/{posixpath.basename(page)}.md)=\n# ", text, count=1, flags=re.M)


def main() -> None:
    to = Path(sys.argv[1])
    known = targets(REPO)
    texts = {
        page: rewritten((REPO / path).read_text(encoding="utf-8"), path, page, known)
        for path, page in pages(REPO).items()
    }
    decisions = sorted((title_of(text), page) for page, text in texts.items() if page.startswith("decisions/"))
    texts["decisions/index"] = with_list(
        "# Decisions\n\nEach decision has its context, its alternatives and its consequences.\n\n"
        + "\n".join(f"* [{title}]({posixpath.basename(page)}.md)" for title, page in decisions)
        + "\n",
        [posixpath.basename(page) for _, page in decisions],
    )
    below = sorted(posixpath.basename(page) for page in texts if page.startswith("kernel/") and page != "kernel/index")
    texts["kernel/index"] = with_list(texts["kernel/index"], below)
    for page, text in texts.items():
        target = to / f"{page}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(labelled(text, page) if page.startswith("guides/") else text, encoding="utf-8")


if __name__ == "__main__":
    main()
