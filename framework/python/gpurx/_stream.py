# SPDX-License-Identifier: Apache-2.0
"""Streams of tensors: batches of rows from other processes."""

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
from ._arguments import Device, flag, seconds, session_of, text, whole
from ._convert import html_table
from ._error import Error
from ._native import IngestErrorCode, Operation, StreamPosition, Tensor
from ._ranks import Rank
from ._sender import secret_of
from ._session import Session
from ._wait import wait, wait_in_loop

_open_streams: weakref.WeakSet[TensorStream] = weakref.WeakSet()


class Batch(Mapping[str, Tensor]):
    """Hold rows of all tensors of a stream, by name: `batch.x` and `batch["x"]` are the tensor x. `rows` is the number of
    rows.

    The memory returns to the stream when two conditions hold:

    * The batch, its tensors and everything made of them without a copy (torch.from_dlpack) are gone.
    * The work enqueued on their CUDA streams by then has run.
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
        """Return the number of tensors. `rows` is the number of rows."""
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"gpurx.Batch(rows={self.rows}, {', '.join(f'{name}: {one!r}' for name, one in self._tensors.items())})"

    def _repr_html_(self) -> str:
        return html_table(f"gpurx.Batch: {self.rows} rows", self)


def _addresses(given: str | Sequence[str] | None, *, to_listen: bool) -> list[tuple[str, int]]:
    """Return numeric addresses and ports of "HOST:PORT", "[ADDRESS]:PORT" and, for a listener on every address, ":PORT"."""
    if given is None:
        return []
    found = []
    for address in [given] if isinstance(given, str) else given:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit() or (":" in host and not host.startswith("[")):
            raise ValueError(f"{address!r} is not HOST:PORT")
        if not host and not to_listen:
            raise ValueError(f"{address!r} has no host to connect to")
        known = socket.getaddrinfo(host.strip("[]") or "0.0.0.0", int(port), type=socket.SOCK_STREAM)
        found.append((str(known[0][4][0]), int(port)))
    return found


# Result of the receiver: the tensors of a batch, or none; the position behind it; whether the stream has ended.
_Next = tuple[Optional[list[tuple[str, Tensor]]], StreamPosition, bool]


class _Last(NamedTuple):
    """State of a stream at its close, for later calls."""

    addresses: list[tuple[str, int]]
    errors: list[tuple[int | None, Error]]
    stats: dict[str, int]
    explained: str


class TensorStream:
    """Receive batches of tensors from other processes into memory of a GPU or of the host.

        for batch in gpurx.TensorStream("10.77.0.1:9000", memory="gpu:0", batch_size=64):
            loss = step(torch.from_dlpack(batch.x))

    Senders use gpurx's protocol of frames, as TensorSender does. Iteration ends when all of `sources` have sent their last
    frame. `for` and `async for` both work. Several threads or tasks may iterate; each gets other batches. Ctrl-C interrupts
    a wait and loses no batch.

    **Arguments.**

    * listen: addresses to listen on: "HOST:PORT", "[ADDRESS]:PORT" or ":PORT".
    * connect: addresses of senders that listen. The stream connects to them, in the order of their source numbers.
    * memory: memory for the batches: "host", "gpu:0", "cuda:0", 0 or a torch.device.
    * session: Session with the NIC's memory and queues. Default: the stream opens one with `memory`, `size`, `interface`
      and `transport`. explain() returns the transport and the reason for it.
    * batch_size: rows of a batch. `drop_last` omits a last batch with fewer rows.
    * sources: number of senders, of all ranks.
    * rank, world_size: this process receives the sources whose number modulo `world_size` is `rank`.
    * queue_depth: batches that are ready or being filled in advance.
    * order: "as_they_come", or "rounds": one frame of each source in turn.
    * acknowledge, shuffle, seed: see below.
    * secret: shared secret of at least 16 bytes. The stream accepts only senders that have it. Other connections do not
      make it fail. The secret authenticates; it does not encrypt.
    * start_timeout: seconds to wait for the first connection of a source. 0: no limit.
    * reconnect_timeout: seconds to wait for a source after its connection broke. 0: no second connection.
    * stall_timeout: seconds to wait for bytes on a connection. A stopped process keeps its connection. 0: no limit.
    * source_errors: action after the failure of a source: "raise" an Error at the end of the stream, "warn" there, or
      "ignore".

    **Failed sources.** A broken connection or a wrong checksum ends one source and delays no other. errors() returns all
    failures. It also returns those of other connections, such as probes and scanners. These neither make the stream fail
    nor take the place of a sender. A second sender of a number, or a sender of a number out of range, makes the stream
    fail, because its rows are lost.

    **Epochs.** A loop ends when all sources have ended an epoch (TensorSender.end_epoch()). The next loop is the next
    epoch. A loop over a closed stream raises Error. So does a loop over a stream that has ended because all senders have
    closed. Only one thread or task at a time may use epochs and state_dict().

    **Resuming.** state_dict() returns the position after the last batch. A stream of another process continues behind it
    after load_state_dict(). No row is lost or repeated if the senders still have the following frames. TensorSender keeps a
    frame until the stream acknowledges it. `acknowledge` selects when:

    * "received": when the frame is in memory of this process. This covers broken connections.
    * "taken": when all its rows were in batches. This covers a process that ends at any batch and keeps its last
      state_dict().
    * "saved": when saved() got a later state. This covers a process that may be killed at any time.

    After resuming, `order="rounds"` repeats the same batches. "as_they_come" with several sources repeats the same rows.

    **Shuffling.** `shuffle` mixes rows within windows of that many rows, by `seed` and epoch. The same rows always get the
    same order, so several sources need `order="rounds"`. The stream returns a window when it is full. The memory of the
    window is additional.

    **Processes.** The stream belongs to the process that made it: neither CUDA nor the NIC's queues survive a fork.
    gpurx.torch serves torch.utils.data.DataLoader.
    """

    def __init__(
        self,
        listen: str | Sequence[str] | None = None,
        *,
        connect: str | Sequence[str] | None = None,
        memory: Device = "host",
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
        transport: Literal["automatic", "devmem", "zcrx", "copy"] = "automatic",
    ) -> None:
        if source_errors not in ("raise", "warn", "ignore"):
            raise ValueError("source_errors must be 'raise', 'warn' or 'ignore'")
        listens, connects = _addresses(listen, to_listen=True), _addresses(connect, to_listen=False)
        # Twice the connections: a new connection finds a place while the last one still has pages.
        flows = max(16, 2 * (whole("sources", sources, 32) if listens else len(connects)))
        self._owns_session = session is None
        self.session = session_of(session) or Session(memory, size=size, interface=interface, transport=transport, max_flows=flows)
        options = _native.StreamOptions()
        options.sources, options.rank = whole("sources", sources, 32), whole("rank", rank, 32)
        options.world_size, options.batch_size = whole("world_size", world_size, 32), whole("batch_size", batch_size)
        options.drop_last, options.queue_depth = flag("drop_last", drop_last), whole("queue_depth", queue_depth)
        options.shuffle, options.seed = whole("shuffle", shuffle), whole("seed", seed)
        options.set_order(text("order", order))
        options.set_acknowledge(text("acknowledge", acknowledge))
        options.set_secret(secret_of(secret))
        options.set_timeouts(
            seconds("start_timeout", start_timeout),
            seconds("reconnect_timeout", reconnect_timeout),
            seconds("stall_timeout", stall_timeout),
        )
        self._source_errors = source_errors
        self._closed = False
        self._last: _Last | None = None
        self._told = 0  # reported failures
        self._ended = False
        self._kept: list[_Next] = []  # results of interrupted calls
        self._position = StreamPosition()
        self._has_begun = False
        self._batches = 0  # of the current loop's epoch
        self._mixes = [shuffle, seed, batch_size] if shuffle else None
        self._options, self._connects, self._memory = options, connects, memory
        self._receiver = _native.TensorReceiver(self.session, listens, connects, memory, options)
        _open_streams.add(self)

    @classmethod
    def of_rank(cls, port: int, **options: Any) -> TensorStream:
        """Open the stream of this process in a torchrun job.

        It listens on every address at `port` + LOCAL_RANK, and receives the sources of its RANK and WORLD_SIZE. Senders get
        the addresses of all ranks from rank_addresses(port). `options` are those of the constructor. Raises ValueError if
        torchrun did not set the environment.
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
        """Return the next batch. None: the end of an epoch or of the stream, or another thread closed it."""
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
        """Keep a batch that was ready at the interruption. It is the next batch."""
        try:
            self._kept.append(operation.result())
        except Error:
            return

    def _given(self, result: _Next) -> Batch | None:
        """Return a batch to the program. None: the end of an epoch or of the stream."""
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
        """Raise an Error after the end: a loop would find nothing, like an epoch without a batch."""
        self._check_open()
        if not self._ended:
            return
        advice = "senders end an epoch with end_epoch(), and the last one with close(); then open another TensorStream"
        raise Error(
            f"iterate over {self!r}: it has ended, as all of its sources have; {advice}",
            operation="iterate",
            object=repr(self),
            advice=advice,
        )

    def _tell_failures(self) -> None:
        # WRONG_SOURCE without a source: a sender used a wrong number, and its rows are lost. Others sent no rows.
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
        """Return the position after the last batch, as a copy: numbers, strings and lists, for json and pickle."""
        return {"version": 1, "shuffled": self._mixes, **self._position.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue behind a saved position. Call it before the first batch.

        The stream must have the sources, rank, world_size, order, shuffle and seed of the saved one, and as a rule its
        batch_size. The call disconnects connected senders; TensorSenders connect again.

        Raises ValueError if `state` is no such state. Raises Error if a source is missing or a batch was taken.
        """
        self._check_open("load the state of")
        if self._has_begun:
            raise Error(
                f"load the state of {self!r}: batches were taken; load it before the first", operation="load state"
            )
        if state.get("version") != 1:
            raise ValueError(f"this is no state of a TensorStream of version 1: its version is {state.get('version')!r}")
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
        """Open the receiver again. The last receiver's threads may not have closed its listener yet."""
        end = time.monotonic() + 5
        while True:
            try:
                return _native.TensorReceiver(self.session, addresses, self._connects, self._memory, self._options)
            except Error as error:
                if error.code != errno.EADDRINUSE or error.category != "system" or time.monotonic() > end:
                    raise
            time.sleep(0.01)

    def saved(self, state: Mapping[str, Any]) -> None:
        """Report that `state` is stored safely. With acknowledge="saved", senders may then drop all frames before it."""
        self._check_open("acknowledge batches of")
        self._receiver.acknowledge(StreamPosition.of_state(dict(state)))

    # ---- the stream ----

    def addresses(self) -> list[tuple[str, int]]:
        """Return the addresses of the listener, with the port if the system chose it."""
        return self._last.addresses if self._last else self._receiver.addresses()

    def errors(self) -> list[tuple[int | None, Error]]:
        """Return the failures of sources and of other connections: the source's number or None, and the error."""
        return self._last.errors if self._last else self._receiver.errors()

    def stats(self) -> dict[str, int]:
        """Return counters: connections, frames, duplicates, damaged, rows, payload_bytes, batches, memory,
        memory_high_water.
        """
        return self._last.stats if self._last else self._receiver.stats()

    def explain(self) -> str:
        """Return the transport in use, and the reason against a better one."""
        return self._last.explained if self._last else self.session.explain()

    def close(self) -> None:
        """End all connections, and restore the NIC if the stream opened its session.

        Batches stay valid. Running loops end. A later loop raises Error.
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
    """Run one `for` or `async for`. It ends if the stream is closed meanwhile."""

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
    """Close all streams at the end of the process, while the interpreter still runs."""
    for stream in list(_open_streams):
        try:
            stream.close()
        except Error as error:
            print(f"gpurx: {error}", file=sys.stderr)
