# SPDX-License-Identifier: Apache-2.0
"""Senders of tensors to a TensorStream: for workers that prepare data, and for tests."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._arguments import flag, seconds, text, whole
from ._convert import is_torch
from ._error import Error
from ._native import IngestErrorCode, Sender

_LEAST_SECRET = 16

# Element types that can be sent: the name in numpy, ml_dtypes or torch; DLPack's number; the bits.
_TYPES = {
    "int8": (0, 8), "int16": (0, 16), "int32": (0, 32), "int64": (0, 64), "uint8": (1, 8), "uint16": (1, 16),
    "uint32": (1, 32), "uint64": (1, 64), "float16": (2, 16), "float32": (2, 32), "float64": (2, 64), "bfloat16": (4, 16),
    "complex64": (5, 64), "complex128": (5, 128), "bool": (6, 8), "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8), "float8_e8m0fnu": (14, 8),
}  # fmt: skip


def _has_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def secret_of(given: str | bytes | None) -> bytes:
    """Return the secret as bytes, as both sides use it. Empty: no secret. Raises ValueError if it is too short."""
    if given is None:
        return b""
    secret = given.encode() if isinstance(given, str) else bytes(given)
    if len(secret) < _LEAST_SECRET:
        raise ValueError(
            f"a secret must have at least {_LEAST_SECRET} random bytes, as of secrets.token_hex(); this one "
            f"has {len(secret)}"
        )
    return secret


def _type_of(name: str, array: Any) -> tuple[int, int]:
    """Return DLPack's number and the bits of the element type."""
    if is_torch(array):
        found = _TYPES.get(str(array.dtype).removeprefix("torch."))
    elif not all(hasattr(array, one) for one in ("dtype", "shape", "nbytes", "flags")):
        raise TypeError(
            f"{name}: a {type(array).__name__} is neither a numpy array, as numpy.asarray() makes, nor a torch tensor"
        )
    else:
        found = _TYPES.get(array.dtype.name) if array.dtype.isnative else None
    if found is None:
        raise TypeError(
            f"{name}: elements of type {array.dtype} cannot be sent; these can, in this machine's byte order: {', '.join(_TYPES)}"
        )
    return found


def _described(name: str, array: Any) -> tuple[str, int, tuple[int, ...]]:
    """Return name, element type and shape of a row as the protocol encodes them."""
    kind, width = _type_of(name, array)
    if not 0 < len(name) < 16 or not all("!" <= one <= "~" for one in name):
        raise ValueError(f"{name!r}: a tensor must have a name of 1 to 15 printable ASCII characters without spaces")
    if not array.shape:
        raise ValueError(f"{name}: a single number has no rows; the first dimension of a tensor is its rows")
    row = tuple(array.shape[1:])
    if len(row) > 7 or 0 in row:
        raise ValueError(f"{name}: a row must have at most 7 dimensions, and no dimension of 0; this one has {row}")
    return name, kind << 8 | width, row


def row_major(array: Any) -> tuple[Any, int, int]:
    """Return the array or a row-major copy, the address of its bytes, and their count.

    The address avoids numpy: it lacks some element types of torch, and not every torch works with this numpy.
    """
    if not is_torch(array):
        here = array if array.flags.c_contiguous else array.copy(order="C")
        return here, here.ctypes.data, here.nbytes
    here = array.detach().cpu().contiguous()
    if here.is_conj() or here.is_neg():
        here = here.resolve_conj().resolve_neg()
    return here, here.data_ptr(), here.numel() * here.element_size()


def _is_refusal(error: Error) -> bool:
    """Return whether the receiver, or another server at its address, refused."""
    return error.category == "gpurx.ingest" or error.code == errno.EPROTO


def _as_python_has_it(error: Error) -> Exception:
    if error.code is IngestErrorCode.WRONG_SECRET:
        return PermissionError(errno.EACCES, f"{error.operation} {error.object}: the receiver refuses: {error.advice}")
    if _is_refusal(error):
        return ConnectionRefusedError(
            errno.ECONNREFUSED, f"{error.operation} {error.object}: the receiver refuses: {error.advice}"
        )
    if error.category != "system":  # an unknown host name has no number of errno
        return error if error.category == "gpurx" else OSError(str(error))
    return ValueError(error.advice) if error.code == errno.EINVAL else OSError(error.code, str(error))


