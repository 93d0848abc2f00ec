# SPDX-License-Identifier: Apache-2.0
"""Writers of checkpoints that are killed:  checkpoints.py. Each line of standard input, "WHERE ENDPOINT SEED EVENTS", is a
save in a forked process. Its number is printed, and its status when it has ended. EVENTS: it kills itself at this one of the
writes, fsync() and rename() of files, or 0: never."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import boto3  # noqa: F401  # once for all children
import torch
import torch.distributed.checkpoint as dcp

import gpurx.dcp


def state(seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    made = {f"layer.{i}": torch.randn((50, 41 + i), generator=random) for i in range(6)}
    return {"model": made, "step": seed, "half": torch.randn(100, generator=random).bfloat16()}


class Halves:
    """A file whose writes are two, with an event in between."""

    def __init__(self, file: Any, event: Callable[[], None]) -> None:
        self._file, self._event = file, event

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) < 1000:  # torch makes many
            return int(self._file.write(view))
        self._file.write(view[: len(view) // 2])
        self._file.flush()
        self._event()
        self._file.write(view[len(view) // 2 :])
        return len(view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Halves:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def die_after(events: int) -> None:
    left = [events]

    def event() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (event(), call(*arguments))[1]

    opens = pathlib.Path.open
    pathlib.Path.open = lambda path, mode: Halves(opens(path, mode), event)  # type: ignore[assignment,method-assign,misc,return-value]
    os.fsync = counted(os.fsync)
    pathlib.Path.replace = counted(pathlib.Path.replace)  # type: ignore[method-assign]


def save(where: str, endpoint: str, seed: int) -> None:
    warnings.simplefilter("ignore")
    options: dict[str, Any] = {"endpoint_url": endpoint} if endpoint != "-" else {}
    writer = gpurx.dcp.StorageWriter(where, part_size=3000, single_file_per_rank=False, flows=2, **options)
    dcp.save(state(seed), storage_writer=writer, no_dist=True)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        where, endpoint, seed, events = line.split()
        if not (child := os.fork()):
            if int(events):
                die_after(int(events))
            save(where, endpoint, int(seed))
            os._exit(0)
        print(child, flush=True)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
