#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the folders of the sources on floors:  floors.py TO_FILE

The tables of permitted includes give the floors: a folder stands above all folders that its files include."""

from __future__ import annotations

import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
HOUSES = {"gpurx": "framework/src/includes.txt", "gpurx::ingest": "framework/ingest/src/includes.txt"}
NOTES = {
    "gpurx": {
        "base": "system calls, threads, errors",
        "memory": "dmabufs",
        "cuda": "streams, gather",
        "nic": "netlink, ethtool",
        "lease": "queues, rules, journal",
        "session": "budget, watchdog, metrics",
        "flow": "one TCP flow: tokens, operations",
    },
    "gpurx::ingest": {
        ".": "buffers, errors",
        "net": "URLs, connections, TLS",
        "source": "ranges of bytes",
        "s3": "signatures",
        "hub": "models of Hugging Face",
        "file": "local files",
        "http": "objects, mirrors",
        "safetensors": "weights",
        "stream": "tensor senders",
    },
}
WIDTH, FLOOR, GAP, TITLE = 400, 58, 8, 34


def floors_of(table: str) -> list[list[str]]:
    """The folders of each floor, from the ground up."""
    floor: dict[str, int] = {}
    for line in table.splitlines():
        if line and not line.startswith("#"):
            folder, included = line.split(":")
            floor[folder] = max((floor[one] + 1 for one in included.split() if one != folder), default=0)
    return [[name for name, at in floor.items() if at == each] for each in range(max(floor.values()) + 1)]


def house(name: str, floors: list[list[str]], top: int) -> tuple[list[str], int]:
    """The lines of one house, and the height below it."""
    lines = [f'  <text class="name" x="{WIDTH // 2}" y="{top + 20}">{name}</text>']
    top += TITLE
    for floor in reversed(floors):
        width = (WIDTH - 16 - GAP * (len(floor) - 1)) / len(floor)
        for number, folder in enumerate(floor):
            left = 8 + number * (width + GAP)
            shown = f"{folder}/" if folder != "." else "src/"
            note = NOTES[name][folder]
            lines += [
                f'  <rect class="box" x="{left:.0f}" y="{top}" width="{width:.0f}" height="{FLOOR - GAP}" rx="6"/>',
                f'  <text class="name" x="{left + width / 2:.0f}" y="{top + 21}">{shown}</text>',
                f'  <text class="small" x="{left + width / 2:.0f}" y="{top + 39}">{note}</text>',
            ]
        top += FLOOR
    return lines, top


def picture(tables: dict[str, str]) -> str:
    lines: list[str] = []
    top = 0
    for name in reversed(tables):
        drawn, top = house(name, floors_of(tables[name]), top)
        lines += drawn
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {WIDTH} {top}" role="img" '
        'aria-labelledby="floors-title floors-desc">',
        '  <title id="floors-title">The folders of the sources</title>',
        '  <desc id="floors-desc">A folder includes headers of floors below it only. gpurx::ingest stands on the public headers of '
        "gpurx.</desc>",
    ]
    return "\n".join([*head, *lines, "</svg>", ""])


def main() -> None:
    tables = {name: (REPO / path).read_text(encoding="utf-8") for name, path in HOUSES.items()}
    Path(sys.argv[1]).write_text(picture(tables), encoding="utf-8")


if __name__ == "__main__":
    main()
