# SPDX-License-Identifier: Apache-2.0
"""Reading of the files of a model: the common part of safe_open and async_safe_open.

Operations are steps. safe_open waits for each step in a thread, async_safe_open in an event loop.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ._arguments import Device, session_of
from ._convert import converter
from ._error import Error, no_tensor
from ._files import Entry, Files, groups
from ._into import filled, places_in
from ._locations import Locations
from ._native import Operation, Tensor
from ._options import Options, settings_of
from ._progress import Progress, Shown, showing
from ._session import Session
from ._slices import Part, part_of
from ._wait import Steps, Waiting, result_of, results_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Plan = Iterable["str | tuple[str, Any]"]
Piece = tuple[Entry, Part]
T = TypeVar("T")  # a tensor of the framework
R = TypeVar("R")  # such a tensor, or an awaitable of it

# Bytes to fetch at once: at first, for an early first tensor, and later.
_FIRST = 4 << 20
_MOST = 64 << 20


class Slice(Generic[R]):
    """Select a part of a tensor that is not fetched yet.

    `part[a:b, :, 3]` fetches these elements. A Slice of async_safe_open() takes `await part[a:b, :, 3]`.
    """

    def __init__(self, model: Model[Any], entry: Entry) -> None:
        self._model = model
        self._entry = entry

    def get_shape(self) -> list[int]:
        """Return the shape of the whole tensor."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return the element type as the format spells it: "F32", "BF16"."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> R:
        """Fetch the elements of an index: integers, slices with positive steps and an ellipsis, as in numpy.

        Raises IndexError or TypeError for another index, and ValueError for a negative step.
        """
        result: R = self._model._give(self._model._part(self._entry, part_of(self._entry.shape, index)))
        return result

    def __repr__(self) -> str:
        return f"<gpurx slice of {self._entry.name!r}: {self._entry.dtype} {self.get_shape()}>"


class _Fetched(NamedTuple):
    """Result of prefetch() that no call has taken yet."""

    operation: Operation
    position: int | None  # among the operation's results; None: it is the result
    nbytes: int


