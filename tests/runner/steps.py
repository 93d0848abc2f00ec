# SPDX-License-Identifier: Apache-2.0
"""The table of test steps, and which of them may run side by side. No step is started here."""

from __future__ import annotations

from dataclasses import dataclass

# A guest of the lab has this much memory, and one of the debug kernel the other (lab.sh --help).
GUEST_GIB = 2
DEBUG_GUEST_GIB = 4

# quick runs the first, ./run test the first two, full the first three; the last by name only.
TIERS = ("style", "default", "full", "named")


@dataclass(frozen=True)
class Step:
    name: str
    tier: str
    kind: str  # check: passes as a whole; tests: counted from its log
    minutes: int
    cores: str  # 1 or all
    kernels: tuple[str, ...]
    inputs: tuple[str, ...]  # pathspecs of git, and perhaps +comments
    command: str

    @property
    def gib(self) -> int:
        return (DEBUG_GUEST_GIB if "debug" in self.kernels else GUEST_GIB) if self.kernels else 0


@dataclass(frozen=True)
class Table:
    steps: list[Step]
    groups: dict[str, tuple[str, ...]]


def expand(words: list[str], groups: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Pathspecs, and in the place of each @GROUP those of the group."""
    found: list[str] = []
    for word in words:
        if word.startswith("@") and word not in groups:
            raise ValueError(f"tests/steps: no such group: {word}")
        found += groups.get(word, (word,))
    return tuple(dict.fromkeys(found))


def read_table(text: str) -> Table:
    """The steps of tests/steps, in its order. A line that begins with @ names a group of inputs."""
    steps: list[Step] = []
    groups: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        if line.startswith("@"):
            name, *words = line.split()
            groups[name] = expand(words, groups)
        elif line.strip() and not line.startswith("#"):
            name, tier, kind, minutes, cores, kernels, inputs, command = (field.strip() for field in line.split("|", 7))
            if tier not in TIERS or kind not in ("check", "tests") or cores not in ("1", "all"):
                raise ValueError(f"tests/steps: {name}: no such tier, kind or cores: {tier} {kind} {cores}")
            steps.append(Step(name, tier, kind, int(minutes), cores, tuple(kernels.split()),
                              expand(inputs.split(), groups), command))  # fmt: skip
    return Table(steps, groups)


def of_tiers(steps: list[Step], last: str) -> list[Step]:
    """The steps of the tiers up to this one."""
    return [step for step in steps if TIERS.index(step.tier) <= TIERS.index(last)]


def may_start(step: Step, running: list[Step], *, cores: int, gib: float) -> bool:
    """Whether there is room for one more beside those that run; for one alone there always is."""
    if not running:
        return True
    if "all" in (step.cores, *(other.cores for other in running)) or len(running) >= cores:
        return False
    return step.gib + sum(other.gib for other in running) <= gib
