# SPDX-License-Identifier: Apache-2.0
"""safe_open and async_safe_open: the files of a model, with the interface of the safetensors package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Generator, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from ._arguments import Device
from ._error import briefly
from ._locations import Locations
from ._native import Tensor
from ._options import Options
from ._progress import Shown
from ._reading import Arrival, Model, Slice, T
from ._session import Session
from ._wait import Steps, run, run_in_loop

if TYPE_CHECKING:
    import jax
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Unpack

# Names of frameworks: safetensors' and more.
_Torch = Literal["pt", "torch", "pytorch"]
_Numpy = Literal["np", "numpy"]
_Jax = Literal["jax", "flax"]


class _Opening(Options, total=False):
    """Keywords of safe_open() and async_safe_open()."""

    memory_limit: int | None
    progress: Shown
    session: Session | None


class safe_open(Model[T]):
    """Open the safetensors files of a model, on a server or on this machine, and fetch the requested tensors.

        with gpurx.safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = file.get_slice("embedding")[1000:2000]  # the bytes of these rows only
            for name, tensor in file:                      # all tensors, in the order of the file, as they arrive
                model.load(name, tensor)

    **url** is an http, https, s3, gs, az, hf or file URL, or a path. It names one of these:

    * a file;
    * the index of a model in several files (…safetensors.index.json);
    * a directory of this machine, a prefix of S3, Google Cloud Storage or Azure, s3://BUCKET/PREFIX/, gs://BUCKET/PREFIX/ or
      az://ACCOUNT/CONTAINER/PREFIX/, or a model of Hugging Face's hub, hf://ORG/MODEL@REVISION. gpurx uses its index, if it
      has one;
    * a list of files.

    Files of the hub are of one commit, that of the index.

    A tensor that is missing, or in two files, raises an Error with its name. The Error for a name that no file has is a
    KeyError, too, and proposes similar names.

    **framework** is "pt", "np", "jax", "cupy", or "gpurx" for gpurx.Tensor. The program owns the memory of the tensors:
    neither the file nor another call uses it. Tensors that arrive together may share a block of some MiB, which lives as
    long as any of them.

    **device** is the memory for the tensors: "cpu", "host" or None; "gpu:0", "cuda:0", 0 or a torch.device.

    **memory_limit** bounds the bytes that iteration and prefetch() hold together, including those under way. A tensor or
    plan above the limit, or without room beside the held bytes, raises an Error before it is fetched. These bytes are
    additional:

    * tensors that the program already has;
    * `size` bytes of a session;
    * `flows` times `chunk_size` for a file of this machine.

    **progress** is called in the waiting thread with the arrived bytes and the bytes of all tensors. It is called about ten
    times a second and at the end of each wait. None draws a line on the terminal, if stderr is one, for iteration and
    get_tensors() of more than two seconds; GPURX_PROGRESS=0 in the environment disables it. False draws nothing.

    **options**: see gpurx.Options. A file of this machine needs no session.

    Checksums are compared once all bytes of a file have arrived, through any calls. Iteration over a damaged file raises an
    Error before the last tensors of the file; it has returned the earlier ones by then. get_tensors() returns none.

    Each call blocks the calling thread, and Ctrl-C ends it. Several threads may use the object. All threads, plans and
    files share `flows` connections. A closed file raises ValueError.
    """

    @overload
    def __init__(
        self: safe_open[torch.Tensor], url: Locations, framework: _Torch = "pt", device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[NDArray[Any]], url: Locations, framework: _Numpy, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[jax.Array], url: Locations, framework: _Jax, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[Tensor], url: Locations, framework: Literal["gpurx"], device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: safe_open[Any], url: Locations, framework: str, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    def __init__(
        self,
        url: Locations,
        framework: str = "pt",
        device: Device = "cpu",
        *,
        memory_limit: int | None = None,
        progress: Shown = None,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(url, framework, device, memory_limit=memory_limit, progress=progress, session=session, **options)
        run(self._files.open())

    if TYPE_CHECKING:

        def get_tensor(self, name: str, into: Any = None) -> T: ...
        def get_slice(self, name: str) -> Slice[T]: ...
        def get_tensors(self, into: Mapping[str, Any] | None = None) -> dict[str, T]: ...

    def _give(self, steps: Steps[Any]) -> Any:
        return run(steps)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        """Yield pairs of a name and its tensor, in the order of the files. The next tensors arrive meanwhile."""
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

    def __enter__(self) -> safe_open[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class async_safe_open(Model[T]):
    """Open the files of a model for coroutines, as safe_open() does. Awaiting replaces waiting, and the event loop
    continues.

        async with gpurx.async_safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = await file.get_slice("embedding")[1000:2000]
            one, other = await asyncio.gather(file.get_tensor("a"), file.get_tensor("b"))
            async for name, tensor in file:
                model.load(name, tensor)

    `file = await gpurx.async_safe_open(…)` also works, with `file.close()` at the end. Cancelling a task ends its requests;
    prefetch() continues. Opening a session blocks the event loop for some 100 ms: pass an open session.
    """

    @overload
    def __init__(
        self: async_safe_open[torch.Tensor], url: Locations, framework: _Torch = "pt", device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: async_safe_open[NDArray[Any]], url: Locations, framework: _Numpy, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: async_safe_open[jax.Array], url: Locations, framework: _Jax, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: async_safe_open[Tensor], url: Locations, framework: Literal["gpurx"], device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    @overload
    def __init__(
        self: async_safe_open[Any], url: Locations, framework: str, device: Device = "cpu", **options: Unpack[_Opening]
    ) -> None: ...
    def __init__(
        self,
        url: Locations,
        framework: str = "pt",
        device: Device = "cpu",
        *,
        memory_limit: int | None = None,
        progress: Shown = None,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(url, framework, device, memory_limit=memory_limit, progress=progress, session=session, **options)

    if TYPE_CHECKING:

        def get_tensor(self, name: str, into: Any = None) -> Coroutine[Any, Any, T]: ...
        def get_slice(self, name: str) -> Slice[Coroutine[Any, Any, T]]: ...
        def get_tensors(self, into: Mapping[str, Any] | None = None) -> Coroutine[Any, Any, dict[str, T]]: ...

    async def _open(self) -> async_safe_open[T]:
        if not self._files.is_open:  # `async with await …` does it twice
            await run_in_loop(self._files.open())
        return self

    def __await__(self) -> Generator[Any, None, async_safe_open[T]]:
        return self._open().__await__()

    async def __aenter__(self) -> async_safe_open[T]:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _give(self, steps: Steps[Any]) -> Coroutine[Any, Any, Any]:
        return run_in_loop(steps)

    async def __aiter__(self) -> AsyncIterator[tuple[str, T]]:
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


@briefly
def load_as(
    framework: str, url: Locations, device: Device, options: dict[str, Any], into: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Implement load_file() of gpurx.torch, gpurx.numpy and gpurx.jax."""
    with safe_open(url, framework, device, **options) as file:
        tensors: dict[str, Any] = file.get_tensors(into)
        return tensors
