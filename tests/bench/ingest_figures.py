# SPDX-License-Identifier: Apache-2.0
"""What `./run bench ingest` makes of the costs that it has measured: rows of tables, and bars. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

from report import Bar, Table

MIB = 1 << 20
GIB = 1 << 30


class Cost(NamedTuple):
    """Of bringing an object once."""

    cpu: float  # seconds: of all threads and processes that receive
    seconds: float
    memory: int = 0  # bytes at most; 0: not known
    first: float | None = None  # seconds to the first tensor, of what has one before the last
    requests: int = 0


Samples = dict[str, list[Cost]]
Quantity = Callable[[Cost], float]


class Column(NamedTuple):
    title: str
    of: Callable[[Cost, int], float | None]  # of a cost, and the size of the object


CPU = Column("CPU s per GiB", lambda cost, size: cost.cpu * GIB / size)
RATE = Column("GiB/s", lambda cost, size: size / GIB / cost.seconds)
SECONDS = Column("seconds", lambda cost, size: cost.seconds)
CPU_SECONDS = Column("CPU seconds", lambda cost, size: cost.cpu)
MEMORY = Column("MiB of memory", lambda cost, size: cost.memory / MIB or None)
FIRST = Column("ms to the first tensor", lambda cost, size: None if cost.first is None else cost.first * 1e3)
REQUESTS = Column("requests", lambda cost, size: cost.requests)


def cells(costs: list[Cost], size: int, columns: list[Column]) -> list[list[float]]:
    """The samples of each column."""
    return [[value for cost in costs if (value := column.of(cost, size)) is not None] for column in columns]


def ratio(ours: list[Cost], theirs: list[Cost], of: Quantity) -> float:
    """Of each round, as the machine may have been slower in one than in another."""
    return statistics.median(of(mine) / of(other) for mine, other in zip(ours, theirs))


def is_own(name: str) -> bool:
    return name.startswith("gpurx")


def best_of_others(samples: Samples, of: Quantity) -> str | None:
    """Whose median is the least."""
    others = [name for name in samples if not is_own(name)]
    return min(others, key=lambda name: statistics.median(map(of, samples[name])), default=None)


class Limit(NamedTuple):
    """`ours` may have `limit` times what `rival` has; ANY: what the best of the others has, where there are others."""

    what: str
    of: Quantity
    ours: str
    rival: str
    limit: float

    def bar(self, scene: str, samples: Samples) -> Bar | None:
        rival = best_of_others(samples, self.of) if self.rival == ANY else self.rival
        if rival is None:
            return None
        value = ratio(samples[self.ours], samples[rival], self.of)
        return Bar(f"{scene}: {self.what}, {self.ours} / {rival}", value, "x", self.limit)


class Most(NamedTuple):
    """What `ours` may have, of all rounds, in `unit`s."""

    what: str
    of: Quantity
    ours: str
    unit: str
    limit: float
    over: Callable[[list[float]], float] = max

    def bar(self, scene: str, samples: Samples) -> Bar:
        value = self.over([self.of(cost) for cost in samples[self.ours]])
        return Bar(f"{scene}: {self.what} of {self.ours}", value, self.unit, self.limit)


ANY = "the best of the others"


def cpu(cost: Cost) -> float:
    return cost.cpu


def seconds(cost: Cost) -> float:
    return cost.seconds


def memory(cost: Cost) -> float:
    return cost.memory / MIB


def requests(cost: Cost) -> float:
    return cost.requests


# ---- the lab, where a second of CPU time is 10^9 instructions ----

BySize = dict[int, list[float]]  # instructions, by the object's size


class Slope(NamedTuple):
    """What a MiB costs is how the cost grows from one size to the next: without what a start costs."""

    each: list[float]  # instructions per MiB, by round
    start: float  # instructions

    @property
    def median(self) -> float:
        return statistics.median(self.each)


def slope(costs: BySize) -> Slope:
    small, large = sorted(costs)
    each = [(more - less) * MIB / (large - small) for less, more in zip(costs[small], costs[large])]
    return Slope(each, statistics.median(costs[small]) - statistics.median(each) * small / MIB)


def slopes_table(samples: dict[str, BySize]) -> Table:
    slopes = {name: slope(costs) for name, costs in samples.items()}
    rows = {name: [[each / 1e6 for each in one.each], one.start / 1e6] for name, one in slopes.items()}
    return Table("Into host memory over devmem, in the lab", ["millions of instructions per MiB", "millions to start"], rows,
                 drawn=1, emulated=True)


def slopes_bar(samples: dict[str, BySize]) -> Bar:
    ours, rival = "gpurx-fetch", "curl, then a copy"
    ratio_of_medians = slope(samples[ours]).median / slope(samples[rival]).median
    return Bar(f"devmem: instructions, {ours} / {rival}", ratio_of_medians, "x", 1.0)
