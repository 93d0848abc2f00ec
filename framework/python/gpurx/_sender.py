# SPDX-License-Identifier: Apache-2.0
"""The other end of a TensorStream: for workers that prepare data, and for tests."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import secrets
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._link import Link, Peer
from ._protocol import (
    ACK,
    BEGIN_SIZE,
    CHALLENGE_SIZE,
    ENDS_EPOCH,
    IS_LAST,
    LEAST_SECRET,
    NONCE_SIZE,
    WELCOME_SIZE,
    Refused,
    frame,
    hello,
    is_challenge,
    prove,
    read_welcome,
)

# Seconds between two attempts to connect to a receiver that is not there yet: twice as long each time, up to the most.
_FIRST_PAUSE, _MOST_PAUSE = 0.05, 2.0
# What another attempt may do better.
_NOT_YET = {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT}

# As the protocol has a tensor: little endian, without padding.
_TENSOR = struct.Struct("<16sHHI7Q")

# The name that numpy, ml_dtypes or torch has for an element type: DLPack's number of it, and the bits. No others are sent.
_TYPES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "uint16": (1, 16),
    "uint32": (1, 32), "uint64": (1, 64), "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip


def _now() -> float:
    return time.monotonic()


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _is_not_yet(error: OSError) -> bool:
    is_unknown = isinstance(error, socket.gaierror)
    return error.errno == socket.EAI_AGAIN if is_unknown else isinstance(error, TimeoutError) or error.errno in _NOT_YET


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def secret_of(given: str | bytes | None) -> bytes:
    """As both sides use it. Empty: there is none."""
    if given is None:
        return b""
    secret = given.encode() if isinstance(given, str) else bytes(given)
    if len(secret) < LEAST_SECRET:
        raise ValueError(
            f"a secret has at least {LEAST_SECRET} bytes that nobody can guess, such as secrets.token_hex() makes; this one "
            f"has {len(secret)}"
        )
    return secret


def _is_torch(array: Any) -> bool:
    return all(hasattr(array, one) for one in ("data_ptr", "detach", "element_size", "shape"))


def _type_of(name: str, array: Any) -> tuple[int, int]:
    """DLPack's number of its element type, and the bits."""
    if _is_torch(array):
        found = _TYPES.get(str(array.dtype).removeprefix("torch."))
    elif not all(hasattr(array, one) for one in ("dtype", "shape", "nbytes", "flags")):
        raise TypeError(
            f"{name}: a {type(array).__name__} is no array of numpy's, such as numpy.asarray() makes, and no tensor of torch's"
        )
    else:
        found = _TYPES.get(array.dtype.name) if array.dtype.isnative else None
    if found is None:
        raise TypeError(
            f"{name}: elements of type {array.dtype} cannot be sent; these can, in this machine's byte order: {', '.join(_TYPES)}"
        )
    return found


def _describe(name: str, array: Any) -> bytes:
    kind, width = _type_of(name, array)
    if not 0 < len(name) < 16 or not all("!" <= one <= "~" for one in name):
        raise ValueError(f"{name!r}: a tensor has a name of 1 to 15 printable ASCII characters, none of them a space")
    if not array.shape:
        raise ValueError(f"{name}: a single number has no rows; what is sent has them as its first dimension")
    row = array.shape[1:]
    if len(row) > 7 or 0 in row:
        raise ValueError(f"{name}: a row has at most 7 dimensions, and no dimension of 0; this one has {row}")
    code = kind << 8 | width
    return _TENSOR.pack(name.encode(), code, len(row), 0, *row, *[0] * (7 - len(row)))


def _bytes_of(array: Any) -> memoryview:
    """Row-major, as they go to the wire. A copy if they do not lie so."""
    if _is_torch(array):
        return _bytes_of_torch(array)
    contiguous = array if array.flags.c_contiguous else array.copy(order="C")
    return memoryview(contiguous.reshape(-1).view("u1"))


def _bytes_of_torch(array: Any) -> memoryview:
    """By their address: not every element type of torch is one of numpy's, and not every torch can do with this numpy."""
    here = array.detach().cpu().contiguous()
    if here.is_conj() or here.is_neg():
        here = here.resolve_conj().resolve_neg()
    size = here.numel() * here.element_size()
    bytes_there = (ctypes.c_ubyte * size).from_address(here.data_ptr())
    bytes_there.owner = here
    return memoryview(bytes_there)


