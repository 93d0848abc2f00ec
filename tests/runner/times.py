# SPDX-License-Identifier: Apache-2.0
"""Keeps how long test steps took, and says which have become slower.

In a file of JSON: the runs of late, the newest last, each with its date and the seconds of its steps. A step that took a third
longer than the median of the last runs that had it is named, unless that is a matter of seconds. Steps fill caches, so a
first run says nothing: two must be there to compare with.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

RUNS_KEPT = 20
RUNS_COMPARED = 5
SLOWER = 4 / 3
SECONDS_IGNORED = 15


def load(path: Path) -> list[dict[str, Any]]:
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
        return [run for run in runs if isinstance(run["steps"], dict)]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def warnings(earlier: list[dict[str, Any]], steps: dict[str, int]) -> list[str]:
    found = []
    for name, seconds in steps.items():
        before = [run["steps"][name] for run in earlier if name in run["steps"]][-RUNS_COMPARED:]
        if len(before) < 2:
            continue
        usual = statistics.median(before)
        if seconds > usual * SLOWER and seconds - usual > SECONDS_IGNORED:
            found.append(f"slower: {name} took {seconds} s, {usual:.0f} s in the last {len(before)} runs")
    return found


def keep(path: Path, steps: dict[str, int]) -> None:
    """Print what became slower, and add this run to the file."""
    earlier = load(path)
    for line in warnings(earlier, steps):
        print(line)
    runs = [*earlier, {"date": time.strftime("%F %H:%M"), "steps": steps}][-RUNS_KEPT:]
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
