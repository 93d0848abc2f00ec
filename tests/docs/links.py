# SPDX-License-Identifier: Apache-2.0
"""Every link of the site leads somewhere, and nothing is fetched from elsewhere when it is viewed: links.py SITE"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser fetches by itself.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
    ("link", "href"),
    ("image", "href"),
    ("use", "href"),
}
# Of a <link> it fetches these alone.
RELATIONS = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "manifest"}


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []  # with whether it is fetched
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src", "data", "xlink:href"):
            if name in values:
                fetched = (tag, name.removeprefix("xlink:")) in FETCHED
                if tag == "link":
                    fetched = bool(RELATIONS & set(values.get("rel", "").split()))
                self.links.append((values[name], fetched))


def styles(site: Path) -> list[str]:
    """What style sheets ask for. Pictures that are in them as data are there already."""
    found = []
    for path in sorted(site.rglob("*.css")):
        for wanted in re.findall(r"(?:url\(|@import\s+)\s*[\"']?([^\"')\s;]+)", path.read_text(encoding="utf-8")):
            if not wanted.startswith(("data:", "#")) and not (path.parent / wanted.partition("?")[0]).is_file():
                found.append(f"{path.relative_to(site)}: asks for {wanted}")
    return found


def complaints(site: Path) -> tuple[list[str], int]:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found, count = styles(site), 0
    for path, page in pages.items():
        where = path.relative_to(site)
        for link, fetched in page.links:
            count += 1
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto") or parts.netloc:
                if fetched:
                    found.append(f"{where}: fetches {link}")
                continue
            if parts.scheme == "data":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or site.resolve() not in target.resolve().parents:
                found.append(f"{where}: {link}: there is no such page")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{where}: {link}: the page has no such place")
    return found, count


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    found, count = complaints(site)
    if count < 1000:
        found.append(f"only {count} links: the site is not read as it should be")
    print("\n".join(found) + "\n" * bool(found), end="")
    print(
        f"{'not ok' if found else 'ok'} - all {count} links of the site lead somewhere, and nothing is fetched from elsewhere"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
