# SPDX-License-Identifier: Apache-2.0
"""Streams of tensors: batches of rows that other processes send."""

from __future__ import annotations

import socket
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple

from . import _native
from ._error import Error
from ._native import Operation, Session, Tensor
from ._wait import wait, wait_in_loop

_open_streams: weakref.WeakSet[TensorStream] = weakref.WeakSet()


class Batch(Mapping[str, Tensor]):
    """Rows of all tensors of a stream: `batch.x` and `batch["x"]` are the tensor with the name x.

    Its memory goes back to the stream when the batch, its tensors, and everything that was made of them without a copy
    (torch.from_dlpack) have gone, and what was enqueued on their CUDA streams by then has run.
    """

    def __init__(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        self._tensors = dict(tensors)
        self.rows = len(tensors[0][1]) if tensors else 0

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __getattr__(self, name: str) -> Tensor:
        tensors: dict[str, Tensor] = self.__dict__.get("_tensors", {})
        if name not in tensors:
            raise AttributeError(f"the batch has no tensor {name!r}; it has {', '.join(tensors)}")
        return tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        """How many tensors. `rows` says how many rows."""
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"gpurx.Batch(rows={self.rows}, {', '.join(f'{name}: {one!r}' for name, one in self._tensors.items())})"


def _addresses(given: str | Sequence[str] | None, *, to_listen: bool) -> list[tuple[str, int]]:
    """Numeric addresses and ports of "HOST:PORT", "[ADDRESS]:PORT" and, to listen everywhere, ":PORT"."""
    if given is None:
        return []
    found = []
    for text in [given] if isinstance(given, str) else given:
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
            raise ValueError(f"{text!r} is not HOST:PORT")
        if not host and not to_listen:
            raise ValueError(f"{text!r} does not say where to connect to")
        known = socket.getaddrinfo(host.strip("[]") or "0.0.0.0", int(port), type=socket.SOCK_STREAM)
        found.append((str(known[0][4][0]), int(port)))
    return found


class _Last(NamedTuple):
    """What there was to say when a stream was closed."""

    addresses: list[tuple[str, int]]
    errors: list[tuple[int | None, Error]]
    stats: dict[str, int]
    explained: str


class TensorStream:
    """Batches of tensors from other processes, received into a GPU's memory or the host's.

        for batch in gpurx.TensorStream("10.77.0.1:9000", memory="gpu:0", batch_size=64):
            loss = step(torch.from_dlpack(batch.x))

    Listens at `listen`, for senders that speak gpurx's protocol of frames; with `connect` it connects to them instead.
    Iterating ends when all of `sources` have sent their last frame. It can be used with `async for` as well, and by
    several threads or tasks, each of which gets other batches.

    One that failed (a connection that was cut, a wrong checksum) holds up nobody; `source_errors` says what happens then:
    "raise" an Error at the end of the stream, "warn" there, or "ignore". `errors()` has them all.

    `session` is the NIC's memory and queues; without one a session is opened with `memory`, `size`, `interface` and
    `transport`, and `session.explain()` says which transport is in use and why. rank and world_size: this process gets
    every world_size-th source.

    Belongs to the process that made it: neither CUDA nor the NIC's queues survive a fork. See gpurx.torch for
    torch.utils.data.DataLoader.
    """

    def __init__(
        self,
        listen: str | Sequence[str] | None = None,
        *,
        connect: str | Sequence[str] | None = None,
        memory: str = "host",
        session: Session | None = None,
        batch_size: int = 64,
        drop_last: bool = False,
        sources: int = 1,
        rank: int = 0,
        world_size: int = 1,
        queue_depth: int = 2,
        order: Literal["as_they_come", "rounds"] = "as_they_come",
        start_timeout: float = 300.0,
        reconnect_timeout: float = 30.0,
        source_errors: Literal["raise", "warn", "ignore"] = "raise",
        size: int = 64 << 20,
        interface: str = "",
        transport: Literal["automatic", "devmem", "copy"] = "automatic",
    ) -> None:
        if source_errors not in ("raise", "warn", "ignore"):
            raise ValueError("source_errors must be 'raise', 'warn' or 'ignore'")
        listens, connects = _addresses(listen, to_listen=True), _addresses(connect, to_listen=False)
        # Twice the connections: one that comes back finds a place while the last one still has some of its pages.
        flows = max(16, 2 * (sources if listens else len(connects)))
        self._owns_session = session is None
        self.session = session or Session(memory, size=size, interface=interface, transport=transport, max_flows=flows)
        options = _native.StreamOptions()
        options.sources, options.rank, options.world_size = sources, rank, world_size
        options.batch_size, options.drop_last, options.queue_depth = batch_size, drop_last, queue_depth
        options.set_order(order)
        options.set_timeouts(start_timeout, reconnect_timeout)
        self._source_errors = source_errors
        self._closed = False
        self._last: _Last | None = None
        self._told = False
        self._kept: list[list[tuple[str, Tensor]]] = []  # what came although nobody waited any more
        self._receiver = _native.TensorReceiver(self.session, listens, connects, memory, options)
        _open_streams.add(self)

    # ---- batches ----

    def __iter__(self) -> TensorStream:
        return self

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        if self._kept:
            return Batch(self._kept.pop(0))
        operation = self._receiver.next()
        try:
            tensors = wait(operation)
        except Error:
            if self._closed:
                raise StopIteration from None
            raise
        except BaseException:
            self._keep(operation)
            raise
        if tensors is None:
            self._end()
            raise StopIteration
        return Batch(tensors)

    def __aiter__(self) -> TensorStream:
        return self

    async def __anext__(self) -> Batch:
        if self._closed:
            raise StopAsyncIteration
        if self._kept:
            return Batch(self._kept.pop(0))
        operation = self._receiver.next()
        try:
            tensors = await wait_in_loop(operation)
        except Error:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        except BaseException:
            self._keep(operation)
            raise
        if tensors is None:
            self._end()
            raise StopAsyncIteration
        return Batch(tensors)

    def _keep(self, operation: Operation) -> None:
        """Interrupted: a batch that was ready all the same is the next."""
        try:
            tensors: Any = operation.result()
        except Error:
            return
        if tensors is not None:
            self._kept.append(tensors)

    def _end(self) -> None:
        failed = [error for _, error in self.errors()]
        if not failed or self._told:
            return
        self._told = True
        if self._source_errors == "raise":
            raise failed[0]
        if self._source_errors == "warn":
            for error in failed:
                warnings.warn(str(error), RuntimeWarning, stacklevel=3)

    # ---- the stream ----

    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens, with the port if the system chose it."""
        return self._last.addresses if self._last else self._receiver.addresses()

    def errors(self) -> list[tuple[int | None, Error]]:
        """The sources that failed, and others who connected: the source's number, if it has said so, and the error."""
        return self._last.errors if self._last else self._receiver.errors()

    def stats(self) -> dict[str, int]:
        """Counters: connections, frames, duplicates, rows, payload_bytes, batches, memory, memory_high_water."""
        return self._last.stats if self._last else self._receiver.stats()

    def explain(self) -> str:
        """Which transport is in use, and why not a better one."""
        return self._last.explained if self._last else self.session.explain()

    def close(self) -> None:
        """Ends all connections, and restores the NIC if the session is the stream's own. Batches stay as they are."""
        if self._closed:
            return
        try:
            self._last = _Last(self.addresses(), self.errors(), self.stats(), self.explain())
        except Error:  # in a forked process, or the session was closed
            self._last = _Last([], [], {}, "closed")
        self._closed = True
        self._receiver.close()
        if self._owns_session:
            self.session.close()

    def __enter__(self) -> TensorStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self._closed else ", ".join(f"{host}:{port}" for host, port in self.addresses())
        return f"<gpurx.TensorStream {where}>"

    def __reduce__(self) -> str:
        raise TypeError(
            "a TensorStream cannot be sent to another process: the NIC's queues and the GPU memory behind it belong to "
            "this one. Use DataLoader(num_workers=0)"
        )


def close_all() -> None:
    """For the end of the process, as long as there is an interpreter."""
    for stream in list(_open_streams):
        try:
            stream.close()
        except Error as error:
            print(f"gpurx: {error}", file=sys.stderr)