def _size_of(frame: list[bytes]) -> int:
    return sum(len(one) for one in frame)


class TensorSender:
    """Sends rows of tensors to a TensorStream.

        with gpurx.TensorSender("10.77.0.1:9000", source=worker) as sender:
            for images, labels in dataset:
                sender.send(x=images, y=labels)

    What is sent are numpy arrays or torch's tensors, of which the first dimension is the rows: all of one call have as many. All calls have
    the same tensors, in the same order. One that does not lie row-major in memory is copied first. close(), or the end of
    the block, says that there are no more; an exception in the block does not, and the receiver is told that this source
    was cut. `async with`, asend() and aclose() are the same for coroutines.

    **Every frame arrives once.** Each has a number and a CRC32C, and is kept here until the receiver acknowledges it: when
    it has it, or, as the stream's `acknowledge` says, when its rows were taken or saved there. A connection that ends is
    replaced, for `reconnect` seconds without an acknowledgement, and what the receiver does not have is sent again. At most
    `window` bytes are kept: then send() waits for acknowledgements, so it has to be more than the batches that the receiver
    makes and queues if these are to be taken first. close() waits for the last. Nothing runs in the background: that a
    connection has ended is noticed by the next call, which has to come within the stream's reconnect_timeout.

    A receiver that does not listen yet is waited for: `connect_timeout` seconds, with pauses that grow to 2 s. Then it is a
    ConnectionRefusedError, or what else the last attempt met, that names the address. 0: one attempt. The constructor waits; in
    an event loop it makes one attempt, and `async with`, or the first call, waits in a thread.

    `source` is its number: no other sender of the stream has it, now or before; a second one is refused, and is the
    receiver's error. A process that was started again, and sends the same rows once more from the first, says `resume`:
    what the receiver has is not sent, and `received` says how many frames that are.

    `secret` is the stream's: both sides prove that they know it, without saying it.

    What cannot be sent is refused with a TypeError or ValueError before a byte of it has gone, and the next may be sent.
    Whatever else ends a send(), such as `timeout` seconds in which the receiver took or acknowledged nothing that was waited
    for, or Ctrl-C, ends the sender too: that frame may have arrived, or not. A PermissionError: the secret is not the receiver's.
    A ConnectionRefusedError: nobody listens any more, or the receiver does not take this source, and says why.

    A receiver gives up a connection that brings it nothing for its stall_timeout, by default five minutes; the next send()
    makes another. Before the first frame that does no harm.

    Needs neither a GPU nor a stream in its process, and may be used in workers that were forked. For one thread at a time.
    """

    def __init__(
        self,
        address: str,
        *,
        source: int = 0,
        timeout: float | None = None,
        resume: bool = False,
        secret: str | bytes | None = None,
        connect_timeout: float = 60.0,
        reconnect: float = 30.0,
        window: int = 256 << 20,
    ) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not HOST:PORT, of a TensorStream that listens there")
        if not connect_timeout >= 0:
            raise ValueError(f"connect_timeout is a number of seconds from 0 on, not {connect_timeout}")
        self._secret = secret_of(secret)
        self._link = Link(Peer((host.strip("[]"), int(port)), timeout))
        self._address = address
        self._source = source
        self._sender = secrets.randbelow(2**32 - 1) + 1
        self._resume = resume
        self._connect_timeout = connect_timeout
        self._has_connected = False
        self._reconnect = reconnect
        self._window = window
        self._tensors: list[bytes] = []  # what the first frame had
        self._sequence = 0
        self._kept: deque[tuple[int, list[bytes]]] = deque()  # frames that are not acknowledged
        self._kept_size = 0
        self._received = 0  # frames that the receiver has or will have of this connection
        self._acknowledged = 0
        self._closed = False
        self._ended_by = ""
        if not _has_event_loop():
            self._wait_for_receiver()
        else:
            with contextlib.suppress(OSError):
                self._connect_first()

    def send(self, **tensors: Any) -> None:
        """One frame. Waits while the receiver has no room, or more than `window` bytes are not acknowledged."""
        self._check_open()
        described = [_describe(name, one) for name, one in tensors.items()]
        rows = {len(one) for one in tensors.values()}
        if len(rows) != 1 or rows == {0}:
            raise ValueError(f"the tensors of a frame have the same number of rows, and at least one; these have {rows}")
        if self._tensors and self._tensors != described:
            raise ValueError("all frames have the same tensors, with the same types and shapes of rows, in the same order")
        payload = [_bytes_of(one) for one in tensors.values()]
        self._put(frame(self._source, self._sequence, rows.pop(), described, payload))
        self._tensors = described

    def end_epoch(self) -> None:
        """What was sent so far is one epoch, and what follows belongs to the next: at the receiver another `for`."""
        self._check_open()
        self._put(frame(self._source, self._sequence, 0, [], [], ENDS_EPOCH))

    def flush(self) -> None:
        """Waits until everything is acknowledged."""
        self._check_open()
        self._until(lambda: not self._kept)

    def close(self) -> None:
        """The last frame, which has no rows. Waits until everything is acknowledged."""
        if self._closed:
            return
        self._put(frame(self._source, self._sequence, 0, [], [], IS_LAST))
        self._until(lambda: not self._kept)
        # So that the receiver need not wait for another connection; it does so for a while if this does not arrive.
        with contextlib.suppress(OSError):
            self._link.write(ACK.pack(self._sequence))
            while self._link.has_to_write:
                self._link.step()
        self.abort()

    def abort(self) -> None:
        """Ends the connection without a last frame."""
        self._closed = True
        self._link.close()

    async def asend(self, **tensors: Any) -> None:
        """send(), in a thread that the event loop does not wait for. A task that is cancelled has sent the frame all the same."""
        await asyncio.to_thread(self.send, **tensors)

    async def aclose(self) -> None:
        """close(), likewise."""
        await asyncio.to_thread(self.close)

    @property
    def received(self) -> int:
        """How many frames of this source the receiver has: those that send() is given first, after `resume`, go nowhere."""
        self._check_open()
        self._until(lambda: True)
        return self._received

    @property
    def acknowledged(self) -> int:
        """How many frames the receiver has acknowledged, as far as that has come."""
        with contextlib.suppress(OSError):  # the next call makes another connection
            self._link.read_what_is_there()
            self._take_acknowledgements()
        return self._acknowledged

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._sequence} frames, {self._acknowledged} acknowledged"
        return f"<gpurx.TensorSender of source {self._source} to {self._address}: {state}>"

    # ---- the first connection ----

    def _connect_first(self) -> None:
        self._link.connect()
        self._has_connected = True

    def _wait_for_receiver(self) -> None:
        """Until there is the first connection."""
        end = _now() + self._connect_timeout
        pause = _FIRST_PAUSE
        while not self._has_connected:
            try:
                self._connect_first()
            except OSError as error:
                left = end - _now()
                if left <= 0 or not _is_not_yet(error):
                    self._fail(error)
                    raise self._not_there(error) from error
                _pause(min(pause, left))
                pause = min(2 * pause, _MOST_PAUSE)

    def _not_there(self, error: OSError) -> OSError:
        why = error.strerror or str(error)
        if not _is_not_yet(error):
            advice = "check the host and the port"
        else:
            advice = (
                f"tried for {self._connect_timeout:g} s: start gpurx.TensorStream, or another receiver, there, or give a larger "
                "connect_timeout"
            )
        kind = OSError if isinstance(error, socket.gaierror) else type(error)
        return kind(error.errno or errno.ETIMEDOUT, f"connect source {self._source} to {self._address}: {why}; {advice}")

    # ---- frames ----

    def _check_open(self) -> None:
        if self._closed:
            why = f"its connection has ended: {self._ended_by}" if self._ended_by else "it is closed"
            raise ValueError(f"the sender of source {self._source} to {self._address} cannot send: {why}")

    def _put(self, made: list[bytes]) -> None:
        size = _size_of(made)
        self._until(lambda: not self._kept or self._kept_size + size <= self._window)
        sequence = self._sequence
        self._sequence += 1
        if sequence < self._acknowledged:
            return
        self._kept.append((sequence, made))
        self._kept_size += size
        if sequence >= self._received:
            self._link.write(*made)
            self._received = sequence + 1
        self._until(lambda: not self._link.has_to_write)

    def _until(self, done: Callable[[], bool]) -> None:
        """Writes and reads until it is so, through as many connections as that takes."""
        self._wait_for_receiver()
        failing_since: float | None = None
        acknowledged = self._acknowledged
        while True:
            try:
                self._link.connect()
                if not self._link.is_greeted:
                    self._greet()
                while not done():
                    self._link.step()
                    self._take_acknowledgements()
                return
            except TimeoutError as error:
                self._fail(error)
                raise self._described(error) from error
            except OSError as error:
                self._link.close()
                now = time.monotonic()
                if failing_since is None or self._acknowledged > acknowledged:
                    failing_since, acknowledged = now, self._acknowledged
                if now - failing_since >= self._reconnect:
                    self._fail(error)
                    raise self._described(error) from error
                time.sleep(min(0.05, self._reconnect))
            except Refused as error:
                self._fail(error)
                kind = PermissionError if error.is_secret else ConnectionRefusedError
                number = errno.EACCES if error.is_secret else errno.ECONNREFUSED
                raise kind(number, f"{self._doing()}: the receiver refuses: {error}") from None
            except BaseException as error:
                self._fail(error)
                raise

    def _greet(self) -> None:
        """Says who this is, and queues what the receiver does not have."""
        link = self._link
        random = secrets.token_bytes(NONCE_SIZE) if self._secret else bytes(NONCE_SIZE)
        said = hello(self._source, self._sender, random, has_secret=bool(self._secret), resumes=self._resume)
        link.write(said)
        begin = link.read(BEGIN_SIZE)
        challenge = b""
        if is_challenge(begin):
            challenge = begin + link.read(CHALLENGE_SIZE - BEGIN_SIZE)
            if not self._secret:
                raise Refused("it wants a secret, and this sender has none", is_secret=True)
            link.write(prove(self._secret, said, challenge))
            begin = link.read(BEGIN_SIZE)
            if is_challenge(begin):
                raise Refused("it asks for the secret twice", is_secret=True)
        welcome = read_welcome(begin + link.read(WELCOME_SIZE - BEGIN_SIZE), self._secret, said, challenge)
        oldest = self._kept[0][0] if self._kept else self._sequence
        if welcome.expected < oldest:
            raise Refused(
                f"it begins again with frame {welcome.expected}, and those before frame {oldest} were acknowledged and are "
                "gone here: start the sender again, with resume=True",
                is_secret=False,
            )
        self._forget(welcome.acknowledged)
        self._received = welcome.expected
        for sequence, made in self._kept:
            if sequence >= welcome.expected:
                link.write(*made)
                self._received = sequence + 1
        link.is_greeted = True

    def _take_acknowledgements(self) -> None:
        for sequence in self._link.acknowledgements():
            self._forget(sequence + 1)

    def _forget(self, count: int) -> None:
        self._acknowledged = max(self._acknowledged, count)
        while self._kept and self._kept[0][0] < count:
            self._kept_size -= _size_of(self._kept.popleft()[1])

    # ---- errors ----

    def _fail(self, error: BaseException) -> None:
        self._ended_by = str(error) or type(error).__name__
        self.abort()

    def _doing(self) -> str:
        return f"send frame {self._sequence} of source {self._source} to {self._address}"

    def _described(self, error: OSError) -> OSError:
        """The same, with what was being done."""
        if isinstance(error, TimeoutError):
            return TimeoutError(f"{self._doing()}: the receiver took nothing in time ({error}): it has no room, or has stopped")
        waited = f", for {self._reconnect} s; {len(self._kept)} frames are not acknowledged" if self._reconnect else ""
        return type(error)(
            error.errno or errno.ECONNRESET,
            f"{self._doing()}: {error.strerror or error}{waited}; TensorStream.errors() of the receiver says why",
        )

    def __enter__(self) -> TensorSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    async def __aenter__(self) -> TensorSender:
        if not self._has_connected:
            await asyncio.to_thread(self._wait_for_receiver)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            self.abort()
