# SPDX-License-Identifier: Apache-2.0
"""Waiting for operations in the library's threads: in a thread of Python, or in an event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from ._error import EXPLAINED, briefly, outside
from ._native import Operation


class Waiting(NamedTuple):
    """Wait for the end of an operation.

    * tell: called about ten times a second meanwhile.
    * shared: others wait for the operation too. It continues when this waiter is interrupted.
    """

    operation: Operation
    tell: Callable[[], object] | None = None
    shared: bool = False


T = TypeVar("T")
# Operations to wait for in sequence, and their result: the same for threads and for coroutines.
Steps = Generator[Waiting, None, T]


def result_of(operation: Operation, tell: Callable[[], object] | None = None) -> Steps[Any]:
    """Wait for an operation and return its result. `tell` is called once more at the end."""
    yield Waiting(operation, tell)
    result = operation.result()
    if tell is not None:
        tell()
    return result


def results_of(
    starts: Sequence[Callable[[], Operation]], at_a_time: int, tell: Callable[[], object] | None = None
) -> Steps[list[Any]]:
    """Start operations, some at a time, and return their results. A failure cancels the others."""
    started: list[Operation] = []
    results: list[Any] = []
    try:
        while len(results) < len(starts):
            for start in starts[len(started) : len(results) + at_a_time]:
                started.append(start())
            started[len(results)].hurry()
            results.append((yield from result_of(started[len(results)], tell)))
    except BaseException:
        for operation in reversed(started[len(results) :]):  # the last ones wait for connections of the first
            operation.cancel()
        raise
    return results


@briefly
def run(steps: Steps[T]) -> T:
    """Run steps in the calling thread, which waits.

    Ctrl-C ends the current operation, and then raises KeyboardInterrupt.
    """
    try:
        waiting = next(steps)
        while True:
            try:
                _wait_for(waiting)
            except BaseException as error:
                waiting = steps.throw(error)
            else:
                waiting = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_in_loop(steps: Steps[T]) -> T:
    """Run steps in a coroutine; the event loop continues.

    Cancelling the task ends the current operation.
    """
    try:
        return await _run_in_loop(steps)
    except EXPLAINED as error:
        raise error.with_traceback(outside(error.__traceback__))


async def _run_in_loop(steps: Steps[T]) -> T:
    try:
        waiting = next(steps)
        while True:
            try:
                await _wait_in_loop_for(waiting)
            except BaseException as error:
                waiting = steps.throw(error)
            else:
                waiting = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def wait(operation: Operation) -> Any:
    """Wait for the result of an operation in the calling thread."""
    return run(result_of(operation))


async def wait_in_loop(operation: Operation) -> Any:
    """Wait for the result of an operation in a coroutine."""
    return await run_in_loop(result_of(operation))


# Seconds between two calls of `tell`.
_TELLING = 0.1
_FOR_EVER = -1


def _give_up(waiting: Waiting) -> None:
    if not waiting.shared:
        waiting.operation.cancel()
        waiting.operation.wait()


def _wait_for(waiting: Waiting) -> None:
    operation, tell, _ = waiting
    try:
        while not operation.wait(_TELLING if tell else _FOR_EVER):
            if tell:
                tell()
    except BaseException:
        _give_up(waiting)
        raise


async def _wait_in_loop_for(waiting: Waiting) -> None:
    operation, tell, _ = waiting
    loop = asyncio.get_running_loop()
    is_over: asyncio.Future[None] = loop.create_future()
    # A loop has one reader for a descriptor, and several tasks may wait.
    descriptor = os.dup(operation.fileno())

    def note() -> None:
        loop.remove_reader(descriptor)
        if not is_over.done():
            is_over.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        while tell is not None and not is_over.done():
            await asyncio.wait([is_over], timeout=_TELLING)
            tell()
        await is_over
    except BaseException:
        loop.remove_reader(descriptor)
        _give_up(waiting)
        raise
    finally:
        os.close(descriptor)
