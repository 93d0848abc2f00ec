# SPDX-License-Identifier: Apache-2.0
"""Waiting for what goes on in the library's threads: in a thread of Python, or in an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from ._native import Operation


def wait(operation: Operation) -> Any:
    """Its result. Ctrl-C ends the operation, and then raises KeyboardInterrupt."""
    try:
        operation.wait()
    except BaseException:
        operation.cancel()
        operation.wait()
        raise
    return operation.result()


async def wait_in_loop(operation: Operation) -> Any:
    """The same for a coroutine. Cancelling the task ends the operation."""
    loop = asyncio.get_running_loop()
    is_over: asyncio.Future[None] = loop.create_future()
    descriptor = operation.fileno()

    def note() -> None:
        loop.remove_reader(descriptor)
        if not is_over.done():
            is_over.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        await is_over
    except BaseException:
        loop.remove_reader(descriptor)
        operation.cancel()
        operation.wait()
        raise
    return operation.result()
