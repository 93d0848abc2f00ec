# SPDX-License-Identifier: Apache-2.0
"""A browser looks at every page of the site, as wide as a desktop's and as a phone's: look.py SITE [PICTURES]

No page is wider than its window, nothing goes to the console, nothing is fetched from elsewhere, the first page's answers
are in the first screen, the search finds, and both themes can be read. With PICTURES, a directory, the kinds of pages are
kept there as they look."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from browser import Browser, find

SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
# One of each kind.
KINDS = (
    "index",
    "overview",
    "guides/setup",
    "reference/cpp/gpurx-receiver",
    "reference/python/gpurx",
    "man/gpurx-doctor.8",
    "genindex",
    "figures",
    "decisions/index",
)

# What goes beyond the window, but for what scrolls in itself. A phone's browser makes the window as wide as what is in it,
# so the width is the one that was asked for.
WIDE = """(width => {
    const scrolls = one => one && (/auto|scroll/.test(getComputedStyle(one).overflowX) && one !== document.body
        && one !== document.documentElement && !one.matches(".page, .main, .content") || scrolls(one.parentElement));
    if (document.documentElement.scrollWidth > width) return `${document.documentElement.scrollWidth} pixels wide`;
    const one = [...document.querySelectorAll("article *, header *, footer *")]
        .find(each => each.getBoundingClientRect().right > width + 1 && !scrolls(each.parentElement));
    return one ? `${one.getBoundingClientRect().right} pixels: ${one.outerHTML.slice(0, 160)}` : "";
})(%d)"""
# Where the last of the answers ends.
ANSWERS_END = """(() => {
    const answers = [...document.querySelectorAll(".answer")];
    return [answers.length, Math.max(...answers.map(one => one.getBoundingClientRect().bottom))];
})()"""
# Of the text on its background, as WCAG has it; 4.5 is what it asks for.
CONTRAST = """(() => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const light = colour => {
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)].map(one => one / 255)
            .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
            .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
    };
    const back = light(getComputedStyle(document.body).backgroundColor);
    const texts = ["article p", "article a", ".picture .name", ".picture .small", "article h1", ".sidebar-tree a"];
    return Math.min(...texts.flatMap(one => {
        const found = document.querySelector(one);
        if (!found) return [];
        const style = getComputedStyle(found), text = light(found.closest("svg") ? style.fill : style.color);
        return [(Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05)];
    }));
})()"""


class Look:
    def __init__(self, site: Path, browser: Browser) -> None:
        self._site, self._browser = site, browser
        self._complaints: list[str] = []

    def visit(self, page: str, query: str = "") -> None:
        self._browser.go((self._site / f"{page}.html").as_uri() + query)

    def check(self, where: str, width: int) -> None:
        """What holds for every page, of the one that is there."""
        self._complaints += [f"{where}: the console says: {one}" for one in self._browser.errors()]
        self._complaints += [
            f"{where}: fetches {one}"
            for one in self._browser.requests()
            if not one.startswith((self._site.as_uri(), "data:"))
        ]
        if wide := self._browser.evaluate(WIDE % width):
            self._complaints.append(f"{where}: {wide}")

    def expect(self, holds: bool, complaint: str) -> None:
        if not holds:
            self._complaints.append(complaint)

    def told(self, what: str) -> bool:
        complaints, self._complaints = self._complaints, []
        print("\n".join(complaints) + "\n" * bool(complaints), end="")
        print(f"{'not ok' if complaints else 'ok'} - {what}", flush=True)
        return not complaints


def every_page(look: Look, browser: Browser, pages: list[str]) -> bool:
    good = True
    for name, (width, height) in SIZES.items():
        browser.size(width, height, name == "phone")
        for page in pages:
            look.visit(page)
            look.check(f"{page}, {name}", width)
        good &= look.told(f"{len(pages)} pages fit a {name}'s window of {width} pixels, and say nothing to the console")
    return good


def first_page(look: Look, browser: Browser) -> bool:
    for name, (width, height) in SIZES.items():
        browser.size(width, height, name == "phone")
        look.visit("index")
        count, end = browser.evaluate(ANSWERS_END)
        look.expect(count == 4 and end <= height, f"{name}: {count} answers, which end at {end:.0f} of {height} pixels")
    return look.told("the answers of the first page are on the first screen")


def themes(look: Look, browser: Browser, pictures: Path | None) -> bool:
    for theme in ("light", "dark"):
        browser.theme(theme)
        for name, (width, height) in SIZES.items():
            browser.size(width, height, name == "phone")
            for page in KINDS:
                look.visit(page)
                contrast = browser.evaluate(CONTRAST)
                look.expect(contrast >= 4.5, f"{page}, {name}, {theme}: contrast of {contrast:.1f}")
                if pictures:
                    browser.picture(pictures / f"{page.replace('/', '-')}-{name}-{theme}.png")
    browser.theme("light")
    return look.told("text has a contrast of 4.5 at least, in the light and in the dark")


def search(look: Look, browser: Browser) -> bool:
    """Of each kind of page there is something to be found."""
    browser.size(*SIZES["phone"], phone=True)
    for word, page in (
        ("async_receive", "reference/cpp/gpurx-receiver"),
        ("TensorSender", "reference/python/gpurx"),
        ("huge pages", "guides/setup"),
        ("dry-run", "man/gpurx-doctor.8"),
    ):
        look.visit("search", f"?q={word.replace(' ', '+')}")
        until, links = time.monotonic() + 10, []
        while page not in str(links) and time.monotonic() < until:
            links = browser.evaluate('[...document.querySelectorAll("#search-results a")].map(one => one.href)')
            time.sleep(0.1)
        look.expect(page in str(links), f"'{word}' does not lead to {page}, but to {links[:5]}")
        look.check(f"search for {word}", SIZES["phone"][0])
    return look.told("the search finds what is in headers, modules, guides and man pages")


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    pictures = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    program = find()
    if not program:
        print("ok - a browser looks at the site # SKIP there is no Chromium on this machine")
        return 0
    pages = sorted(path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html"))
    with Browser(program) as browser:
        look = Look(site, browser)
        good = [
            every_page(look, browser, pages),
            first_page(look, browser),
            themes(look, browser, pictures),
            search(look, browser),
        ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
