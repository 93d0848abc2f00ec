# SPDX-License-Identifier: Apache-2.0
"""A line of progress on a terminal, for loads of all tensors that take longer than two seconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

from ._convert import size_text

Progress = Callable[[int, int], object]
# None: a line on a terminal. False: nothing.
Shown = Progress | Literal[False] | None

_DISABLES = "GPURX_PROGRESS"  # set to 0
_SECONDS = 2.0  # before the line appears
_BETWEEN = 0.1
_WIDTH = 20


class Line:
    """Draw the progress of a load. Call it with the arrived and the total bytes, and close it at the end."""

    def __init__(self, name: str, to: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name.rstrip("/").rpartition("/")[2][:24]
        self._to = to
        self._clock = clock
        self._begin = clock()
        self._drawn_at: float | None = None
        self._last = (0, 0)

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        self._last = (done, total)
        if now - self._begin >= _SECONDS and (self._drawn_at is None or now - self._drawn_at >= _BETWEEN):
            self._draw(now)

    def close(self) -> None:
        """Draw the last state, if the line is there, and leave it."""
        if self._drawn_at is not None:
            self._draw(self._clock())
            self._to.write("\n")
            self._to.flush()
            self._drawn_at = None

    def _draw(self, now: float) -> None:
        self._drawn_at = now
        self._to.write(f"\r{self._text(now - self._begin)}\x1b[K")
        self._to.flush()

    def _text(self, seconds: float) -> str:
        done, total = self._last
        part = done / total if total else 1.0
        bar = "#" * round(part * _WIDTH)
        rate = done / seconds if seconds > 0 else 0.0
        rest = f"{_time_text((total - done) / rate)} left" if done < total and rate else f"{_time_text(seconds)}"
        sizes = f"{size_text(done)} of {size_text(total)}"
        return f"{self._name} [{bar:<{_WIDTH}}] {part:4.0%} {sizes}, {size_text(int(rate))}/s, {rest}"


def _time_text(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


@contextmanager
def showing(progress: Shown, name: str) -> Iterator[Progress | None]:
    """Provide the function to call with the progress of a load, or None if nobody wants it."""
    is_wanted = progress is None and os.environ.get(_DISABLES) != "0"
    if progress is not None or not is_wanted or not sys.stderr or not sys.stderr.isatty():
        yield progress or None
        return
    line = Line(name, sys.stderr)
    try:
        yield line
    finally:
        line.close()
