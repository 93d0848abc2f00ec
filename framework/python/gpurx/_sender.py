# SPDX-License-Identifier: Apache-2.0
"""The other end of a TensorStream, in Python alone: for workers that prepare data, and for tests."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any

# As the protocol has them (framework/ingest, frame.hpp): little endian, without padding.
_START = struct.Struct("<4sHHIIQQQII")
_TENSOR = struct.Struct("<16sHHI7Q")
_IS_LAST = 2

# numpy's kind of an element type: DLPack's number of it.
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


def _head(source: int, sequence: int, rows: int, payload: int, tensors: list[bytes], last: bool) -> bytes:
    flags = _IS_LAST if last else 0
    start = _START.pack(b"gpTS", 1, flags, source, len(tensors), sequence, rows, payload, 0, 0)
    return start + b"".join(tensors)


def _describe(name: str, array: Any) -> bytes:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in _KINDS or array.dtype.byteorder == ">":
        raise TypeError(f"{name}: elements of type {array.dtype} cannot be sent")
    shape = array.shape[1:]
    if not name.isascii() or not 0 < len(name) < 16 or len(shape) > 7:
        raise ValueError(f"{name}: a tensor has a name of 1 to 15 ASCII characters, and at most 7 dimensions besides its rows")
    code = _KINDS[kind] << 8 | (8 * size)
    return _TENSOR.pack(name.encode(), code, len(shape), 0, *shape, *[0] * (7 - len(shape)))


class TensorSender:
    """Sends rows of tensors to a TensorStream.

        with gpurx.TensorSender("10.77.0.1:9000", source=worker) as sender:
            for images, labels in dataset:
                sender.send(x=images, y=labels)

    What is sent are numpy arrays, contiguous, of which the first dimension is the rows: all of one call have as many. All
    calls have the same tensors. close(), or the end of the block, says that there are no more; an exception in the block
    does not, and the receiver is told that this source was cut.

    Needs neither a GPU nor the rest of the package, and may be used in workers that were forked.
    """

    def __init__(self, address: str, *, source: int = 0, timeout: float | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket: socket.socket | None = socket.create_connection((host.strip("[]"), int(port)), timeout)
        self._source = source
        self._sequence = 0

    def send(self, **tensors: Any) -> None:
        """One frame. Waits while the receiver has no room."""
        if self._socket is None:
            raise ValueError("the sender is closed")
        rows = {len(one) for one in tensors.values()}
        if len(rows) != 1 or rows == {0}:
            raise ValueError(f"the tensors of a frame have the same number of rows, and at least one; these have {rows}")
        heads = [_describe(name, one) for name, one in tensors.items()]
        payload = sum(one.nbytes for one in tensors.values())
        self._socket.sendall(_head(self._source, self._sequence, rows.pop(), payload, heads, False))
        for one in tensors.values():
            self._socket.sendall(memoryview(one).cast("B"))
        self._sequence += 1

    def close(self) -> None:
        """The last frame, which has no rows."""
        if self._socket is None:
            return
        self._socket.sendall(_head(self._source, self._sequence, 0, 0, [], True))
        self.abort()

    def abort(self) -> None:
        """Ends the connection without a last frame."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> TensorSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
