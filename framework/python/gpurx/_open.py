# SPDX-License-Identifier: Apache-2.0
"""safe_open, async_safe_open: a model's files with the face that the safetensors package has for one on disk. What there is to
wait for are steps, which the one waits for in a thread, and the other in an event loop."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._convert import converter
from ._error import Error
from ._files import Entry, Files, groups
from ._locations import Locations
from ._native import Operation, Session, Tensor
from ._options import Options, settings_of
from ._slices import Part, part_of
from ._wait import Steps, Waiting, result_of, run, run_in_loop

if TYPE_CHECKING:
    from typing_extensions import Unpack

Progress = Callable[[int, int], object]
Plan = Iterable["str | tuple[str, Any]"]
Piece = tuple[Entry, Part]

# Bytes that are fetched at once: first, so that the first tensor is soon there, and later on.
_FIRST = 4 << 20
_MOST = 64 << 20


class Slice:
    """A part of a tensor that is not fetched yet: `part[a:b, :, 3]` fetches these elements, and of async_safe_open(),
    `await part[a:b, :, 3]`.
    """

    def __init__(self, model: Model, entry: Entry) -> None:
        self._model = model
        self._entry = entry

    def get_shape(self) -> list[int]:
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Returns the element type as the format spells it: "F32", "BF16"."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Any:
        """Takes integers, slices with positive steps, and an ellipsis, as numpy does."""
        return self._model._give(self._model._part(self._entry, part_of(self._entry.shape, index)))

    def __repr__(self) -> str:
        return f"<gpurx slice of {self._entry.name!r}: {self._entry.dtype} {self.get_shape()}>"


class _Fetched(NamedTuple):
    """What prefetch() has begun, and nobody has asked for yet."""

    operation: Operation
    position: int | None  # among the operation's results; None: it is the result
    nbytes: int


class Model:
    """Common part of safe_open() and async_safe_open()."""

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
        if memory_limit is not None and memory_limit <= 0:
            raise ValueError(f"memory_limit is a number of bytes, not {memory_limit}")
        self._convert = converter(framework)
        self._limit = memory_limit
        self._progress = progress
        self._files = Files(url, settings_of(device, options), session)
        # Of what memory_limit is for.
        self._lock = Lock()
        self._fetched_before: dict[Any, _Fetched] = {}
        self._results: dict[Operation, list[Any]] = {}
        self._held = 0  # bytes: of what was fetched before, and of iterations

    def _give(self, steps: Steps[Any]) -> Any:
        """What these lead to, or what is to be awaited for it."""
        raise NotImplementedError

    # ---- what there is ----

    def keys(self) -> list[str]:
        """Returns the names, sorted."""
        self._files.check_was_opened()
        return sorted(self._files.entries)

    def offset_keys(self) -> list[str]:
        """Returns the names, in the order of the files."""
        self._files.check_was_opened()
        return list(self._files.entries)

    def metadata(self) -> dict[str, str] | None:
        """Returns the metadata of the files, or None if they have none."""
        self._files.check_was_opened()
        return self._files.metadata or None

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        self._files.check_was_opened()
        return self._files.nbytes

    def __len__(self) -> int:
        self._files.check_was_opened()
        return len(self._files.entries)

    def __contains__(self, name: object) -> bool:
        self._files.check_was_opened()
        return name in self._files.entries

    # ---- fetching ----

    def get_tensor(self, name: str) -> Any:
        return self._give(self._tensor(name))

    def get_slice(self, name: str) -> Slice:
        """Returns a Slice, and fetches nothing yet."""
        return Slice(self, self._entry(name))

    def get_tensors(self) -> Any:
        """Returns all tensors by their names."""
        return self._give(self._tensors())

    def prefetch(self, plan: Plan) -> None:
        """Begins to fetch for later calls of get_tensor() and get_slice(): names, and pairs of a name and an index. Returns at
        once. Each result is kept until one call takes it. All arrive in the order of the files, through `flows` connections together. A
        call that waits meanwhile goes first, in the plan or not.
        """
        self._files.check_open()
        names: list[Entry] = []
        parts: list[Piece] = []
        for one in plan:
            if isinstance(one, str):
                names.append(self._entry(one))
            else:
                entry = self._entry(one[0])
                parts.append((entry, part_of(entry.shape, one[1])))
        with self._lock:
            wanted = [one for one in dict.fromkeys(names) if one.name not in self._fetched_before]
            pieces = [one for one in dict.fromkeys(parts) if (one[0].name, one[1]) not in self._fetched_before]
            size = sum(one.nbytes for one in wanted) + sum(map(_size_of, pieces))
            self._check_fits(size, "the plan", self._held)
            for each in _in_order(wanted, pieces):
                if isinstance(each, list):
                    operation = self._start(each, can_wait=True)
                    for position, entry in enumerate(each):
                        self._fetched_before[entry.name] = _Fetched(operation, position, entry.nbytes)
                else:
                    operation = self._start_part(*each, can_wait=True)
                    self._fetched_before[each[0].name, each[1]] = _Fetched(operation, None, _size_of(each))
            self._held += size

    def close(self) -> None:
        """Closes the files. Fetched tensors stay."""
        with self._lock:
            # The last ones first: they wait for the connections that the first ones would set free.
            for one in reversed(self._fetched_before.values()):
                one.operation.cancel()
            self._fetched_before.clear()
            self._results.clear()
        self._files.close()

    def __repr__(self) -> str:
        return f"<gpurx.{type(self).__name__} {self._files.name}: {len(self._files.entries)} tensors>"

    # ---- steps ----

    def _tensor(self, name: str) -> Steps[Any]:
        entry = self._entry(name)
        if (fetched := self._pop(name)) is not None:
            return self._convert((yield from self._take(name, fetched)))
        self._check_fits(entry.nbytes, f"tensor '{name}'")
        (tensor,) = yield from self._result_of(self._start([entry]))
        return self._convert(tensor)

    def _tensors(self) -> Steps[dict[str, Any]]:
        self._files.check_open()
        self._check_fits(self.nbytes, "all of it")
        made: dict[str, Any] = {}
        for group in groups(iter(self._files.entries.values()), 1 << 62, 1 << 62):
            tensors = yield from self._result_of(self._start(group))
            for entry, tensor in zip(group, tensors, strict=True):
                made[entry.name] = self._convert(tensor)
        return made

    def _part(self, entry: Entry, part: Part) -> Steps[Any]:
        if (fetched := self._pop((entry.name, part))) is not None:
            return self._convert((yield from self._take((entry.name, part), fetched)))
        self._check_fits(_size_of((entry, part)), f"the slice of '{entry.name}'")
        return self._convert((yield from self._result_of(self._start_part(entry, part))))

    def _pop(self, key: Any) -> _Fetched | None:
        """Whoever asks first has it; for others it is fetched once more."""
        with self._lock:
            return self._fetched_before.pop(key, None)

    def _take(self, key: Any, fetched: _Fetched) -> Steps[Tensor]:
        """What was fetched before. The last of an operation takes it along; who gives up leaves it to be asked for again."""
        operation, position, nbytes = fetched
        operation.hurry()
        try:
            yield Waiting(operation, self._teller(), shared=True)
        except BaseException:
            with self._lock:
                if self._files.is_open and self._fetched_before.setdefault(key, fetched) is not fetched:
                    self._held -= nbytes  # it was fetched once more meanwhile
            raise
        with self._lock:
            self._held -= nbytes
            if position is None:
                alone: Tensor = operation.result()
                return alone
            if operation not in self._results:
                self._results[operation] = operation.result()
            results = self._results[operation]
            tensor: Tensor = results[position]
            results[position] = None
            if all(one is None for one in results):
                del self._results[operation]
        return tensor

    # ---- operations ----

    def _start(self, group: list[Entry], can_wait: bool = False) -> Operation:
        return self._files.file(group[0].file).fetch([one.number for one in group], can_wait=can_wait)

    def _start_part(self, entry: Entry, part: Part, can_wait: bool = False) -> Operation:
        return self._files.file(entry.file).fetch_part(entry.number, part.extents, part.shape, can_wait)

    def _result_of(self, operation: Operation) -> Steps[Any]:
        return result_of(operation, self._teller())

    def _teller(self) -> Callable[[], object] | None:
        if (progress := self._progress) is None:
            return None
        return lambda: progress(self._files.fetched(), self._files.nbytes)

    # ---- errors ----

    def _entry(self, name: str) -> Entry:
        self._files.check_open()
        if (entry := self._files.entries.get(name)) is not None:
            return entry
        advice = f"it is not among those of {self._files.name}"
        raise Error(f"find tensor '{name}': {advice}", 22, "system", "find", f"tensor '{name}'", "", advice)

    def _reserve(self, size: int, what: str) -> None:
        with self._lock:
            self._check_fits(size, what, self._held)
            self._held += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def _check_fits(self, size: int, what: str, held: int = 0) -> None:
        if self._limit is None or size + held <= self._limit:
            return
        advice = f"{what} has {size} bytes, and memory_limit is {self._limit}; take slices, or raise it"
        if size <= self._limit:
            advice = (
                f"{what} has {size} bytes, and of memory_limit, {self._limit}, prefetch() and iterating have {held}; take what "
                "was prefetched before, or raise it"
            )
        raise Error(f"fetch {self._files.name}: {advice}", 12, "system", "fetch", self._files.name, "", advice)


class Arrival:
    """All tensors of a model, some at a time, in the order of the files: the next are fetched while these are used."""

    def __init__(self, model: Model) -> None:
        model._files.check_open()
        self._model = model
        self._limit = model._limit
        most = min(_MOST, max(0, self._limit - model._held) // 2) if self._limit else _MOST
        self._rest: Iterator[list[Entry]] = groups(iter(model._files.entries.values()), min(_FIRST, most), most)
        self._given = 0  # bytes: of those that are being used
        self._coming = 0  # of those under way
        self._group = next(self._rest, None)
        self._operation = self._start(self._group) if self._group else None

    def some(self) -> Steps[deque[tuple[Entry, Tensor]]]:
        """The next ones; none: these were all."""
        self._model._give_back(self._given)
        self._given = 0
        group = self._group
        if group is None:
            return deque()
        # What was too much beside those before.
        operation = self._operation or self._start(group)
        self._operation = None
        tensors: list[Tensor] = yield from self._model._result_of(operation)
        self._given, self._coming = self._coming, 0
        self._group = next(self._rest, None)
        if self._group and self._fits_too(self._group):
            self._operation = self._start(self._group)
        return deque(zip(group, tensors, strict=True))

    def close(self) -> None:
        if self._operation is not None:
            self._operation.cancel()
        self._model._give_back(self._given + self._coming)
        self._given = self._coming = 0

    def _start(self, group: list[Entry]) -> Operation:
        size = sum(one.nbytes for one in group)
        self._model._reserve(size, f"tensor '{group[0].name}'")
        self._coming = size
        return self._model._start(group)

    def _fits_too(self, group: list[Entry]) -> bool:
        return self._limit is None or sum(entry.nbytes for entry in group) + self._model._held <= self._limit


def _in_order(wanted: list[Entry], pieces: list[Piece]) -> Iterator[list[Entry] | Piece]:
    """What is to be fetched at once, of one file after the other."""
    whole = groups(iter(sorted(wanted, key=_place_of)), _FIRST, _MOST)
    parts = sorted(pieces, key=lambda one: _place_of(one[0]))
    return heapq.merge(whole, parts, key=lambda one: one[0].file)


def _place_of(entry: Entry) -> tuple[int, int]:
    return entry.file, entry.number


def _size_of(what: Piece) -> int:
    entry, part = what
    elements = math.prod(entry.shape)
    return entry.nbytes * math.prod(part.shape) // elements if elements else 0


class safe_open(Model):
    """Opens a safetensors file, on a server or on this machine, and fetches the requested tensors.

        with gpurx.safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = file.get_slice("embedding")[1000:2000]  # the bytes of these rows, and no others
            for name, tensor in file:                      # all, in the order of the file, as they arrive
                model.load(name, tensor)

    url: an http, https or s3 URL, a path or a file:// URL, of a file, or of the index (…safetensors.index.json) of a model in
    several files; a directory of this machine or an S3 prefix, s3://BUCKET/PREFIX/, by its index if it has one; or a list of
    files. A tensor that is missing, or in two files, raises Error with its name.

    framework: "pt", "np", "jax", "cupy", or "gpurx" for gpurx.Tensor. The returned tensors own their memory. Tensors that arrive
    together may share a block of some MiB, which lives as long as one of them.

    memory_limit: bytes of tensors that iteration and prefetch() hold at one time, with those under way. A tensor or plan that
    is larger, or has no room, raises Error before it is fetched. Tensors that the program holds come on top, as do `size`
    bytes of a session, and `flows` times `chunk_size` of a file of this machine.

    progress: called in the waiting thread with the arrived bytes and those of all tensors, some ten times a second and at the
    end of each wait.

    Checksums are compared once all bytes of a file have arrived. Iteration over a damaged file raises Error before its last
    tensors; earlier tensors of the file have been returned by then. get_tensors() returns none.

    gpurx.Options has the keywords for requests, identity and the session. A file of this machine needs no session.
    Thread-safe; all threads and plans share `flows` connections, for all files together.
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
        """Yields pairs of a name and its tensor, in the order of the files, and fetches the next ones meanwhile."""
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
    """safe_open() for coroutines: the event loop runs while an operation waits.

        async with gpurx.async_safe_open("http://10.77.0.2/model.safetensors", "pt", device="cuda:0") as file:
            rows = await file.get_slice("embedding")[1000:2000]
            one, other = await asyncio.gather(file.get_tensor("a"), file.get_tensor("b"))
            async for name, tensor in file:
                model.load(name, tensor)

    Or `file = await gpurx.async_safe_open(…)`, and `file.close()` at the end. Cancelling a task ends its requests; those of
    prefetch() continue. Opening a session blocks the event loop for some 100 ms: pass an open one.
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
    """Implements load_file() of gpurx.torch, gpurx.numpy and gpurx.jax."""
    with safe_open(url, framework, device, **options) as file:
        tensors: dict[str, Any] = file.get_tensors()
        return tensors
