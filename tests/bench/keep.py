#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`keep.py NAME...`: what `./run bench NAME` has measured becomes the result that is kept with the sources and drawn for the
site, tests/bench/results/NAME.json; without those rounds that are hundreds, and in no picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from report import OUTPUT

KEPT = Path(__file__).resolve().parent / "results"
LEFT_OUT = {"tokens": {"rounds"}, "tap": {"openings", "instructions"}}


def main(names: list[str]) -> None:
    for name in names:
        content = json.loads((OUTPUT / f"{name}.json").read_text(encoding="utf-8"))
        for sample in LEFT_OUT.get(name, ()):
            del content["samples"][sample]
        (KEPT / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(f"written: tests/bench/results/{name}.json")


if __name__ == "__main__":
    main(sys.argv[1:])