class TensorSender:
    """Send rows of tensors to a TensorStream.

        with gpurx.TensorSender("10.77.0.1:9000", source=worker) as sender:
            for images, labels in dataset:
                sender.send(x=images, y=labels)

    send() takes numpy arrays or torch tensors. Their first dimension is the rows, and all arrays of a call have the same
    number of rows. All calls have the same tensors in the same order. An array that is not row-major is copied first.

    close(), or the end of the `with` block, ends the stream of this source. An exception in the block does not: the
    receiver then reports that this source was cut. `async with`, asend() and aclose() serve coroutines.

    **Delivery.** Every frame arrives once. Each frame has a number and a CRC32C, and the sender keeps it until the receiver
    acknowledges it. The stream's `acknowledge` sets the time: when the frame was received, or when its rows were taken or
    saved. The sender replaces a lost connection for up to `reconnect` seconds without an acknowledgement, and sends the
    missing frames again. Nothing runs in the background: the next call notices a lost connection. That call must come
    within the stream's reconnect_timeout. close() waits for the last acknowledgement.

    **Arguments.**

    * address: "HOST:PORT" of the receiver.
    * source: number of this source. No other sender of the stream may have it, now or before. The receiver refuses a second
      one, and reports it as its own error.
    * timeout: seconds for the receiver to take or acknowledge data that a call waits for. None: no limit.
    * resume: set it in a restarted process that sends the same rows again from the first. Frames that the receiver has are
      not sent; `received` has their number.
    * secret: the stream's secret, at least 16 bytes. Both sides prove that they know it without sending it.
    * connect_timeout: seconds to wait for a receiver that does not listen yet. The pauses between attempts grow to 2 s.
      After that the call raises ConnectionRefusedError, or the error of the last attempt, which names the address. 0: one
      attempt. The constructor waits. In an event loop `async with` waits in a thread, or else the first call waits.
    * reconnect: seconds without an acknowledgement for which the sender reconnects.
    * window: bytes of frames that are not acknowledged. At this limit send() waits. If frames are acknowledged when taken
      or saved, `window` must exceed the batches that the receiver fills and queues.

    **Errors.** An array that cannot be sent raises TypeError or ValueError before any byte is sent, and the sender stays
    usable. Every other failure of send(), such as `timeout` or Ctrl-C, ends the sender; that frame may have arrived.
    PermissionError: the secret is not the receiver's. ConnectionRefusedError: nothing listens any more, or the receiver
    refuses this source; the text has the reason.

    A receiver closes a connection that brings nothing for its stall_timeout, by default five minutes. The next send() opens
    another. Before the first frame this is harmless.

    The sender needs neither a GPU nor a stream in its process, and works in forked workers. Only one thread at a time may
    use it.
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
        self._address = address
        self._source = source
        self._closed = False
        self._ended_by = ""
        options = (
            text("address", address),
            whole("source", source, 32),
            flag("resume", resume),
            secret_of(secret),
            seconds("connect_timeout", connect_timeout),
            seconds("reconnect", reconnect),
            None if timeout is None else seconds("timeout", timeout),
            whole("window", window),
        )
        try:
            self._native = Sender(*options)
        except Error as error:
            raise _as_python_has_it(error) from None
        if not _has_event_loop():
            self._run(self._native.connect)

    def send(self, **tensors: Any) -> None:
        """Send one frame: tensors by name, all with the same number of rows.

        Waits while the receiver has no room, or while more than `window` bytes are not acknowledged.
        """
        self._check_open()
        described = [_described(name, one) for name, one in tensors.items()]
        arrays = [row_major(one) for one in tensors.values()]
        self._run(self._native.send, [(*each, address, size) for each, (_, address, size) in zip(described, arrays)])

    def end_epoch(self) -> None:
        """End an epoch. Later frames belong to the next epoch, which is another `for` at the receiver."""
        self._check_open()
        self._run(self._native.end_epoch)

    def flush(self) -> None:
        """Wait until all frames are acknowledged."""
        self._check_open()
        self._run(self._native.flush)

    def close(self) -> None:
        """Send the last frame, which has no rows, and wait until all frames are acknowledged.

        Do not call it in the thread that receives from this sender.
        """
        if not self._closed:
            self._run(self._native.close)
            self._closed = True

    def abort(self) -> None:
        """Close the connection without a last frame, and end a call that waits in another thread."""
        self._closed = True
        self._native.abort()

    async def asend(self, **tensors: Any) -> None:
        """Send one frame as send() does, in a thread. A cancelled task still sends the frame."""
        await asyncio.to_thread(self.send, **tensors)

    async def aclose(self) -> None:
        """Close as close() does, in a thread."""
        await asyncio.to_thread(self.close)

    @property
    def received(self) -> int:
        """Number of frames of this source that the receiver has. Connects first, if necessary.

        After `resume`, send() discards this many frames at the beginning.
        """
        self._check_open()
        self._run(self._native.greet)
        return self._native.received()

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged frames, as far as acknowledgements have arrived."""
        return self._native.acknowledged()

    def __repr__(self) -> str:
        frames, acknowledged = self._native.frames(), self._native.acknowledged()
        state = "closed" if self._closed else f"{frames} frames, {acknowledged} acknowledged"
        return f"<gpurx.TensorSender of source {self._source} to {self._address}: {state}>"

    def _check_open(self) -> None:
        if self._closed:
            why = f"its connection has ended: {self._ended_by}" if self._ended_by else "it is closed"
            raise ValueError(f"the sender of source {self._source} to {self._address} cannot send: {why}")

    def _run(self, operation: Callable[..., None], *arguments: Any) -> None:
        """Run an operation. A failure ends the sender, unless an argument caused it."""
        try:
            operation(*arguments)
        except Error as met:
            error = _as_python_has_it(met)
            if isinstance(error, OSError):
                self._end(met.advice if _is_refusal(met) else str(error))
            raise error from None
        except BaseException as error:
            self._end(str(error) or type(error).__name__)
            raise

    def _end(self, why: str) -> None:
        self._ended_by = self._ended_by or why
        self.abort()

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
        await asyncio.to_thread(self._run, self._native.connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.aclose()
        else:
            self.abort()
