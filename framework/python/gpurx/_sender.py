# SPDX-License-Identifier: Apache-2.0
"""The other end of a TensorStream: for workers that prepare data, and for tests."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._error import Error
from ._native import IngestErrorCode, Sender

_LEAST_SECRET = 16

# The name that numpy, ml_dtypes or torch has for an element type: DLPack's number of it, and the bits. No others are sent.
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
    """As both sides use it. Empty: there is none."""
    if given is None:
        return b""
    secret = given.encode() if isinstance(given, str) else bytes(given)
    if len(secret) < _LEAST_SECRET:
        raise ValueError(
            f"a secret must have at least {_LEAST_SECRET} random bytes, as of secrets.token_hex(); this one "
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


def _described(name: str, array: Any) -> tuple[str, int, tuple[int, ...]]:
    """Its name, element type and shape of a row, as the protocol has them."""
    kind, width = _type_of(name, array)
    if not 0 < len(name) < 16 or not all("!" <= one <= "~" for one in name):
        raise ValueError(f"{name!r}: a tensor has a name of 1 to 15 printable ASCII characters, none of them a space")
    if not array.shape:
        raise ValueError(f"{name}: a single number has no rows; the first dimension of a tensor is its rows")
    row = tuple(array.shape[1:])
    if len(row) > 7 or 0 in row:
        raise ValueError(f"{name}: a row has at most 7 dimensions, and no dimension of 0; this one has {row}")
    return name, kind << 8 | width, row


def _row_major(array: Any) -> tuple[Any, int, int]:
    """As it goes to the wire: the same or a copy, the address of its bytes, and how many. By their address: not every
    element type of torch is one of numpy's, and not every torch can do with this numpy."""
    if not _is_torch(array):
        here = array if array.flags.c_contiguous else array.copy(order="C")
        return here, here.ctypes.data, here.nbytes
    here = array.detach().cpu().contiguous()
    if here.is_conj() or here.is_neg():
        here = here.resolve_conj().resolve_neg()
    return here, here.data_ptr(), here.numel() * here.element_size()


def _is_refusal(error: Error) -> bool:
    """By the receiver, or by who else answers there."""
    return error.category == "gpurx.ingest" or error.code == errno.EPROTO


def _as_python_has_it(error: Error) -> Exception:
    if error.code is IngestErrorCode.WRONG_SECRET:
        return PermissionError(errno.EACCES, f"{error.operation} {error.object}: the receiver refuses: {error.advice}")
    if _is_refusal(error):
        return ConnectionRefusedError(
            errno.ECONNREFUSED, f"{error.operation} {error.object}: the receiver refuses: {error.advice}"
        )
    if error.category != "system":  # a name that is none: no number of errno
        return error if error.category == "gpurx" else OSError(str(error))
    return ValueError(error.advice) if error.code == errno.EINVAL else OSError(error.code, str(error))


class TensorSender:
    """Sends rows of tensors to a TensorStream.

        with gpurx.TensorSender("10.77.0.1:9000", source=worker) as sender:
            for images, labels in dataset:
                sender.send(x=images, y=labels)

    Tensors are numpy arrays or torch's; their first dimension is the rows, the same number in one call. All calls have the same
    tensors, in the same order. A tensor that is not row-major is copied first. close(), or the end of the block, ends the
    source. An exception in the block does not: the receiver sees a broken source then. `async with`, asend() and aclose() are
    the same for coroutines.

    **Every frame arrives once.** A frame has a number and a CRC32C, and stays here until the receiver acknowledges it: when it
    has the frame, or, by the stream's `acknowledge`, when its rows were taken or saved. The sender replaces a broken
    connection, for `reconnect` seconds without an acknowledgement, and sends the missing frames again. It keeps at most `window`
    bytes; then send() waits for acknowledgements. So `window` must exceed the batches that the receiver queues if these are
    to be taken first. close() waits for the last acknowledgement. Nothing runs in the background: the next call notices a
    broken connection, and must come within the stream's reconnect_timeout.

    The sender waits `connect_timeout` seconds for a receiver that does not listen yet, with pauses that grow to 2 s. Then it
    raises ConnectionRefusedError, or the last error, with the address. 0: one attempt. The constructor waits; in an event loop
    `async with` waits in a thread, or else the first call.

    `source` is the number of the sender in the stream, unique also over time; the receiver refuses a second one and reports an
    error. A restarted process that sends the same rows from the first again sets `resume`: the sender skips the frames that
    the receiver has, and `received` is their number.

    `secret` is the stream's. Both sides prove that they have it without sending it.

    Data that cannot be sent raises TypeError or ValueError before a byte is sent, and the next call may succeed. Any other end
    of send() ends the sender, too: that frame may have arrived or not. Examples are `timeout` seconds without progress of the
    receiver, and Ctrl-C. PermissionError: the receiver has another secret. ConnectionRefusedError: the receiver no longer
    listens, or refuses this source, with the reason.

    A receiver drops a connection without bytes for its stall_timeout, five minutes by default; the next send() connects again.
    That is harmless before the first frame.

    Needs neither a GPU nor a stream in its process. Forked workers may use it. For one thread at a time.
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
        try:
            self._native = Sender(address, source, resume, secret_of(secret), connect_timeout, reconnect, timeout, window)
        except Error as error:
            raise _as_python_has_it(error) from None
        if not _has_event_loop():
            self._run(self._native.connect)

    def send(self, **tensors: Any) -> None:
        """Sends one frame. Waits while the receiver has no room, or more than `window` bytes are unacknowledged."""
        self._check_open()
        described = [_described(name, one) for name, one in tensors.items()]
        arrays = [_row_major(one) for one in tensors.values()]
        self._run(self._native.send, [(*what, address, size) for what, (_, address, size) in zip(described, arrays)])

    def end_epoch(self) -> None:
        """Ends the epoch: later frames belong to the next one, another `for` at the receiver."""
        self._check_open()
        self._run(self._native.end_epoch)

    def flush(self) -> None:
        """Waits until everything is acknowledged."""
        self._check_open()
        self._run(self._native.flush)

    def close(self) -> None:
        """Sends the last frame, which has no rows. Waits until everything is acknowledged."""
        if not self._closed:
            self._run(self._native.close)
            self._closed = True

    def abort(self) -> None:
        """Ends the connection without a last frame, and the calls of other threads that wait."""
        self._closed = True
        self._native.abort()

    async def asend(self, **tensors: Any) -> None:
        """send() in a thread, for coroutines. Cancelling the task does not stop the frame."""
        await asyncio.to_thread(self.send, **tensors)

    async def aclose(self) -> None:
        """close() in a thread, for coroutines."""
        await asyncio.to_thread(self.close)

    @property
    def received(self) -> int:
        """Frames of this source that the receiver has. After `resume`, send() skips that many first frames."""
        self._check_open()
        self._run(self._native.greet)
        return self._native.received()

    @property
    def acknowledged(self) -> int:
        """Frames that the receiver has acknowledged, as far as known here."""
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
        """What was not sent for another reason than what it is ends the sender."""
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
