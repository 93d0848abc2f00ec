# SPDX-License-Identifier: Apache-2.0
"""safe_open, async_safe_open: a model's files with the face that the safetensors package has for one on disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._locations import Locations
from ._model import Arrival, Model, Progress
from ._native import Session
from ._options import Options
from ._wait import Steps, run, run_in_loop

if TYPE_CHECKING:
    from typing_extensions import Unpack


class safe_open(Model):
    """Opens a safetensors file, on a server or on this machine, and brings of it what is asked for.

        with gpurx.safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = file.get_slice("embedding")[1000:2000]  # the bytes of these rows, and no others
            for name, tensor in file:                      # all, in the order of the file, as they arrive
                model.load(name, tensor)

    url: an http, https or s3 URL, a path or a file:// URL, of a file, or of the index (…safetensors.index.json) of a model in
    several; a directory of this machine or a prefix of S3, s3://BUCKET/PREFIX/, by its index if there is one; or a list of files.
    What is missing, or in two of them, is an Error that names it.

    framework: "pt", "np", "jax", "cupy", or "gpurx" for gpurx.Tensor. What it makes is the program's own: neither the file nor
    another call has the memory. Tensors that arrive together may share a block of some MiB, which lives as long as one does.

    memory_limit: bytes of tensors that iterating and prefetch() hold for the program at a time, together, with those under
    way. A tensor, or a plan, that is larger, or has no room beside what is held, is an Error before it is fetched. What the
    program has been given comes on top, and so do `size` bytes of a session, and `flows` times `chunk_size` of a file of this
    machine.

    progress: called in the thread that waits, with the bytes that have arrived and those of all tensors, some ten times a
    second and at the end of each wait.

    Checksums are compared once all of a file has come, however it was asked for: iterating ends with an Error before it gives
    the last tensors of a file that is damaged; the others of that file have been given by then. get_tensors() gives none.

    How servers are asked, by whom, and what session is opened where none is given: see gpurx.Options. A file of this machine
    needs no session. May be used by several threads; all that they and plans ask for comes through `flows`
    connections together, however many files there are.
    """

    def __init__(
        self,
        url: Locations,
        framework: str = "pt",
        device: Any = "cpu",
        *,
        memory_limit: int | None = None,
        progress: Progress | None = None,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(url, framework, device, memory_limit=memory_limit, progress=progress, session=session, **options)
        run(self._files.open())

    def _give(self, steps: Steps[Any]) -> Any:
        return run(steps)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Pairs of a name and its tensor, in the order of the files: what comes next is fetched meanwhile."""
        arrival = Arrival(self)
        try:
            while some := run(arrival.some()):
                while some:
                    entry, tensor = some.popleft()
                    made = self._convert(tensor)
                    del tensor
                    yield entry.name, made
                    del made
        finally:
            arrival.close()

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class async_safe_open(Model):
    """safe_open() for coroutines: what waits there is awaited here, and the event loop goes on meanwhile.

        async with gpurx.async_safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = await file.get_slice("embedding")[1000:2000]
            one, other = await asyncio.gather(file.get_tensor("a"), file.get_tensor("b"))
            async for name, tensor in file:
                model.load(name, tensor)

    Or `file = await gpurx.async_safe_open(…)`, and `file.close()` in the end. Cancelling a task ends what it has asked for, but
    what prefetch() has begun goes on. (Opening a session takes some 100 ms of the event loop: give one that is open.)
    """

    async def _open(self) -> async_safe_open:
        if not self._files.is_open:  # `async with await …` does it twice
            await run_in_loop(self._files.open())
        return self

    def __await__(self) -> Generator[Any, None, async_safe_open]:
        return self._open().__await__()

    async def __aenter__(self) -> async_safe_open:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _give(self, steps: Steps[Any]) -> Coroutine[Any, Any, Any]:
        return run_in_loop(steps)

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        arrival = Arrival(self)
        try:
            while some := await run_in_loop(arrival.some()):
                while some:
                    entry, tensor = some.popleft()
                    made = self._convert(tensor)
                    del tensor
                    yield entry.name, made
                    del made
        finally:
            arrival.close()


def load_as(framework: str, url: Locations, device: Any, options: dict[str, Any]) -> dict[str, Any]:
    """What load_file() of gpurx.torch, gpurx.numpy and gpurx.jax is."""
    with safe_open(url, framework, device, **options) as file:
        tensors: dict[str, Any] = file.get_tensors()
        return tensors
