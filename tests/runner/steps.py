# SPDX-License-Identifier: Apache-2.0
"""The table of test steps, and which of them may run side by side. No step is started here."""

from __future__ import annotations

from dataclasses import dataclass

# In minutes from a run's begin: when the steps are to be over, and when what still runs is ended. CI has 90.
LAST_END = 80
RUN_END = 85
LAST_ONCE_END = 75
LAST_ONCE_START = 40

# A guest of the lab has this much memory, and one of the debug kernel the other (lab.sh --help).
GUEST_GIB = 2
DEBUG_GUEST_GIB = 4


@dataclass(frozen=True)
class Step:
    name: str
    minutes: int
    kind: str
    kernels: tuple[str, ...]
    command: str
    quick: bool

    @property
    def gib(self) -> int:
        return DEBUG_GUEST_GIB if "debug" in self.kernels else GUEST_GIB


def read_steps(text: str) -> list[Step]:
    """The steps of tests/steps, in its order."""
    steps: list[Step] = []
    quick = True
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            quick = False
            continue
        name, minutes, kind, kernels, command = (field.strip() for field in line.split("|", 4))
        if kind not in ("check", "tests", "once", "named"):
            raise ValueError(f"tests/steps: {name}: no such kind: {kind}")
        steps.append(Step(name, int(minutes), kind, tuple(kernels.split()), command, quick))
    return steps


def choose(steps: list[Step], *, quick: bool, names: list[str]) -> list[Step]:
    """Those that were asked for: without a name all but those that run by name only."""
    if names:
        return [step for step in steps if step.name in names]
    return [step for step in steps if step.kind != "named" and (step.quick or not quick)]


def is_too_late(step: Step, lasted: float, limit: float) -> bool:
    """Whether a run of all steps, which has lasted so long (in minutes), does without this one, which may take as long as its
    limit. All that is once takes longer than the rest: it begins early, or if it is over in time. The rest takes half of its
    limit on most machines. A run is to have an end on a slow machine too."""
    if step.kind != "once":
        return lasted + step.minutes / 2 > LAST_END
    return lasted > LAST_ONCE_START and lasted + limit > LAST_ONCE_END


def may_start(step: Step, running: list[Step], *, guests: int, gib: float) -> bool:
    """Whether there is room for one more beside those that run; for one alone there always is."""
    if not running:
        return True
    if not step.kernels or not all(other.kernels for other in running):
        return False
    return len(running) < guests and step.gib + sum(other.gib for other in running) <= gib