class Model(Generic[T]):
    """Common part of safe_open() and async_safe_open()."""

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
        if memory_limit is not None and memory_limit <= 0:
            raise ValueError(f"memory_limit must be a positive number of bytes, not {memory_limit}")
        self._convert = converter(framework)
        self._limit = memory_limit
        self._progress = progress
        self._files = Files(url, settings_of(device, options), session_of(session))
        self._lock = Lock()  # guards the members below, which memory_limit bounds
        self._fetched_before: dict[Any, _Fetched] = {}
        self._results: dict[Operation, list[Any]] = {}
        self._held = 0  # bytes of prefetch() and of iterations

    def _give(self, steps: Steps[Any]) -> Any:
        """Return the result of the steps, or an awaitable of it."""
        raise NotImplementedError

    # ---- contents ----

    def keys(self) -> list[str]:
        """Return the names of the tensors, sorted."""
        self._files.check_was_opened()
        return sorted(self._files.entries)

    def offset_keys(self) -> list[str]:
        """Return the names of the tensors, in the order of the files."""
        self._files.check_was_opened()
        return list(self._files.entries)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata of the files, or None if they have none."""
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

    def get_tensor(self, name: str, into: Any = None) -> Any:
        """Fetch one tensor. Raises Error, which is a KeyError, too, if no file has it. `into`: its place, as for get_tensors()."""
        if into is not None:
            return self._give(self._tensor_into(name, into))
        return self._give(self._tensor(name))

    def get_slice(self, name: str) -> Slice[Any]:
        """Return a Slice of the tensor. Fetches nothing."""
        return Slice(self, self._entry(name))

    def get_tensors(self, into: Mapping[str, Any] | None = None) -> Any:
        """Fetch all tensors, and return them by name.

        * into: host memory of the program for each tensor, by name: contiguous CPU tensors of torch, arrays of numpy, or
          others with DLPack, of the tensor's type and shape; or bytes of its size in a writable buffer. The bytes arrive
          there, without a copy in between, and the result has these objects. The memory must not be used meanwhile.
          After an error its content is undefined.

        Raises ValueError or TypeError if `into` lacks a tensor, has another one, or a place does not fit: before a byte
        of a tensor is fetched.
        """
        return self._give(self._tensors() if into is None else self._tensors_into(into))

    def prefetch(self, plan: Plan) -> None:
        """Start to fetch for later calls of get_tensor() and get_slice(), and return at once.

        * plan: names of tensors, and pairs of a name and an index.

        One later call takes each result. All results arrive in the order of the files, through `flows` connections
        together. A waiting call has priority, whether the plan has its tensor or not. Raises Error if the plan does not fit
        `memory_limit`.
        """
        self._files.check_open()
        names: list[Entry] = []
        parts: list[Piece] = []
        for one in plan:
            name, index = (one, ...) if isinstance(one, str) else one
            entry = self._entry(name)
            if (part := part_of(entry.shape, index)) == part_of(entry.shape, ...):
                names.append(entry)
            else:
                parts.append((entry, part))
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
        """Close the files and cancel prefetch(). Tensors that the program has stay valid."""
        with self._lock:
            # The last first: they wait for connections that the first ones would free.
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
        self._check_fits(self.nbytes, "the model")
        all_files = [*groups(iter(self._files.entries.values()), 1 << 62, 1 << 62)]
        starts = [partial(self._start, entries, can_wait=True) for entries in all_files]
        with self._telling() as tell:
            results = yield from results_of(starts, len(starts), tell)
        made: dict[str, Any] = {}
        for entries, tensors in zip(all_files, results, strict=True):
            made |= {entry.name: self._convert(tensor) for entry, tensor in zip(entries, tensors, strict=True)}
        return made

    def _tensor_into(self, name: str, into: Any) -> Steps[Any]:
        entry = self._entry(name)
        yield from self._fill([entry], {name: into})
        return into

    def _tensors_into(self, into: Mapping[str, Any]) -> Steps[dict[str, Any]]:
        self._files.check_open()
        yield from self._fill(list(self._files.entries.values()), into)
        return {name: into[name] for name in self._files.entries}

    def _fill(self, entries: list[Entry], into: Mapping[str, Any]) -> Steps[None]:
        if self._files.is_for_gpu:
            raise ValueError("into takes memory of the host, and `device` is a GPU: open the files with device='cpu'")
        places = places_in(into, entries, self._files.name)

        def start(group: list[Entry]) -> Operation:
            there = [(entry.number, places[entry.name].address) for entry in group]
            return self._files.file(group[0].file).fetch_into(there, can_wait=True)

        with self._telling() as tell:
            yield from filled([partial(start, one) for one in groups(iter(entries), 1 << 62, 1 << 62)], tell, places)

    def _part(self, entry: Entry, part: Part) -> Steps[Any]:
        if part == part_of(entry.shape, ...):
            return (yield from self._tensor(entry.name))
        if (fetched := self._pop((entry.name, part))) is not None:
            return self._convert((yield from self._take((entry.name, part), fetched)))
        self._check_fits(_size_of((entry, part)), f"the slice of '{entry.name}'")
        return self._convert((yield from self._result_of(self._start_part(entry, part))))

    def _pop(self, key: Any) -> _Fetched | None:
        """Take a prefetched result. Later calls fetch the tensor again."""
        with self._lock:
            return self._fetched_before.pop(key, None)

    def _take(self, key: Any, fetched: _Fetched) -> Steps[Tensor]:
        """Wait for a prefetched result. The last taker of an operation removes it; an interrupted call leaves the result
        for the next one.
        """
        operation, position, nbytes = fetched
        operation.hurry()
        try:
            yield Waiting(operation, self._teller(), shared=True)
        except BaseException:
            with self._lock:
                if self._files.is_open and self._fetched_before.setdefault(key, fetched) is not fetched:
                    self._held -= nbytes  # another call has fetched it again meanwhile
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
        return self._tell_with(self._progress or None)

    def _tell_with(self, progress: Progress | None) -> Callable[[], object] | None:
        if progress is None:
            return None
        return lambda: progress(self._files.fetched(), self._files.nbytes)

    @contextmanager
    def _telling(self) -> Iterator[Callable[[], object] | None]:
        """Provide the teller for a fetch of all tensors, which the terminal shows."""
        with showing(self._progress, self._files.name) as progress:
            yield self._tell_with(progress)

    # ---- errors ----

    def _entry(self, name: str) -> Entry:
        self._files.check_open()
        if (entry := self._files.entries.get(name)) is not None:
            return entry
        raise no_tensor(name, self._files.name, self._files.entries)

    def _reserve(self, size: int, subject: str) -> None:
        with self._lock:
            self._check_fits(size, subject, self._held)
            self._held += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size

    def _check_fits(self, size: int, subject: str, held: int = 0) -> None:
        if self._limit is None or size + held <= self._limit:
            return
        advice = f"{subject} has {size} bytes, and memory_limit is {self._limit}; take slices, or raise memory_limit"
        if size <= self._limit:
            advice = (
                f"{subject} has {size} bytes, and of memory_limit, {self._limit}, prefetch() and iteration have {held}; take "
                "the prefetched tensors first, or raise memory_limit"
            )
        raise Error(f"fetch {self._files.name}: {advice}", 12, "system", "fetch", self._files.name, "", advice)


class _Coming(NamedTuple):
    """Tensors of one file that are under way."""

    entries: list[Entry]
    operation: Operation
    nbytes: int


class Arrival:
    """Fetch all tensors of a model in the order of the files, a few at a time. The next ones arrive while the program uses
    these, from several files if they are small.
    """

    def __init__(self, model: Model[Any], first: int = _FIRST) -> None:
        model._files.check_open()
        self._model = model
        self._limit = model._limit
        self._most = min(_MOST, max(0, self._limit - model._held) // 2) if self._limit else _MOST
        self._rest = groups(iter(model._files.entries.values()), min(first, self._most), self._most)
        self._next = next(self._rest, None)
        self._given = 0  # bytes in use by the program
        self._coming: deque[_Coming] = deque()
        self._shows = ExitStack()
        self._tell = self._shows.enter_context(model._telling())
        self._start()

    def some(self) -> Steps[deque[tuple[Entry, Tensor]]]:
        """Return the next tensors, or none after the last ones."""
        self._model._give_back(self._given)
        self._given = 0
        self._start()
        if not self._coming:
            return deque()
        entries, operation, self._given = self._coming.popleft()
        operation.hurry()
        tensors: list[Tensor] = yield from result_of(operation, self._tell)
        self._start()
        return deque(zip(entries, tensors, strict=True))

    def close(self) -> None:
        self._shows.close()
        for one in reversed(self._coming):
            one.operation.cancel()
        self._model._give_back(self._given + self._under_way())
        self._coming.clear()
        self._given = 0

    def _under_way(self) -> int:
        return sum(one.nbytes for one in self._coming)

    def _start(self) -> None:
        """Start the next operations that have room. The first one raises an Error if it has none."""
        while (entries := self._next) is not None:
            size = sum(one.nbytes for one in entries)
            if (self._given or self._coming) and not self._fits_too(size):
                return
            self._model._reserve(size, f"tensor '{entries[0].name}'")
            self._coming.append(_Coming(entries, self._model._start(entries, can_wait=True), size))
            self._next = next(self._rest, None)

    def _fits_too(self, size: int) -> bool:
        if self._coming and self._under_way() + size > self._most:
            return False
        return self._limit is None or size + self._model._held <= self._limit


def _in_order(wanted: list[Entry], pieces: list[Piece]) -> Iterator[list[Entry] | Piece]:
    """Yield the groups and pieces to fetch at once, file after file."""
    whole = groups(iter(sorted(wanted, key=_place_of)), _FIRST, _MOST)
    parts = sorted(pieces, key=lambda one: _place_of(one[0]))
    return heapq.merge(whole, parts, key=lambda one: one[0].file)


def _place_of(entry: Entry) -> tuple[int, int]:
    return entry.file, entry.number


def _size_of(piece: Piece) -> int:
    entry, part = piece
    elements = math.prod(entry.shape)
    return entry.nbytes * math.prod(part.shape) // elements if elements else 0
