# SPDX-License-Identifier: GPL-2.0-only
"""What model.py and model_shared.py have in common: all states that steps of several threads lead to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

State = TypeVar("State")
PageState = TypeVar("PageState", bound="Page")


class Violation(Exception):
    """A rule that all this is for does not hold."""


class Page(ABC):
    """A page, the references on it, and the sockets that receive it: what is more than that is a model's own."""

    refs: int
    pool: bool
    sockets: tuple[Any, Any]

    def having(self: PageState, number: int, **changes: object) -> PageState:
        """With these changes of one socket."""
        sockets = list(self.sockets)
        sockets[number] = replace(sockets[number], **changes)
        return replace(self, sockets=tuple(sockets))

    @abstractmethod
    def check_free(self) -> None:
        """Nobody may have it when its last reference is put."""


def put(state: PageState, count: int = 1) -> PageState:
    """Put references; without one the page goes back to its pool."""
    if state.refs < count:
        raise Violation("a reference is put that nobody has")
    state = replace(state, refs=state.refs - count)
    if state.refs == 0:
        state.check_free()
        state = replace(state, pool=True)
    return state


def explore(start: State, steps: Callable[[State], Iterable[State]], check_end: Callable[[State], None]) -> int:
    """All states there are; returns how many. `check_end` sees those in which nothing more can happen."""
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        following = list(steps(state))
        if not following:
            check_end(state)
        for one in following:
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen)
