# SPDX-License-Identifier: Apache-2.0
"""Streams of tensors: batches of rows that other processes send."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
import warnings
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Optional

from . import _native
from ._convert import html_table
from ._error import Error
from ._native import IngestErrorCode, Operation, Session, StreamPosition, Tensor
from ._ranks import Rank
from ._sender import secret_of
from ._wait import wait, wait_in_loop

_open_streams: weakref.WeakSet[TensorStream] = weakref.WeakSet()


class Batch(Mapping[str, Tensor]):
    """Rows of all tensors of a stream: `batch.x` and `batch["x"]` are the tensor with the name x.

    The memory returns to the stream when the batch, its tensors, and everything made of them without a copy
    (torch.from_dlpack) are gone, and the work enqueued on their CUDA streams by then has run.
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
        """Returns the number of tensors. `rows` is the number of rows."""
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"gpurx.Batch(rows={self.rows}, {', '.join(f'{name}: {one!r}' for name, one in self._tensors.items())})"

    def _repr_html_(self) -> str:
        return html_table(f"gpurx.Batch: {self.rows} rows", self)


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


# What comes next: the tensors of a batch, or none; where it ends; whether that is the end of the stream.
_Next = tuple[Optional[list[tuple[str, Tensor]]], StreamPosition, bool]


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

    Listens at `listen` for senders that use gpurx's protocol of frames; with `connect` it connects to them. Iteration ends
    when all of `sources` have sent their last frame. `async for` works as well. Several threads or tasks may iterate; each
    gets other batches.

    **Epochs.** A loop ends when all sources have ended an epoch (TensorSender.end_epoch()); the next loop is the next epoch. A
    loop over a stream whose senders have all closed, or over a closed stream, raises Error. Epochs are for one thread or
    task at a time, as state_dict() is.

    **Resuming.** state_dict() is the position after the last batch. A stream of another process continues with the next batch
    after load_state_dict(): no row is lost, and none arrives twice, if the senders still have the frames. TensorSender keeps
    a frame until it is acknowledged. `acknowledge` sets the time: "received", when the frame is in this process' memory, which
    covers broken connections; "taken", when all its rows were in batches, for a process that ends and resumes with
    state_dict() of its last batch; "saved", when saved() got a later state, for a process that may be killed at any time.
    `order="rounds"` repeats the same batches; "as_they_come" with several sources repeats the same rows.

    **Shuffling.** `shuffle` mixes rows within windows of that many rows, by `seed` and epoch. The same rows always get the same
    order, so several sources need `order="rounds"`. A window is returned when it is full; its memory comes on top.

    `secret`, at least 16 bytes: the stream receives only senders that have it, and other connections never make it fail. The
    secret authenticates; it does not encrypt.

    A failed source (a broken connection, a wrong checksum) delays no other. `source_errors` chooses: "raise" raises Error at
    the end of the stream, "warn" warns there, "ignore" does nothing. `errors()` has all of them, and those of other
    connections, such as probes and scanners, which never make a stream fail nor take a sender's place. A second sender of one
    number, or one of a number outside the range, makes it fail: its rows are lost.

    The stream waits `start_timeout` seconds for the first connection of a source, `reconnect_timeout` for a further one, and
    `stall_timeout` for bytes on a connection: a stopped process keeps its connection. 0 is no limit; for `reconnect_timeout`
    it allows no further connection.

    `session` has the NIC's memory and queues. Without it the stream opens one with `memory`, `size`, `interface` and
    `transport`; `session.explain()` has the transport in use and the reason. rank and world_size: this process gets every
    world_size-th source.

    The stream belongs to the process that made it: neither CUDA nor the NIC's queues survive a fork. gpurx.torch supports
    torch.utils.data.DataLoader.
    """

    def __init__(
        self,
        listen: str | Sequence[str] | None = None,
        *,
        connect: str | Sequence[str] | None = None,
        memory: Any = "host",
        session: Session | None = None,
        batch_size: int = 64,
        drop_last: bool = False,
        sources: int = 1,
        rank: int = 0,
        world_size: int = 1,
        queue_depth: int = 2,
        order: Literal["as_they_come", "rounds"] = "as_they_come",
        acknowledge: Literal["received", "taken", "saved"] = "received",
        shuffle: int = 0,
        seed: int = 0,
        secret: str | bytes | None = None,
        start_timeout: float = 300.0,
        reconnect_timeout: float = 30.0,
        stall_timeout: float = 300.0,
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
        options.shuffle, options.seed = shuffle, seed
        options.set_order(order)
        options.set_acknowledge(acknowledge)
        options.set_secret(secret_of(secret))
        options.set_timeouts(start_timeout, reconnect_timeout, stall_timeout)
        self._source_errors = source_errors
        self._closed = False
        self._last: _Last | None = None
        self._told = 0  # of the failures
        self._ended = False
        self._kept: list[_Next] = []  # what came although nobody waited any more
        self._position = StreamPosition()
        self._has_begun = False
        self._batches = 0  # of this loop's epoch
        self._mixes = [shuffle, seed, batch_size] if shuffle else None
        self._options, self._connects, self._memory = options, connects, memory
        self._receiver = _native.TensorReceiver(self.session, listens, connects, memory, options)
        _open_streams.add(self)

    @classmethod
    def of_rank(cls, port: int, **options: Any) -> TensorStream:
        """Returns the stream of this process in a torchrun job. It listens on every address at `port` + LOCAL_RANK, and has the
        sources of its RANK and WORLD_SIZE. rank_addresses(port) gives senders the addresses of all ranks. The options are those
        of the constructor.
        """
        here = Rank.of(os.environ)
        return cls(f":{port + here.local_rank}", rank=here.rank, world_size=here.world_size, **options)

    # ---- batches ----

    def __iter__(self) -> Iterator[Batch]:
        self._check_not_ended()
        return _Loop(self)

    def __next__(self) -> Batch:
        self._check_open()
        return next(_Loop(self))

    def _next(self) -> Batch | None:
        """None: the end of an epoch or of the stream, or it was closed meanwhile."""
        if self._kept and not self._closed:
            return self._given(self._kept.pop(0))
        if (operation := self._begin()) is None:
            return None
        try:
            result = wait(operation)
        except Error:
            if self._closed:
                return None
            raise
        except BaseException:
            self._keep(operation)
            raise
        return self._given(result)

    def __aiter__(self) -> AsyncIterator[Batch]:
        self._check_not_ended()
        return _Loop(self)

    async def __anext__(self) -> Batch:
        self._check_open()
        return await anext(_Loop(self))

    async def _next_in_loop(self) -> Batch | None:
        if self._kept and not self._closed:
            return self._given(self._kept.pop(0))
        if (operation := self._begin()) is None:
            return None
        try:
            result = await wait_in_loop(operation)
        except Error:
            if self._closed:
                return None
            raise
        except BaseException:
            self._keep(operation)
            raise
        return self._given(result)

    def _begin(self) -> Operation | None:
        try:
            return None if self._closed else self._receiver.next()
        except Error:
            if self._closed:  # by another thread, just now
                return None
            raise

    def _keep(self, operation: Operation) -> None:
        """Interrupted: a batch that was ready all the same is the next."""
        try:
            self._kept.append(operation.result())
        except Error:
            return

    def _given(self, result: _Next) -> Batch | None:
        """To the program. None: the end of an epoch, or of the stream."""
        tensors, self._position, is_end = result
        first, self._has_begun = not self._has_begun, True
        if tensors is not None:
            self._batches += 1
            return Batch(tensors)
        was_empty, self._batches = self._batches == 0, 0
        if not is_end:
            self._tell_failures()
            return None
        if self._ended:
            return None
        self._ended = True
        self._tell_failures()
        if was_empty and not first and self._position.epoch > 0 and not self._closed:
            self._check_not_ended()
        return None

    def _check_open(self, doing: str = "iterate over") -> None:
        if not self._closed:
            return
        advice = "it is closed; do so before close() and inside its `with`, or make another TensorStream"
        raise Error(f"{doing} {self!r}: {advice}", errno.EBADF, "system", doing, repr(self), "", advice)

    def _check_not_ended(self) -> None:
        """A loop over a stream that has ended would find nothing, and an epoch without a batch looks like one."""
        self._check_open()
        if not self._ended:
            return
        advice = "senders end an epoch with end_epoch(), and the last with close(); after that it takes another TensorStream"
        raise Error(
            f"iterate over {self!r}: it has ended, as all of its sources have; {advice}",
            operation="iterate",
            object=repr(self),
            advice=advice,
        )

    def _tell_failures(self) -> None:
        # Somebody who is no source, and whose rows are lost, has sent to this stream by mistake; others have not.
        lost = IngestErrorCode.WRONG_SOURCE
        failed = [error for source, error in self.errors() if source is not None or error.code is lost]
        news, self._told = failed[self._told :], len(failed)
        if news and self._source_errors == "raise":
            raise news[0]
        if self._source_errors == "warn":
            for error in news:
                warnings.warn(str(error), RuntimeWarning, stacklevel=5)

    # ---- going on elsewhere ----

    @property
    def epoch(self) -> int:
        """Epoch of the next batch, from 0."""
        return self._position.epoch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last batch taken: numbers, strings and lists, for json and pickle. A copy."""
        return {"version": 1, "shuffled": self._mixes, **self._position.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Sets the position, before the first batch. The stream must have the same sources, rank, world_size, order, shuffle and
        seed as the saved one, and as a rule batch_size. It disconnects connected senders; TensorSenders connect again. Raises
        ValueError if this is no such state, and Error if a source is missing, or batches were taken.
        """
        self._check_open("load the state of")
        if self._has_begun:
            raise Error(
                f"load the state of {self!r}: batches were taken; load it before the first", operation="load state"
            )
        if state.get("version") != 1:
            raise ValueError(f"this is no state of a TensorStream of version 1, but {state.get('version')!r}")
        if state.get("shuffled") != self._mixes:
            raise ValueError(
                f"the state is of a stream with shuffle, seed and batch_size {state.get('shuffled')}; this one has {self._mixes}"
            )
        position = StreamPosition.of_state(dict(state))
        listens = self._receiver.addresses()
        self._options.position = position
        self._receiver.close()
        self._receiver = self._listen_again(listens)
        self._position = position

    def _listen_again(self, addresses: list[tuple[str, int]]) -> _native.TensorReceiver:
        """The last receiver's threads may still be about to close what it listened with."""
        end = time.monotonic() + 5
        while True:
            try:
                return _native.TensorReceiver(self.session, addresses, self._connects, self._memory, self._options)
            except Error as error:
                if error.code != errno.EADDRINUSE or error.category != "system" or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Tells the stream that this state is saved. With acknowledge="saved", senders may drop the frames before it."""
        self._check_open("acknowledge batches of")
        self._receiver.acknowledge(StreamPosition.of_state(dict(state)))

    # ---- the stream ----

    def addresses(self) -> list[tuple[str, int]]:
        """Addresses of the listener, with the port if the system chose it."""
        return self._last.addresses if self._last else self._receiver.addresses()

    def errors(self) -> list[tuple[int | None, Error]]:
        """Returns the failures of sources and other connections: the source's number, if it is known, and the error."""
        return self._last.errors if self._last else self._receiver.errors()

    def stats(self) -> dict[str, int]:
        """Returns counters: connections, frames, duplicates, damaged, rows, payload_bytes, batches, memory, memory_high_water."""
        return self._last.stats if self._last else self._receiver.stats()

    def explain(self) -> str:
        """Returns the transport in use, and the reason against a better one."""
        return self._last.explained if self._last else self.session.explain()

    def close(self) -> None:
        """Ends all connections, and restores the NIC if the session is the stream's own. Batches stay valid. Running loops end; a
        later loop raises Error.
        """
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

    async def __aenter__(self) -> TensorStream:
        return self

    async def __aexit__(
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


class _Loop(Iterator[Batch], AsyncIterator[Batch]):
    """One `for` or `async for`: ends where the stream is closed meanwhile."""

    def __init__(self, stream: TensorStream) -> None:
        self._stream = stream

    def __next__(self) -> Batch:
        batch = self._stream._next()
        if batch is None:
            raise StopIteration
        return batch

    async def __anext__(self) -> Batch:
        batch = await self._stream._next_in_loop()
        if batch is None:
            raise StopAsyncIteration
        return batch


def close_all() -> None:
    """For the end of the process, as long as there is an interpreter."""
    for stream in list(_open_streams):
        try:
            stream.close()
        except Error as error:
            print(f"gpurx: {error}", file=sys.stderr)
