# SPDX-License-Identifier: Apache-2.0
"""What every benchmark ends with: a table, bars that hold or not, and build/bench/NAME.json."""

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parents[2] / "build" / "bench"


@dataclass
class Bar:
    """A figure and its limit. `at_least` turns the comparison round."""

    name: str
    value: float
    unit: str
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def machine() -> dict[str, Any]:
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown")
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": platform.release()}


def print_table(head: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(text.ljust(width) if column == 0 else text.rjust(width)
                        for column, (text, width) in enumerate(zip(row, widths))))


@dataclass
class Report:
    name: str
    configuration: dict[str, Any]
    samples: dict[str, Any] = field(default_factory=dict)
    bars: list[Bar] = field(default_factory=list)

    def bar(self, bar: Bar) -> None:
        self.bars.append(bar)

    def finish(self) -> int:
        """Writes the JSON, prints the bars; 3 if one falls short, else 0."""
        OUTPUT.mkdir(parents=True, exist_ok=True)
        path = OUTPUT / f"{self.name}.json"
        content = {
            "name": self.name,
            "machine": machine(),
            "configuration": self.configuration,
            "samples": self.samples,
            "bars": [asdict(bar) | {"holds": bar.holds} for bar in self.bars],
        }
        path.write_text(json.dumps(content, indent=2) + "\n")
        for bar in self.bars:
            relation = ">=" if bar.at_least else "<="
            verdict = "holds" if bar.holds else "FALLS SHORT"
            print(f"bar: {bar.name}: {bar.value:.3f}{bar.unit} (limit {relation} {bar.limit}{bar.unit}) {verdict}")
        print(f"written: {os.path.relpath(path)}")
        return 0 if all(bar.holds for bar in self.bars) else 3
