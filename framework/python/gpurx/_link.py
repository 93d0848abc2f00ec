# SPDX-License-Identifier: Apache-2.0
"""One TCP connection of a TensorSender after the other: reads acknowledgements while it writes, so that neither side waits
for the other to read."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ._protocol import ACK

_SOME = 1 << 20
# Seconds for an answer to the hello, which needs no room at the receiver.
_GREETING = 60.0
# A receiver that says nothing any more, not even goodbye, is found dead after half a minute.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Peer(NamedTuple):
    address: tuple[str, int]
    timeout: float | None  # seconds without a byte in either direction, while one is waited for


class Link:
    """What is written is queued; step() and read() move it. They raise TimeoutError, and ConnectionError at the end."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._socket: socket.socket | None = None
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self.is_greeted = False

    def connect(self) -> None:
        """If there is no connection, or only one that was let go before it was used: then the receiver needs no reason, for
        want of a place, or of patience. It sends nothing before it is spoken to, so all that can be there is the end."""
        if self._socket is not None and not self.is_greeted and self._poll(select.POLLIN, 0):
            self.close()
        if self._socket is None:
            self._socket = socket.create_connection(*self._peer)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._outgoing.clear()
        self._incoming.clear()
        self.is_greeted = False

    @property
    def has_to_write(self) -> bool:
        return bool(self._outgoing)

    def write(self, *data: bytes) -> None:
        self._outgoing.extend(memoryview(one) for one in data if one)

    def read(self, size: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._incoming) < size:
            self.step()
        data = bytes(self._incoming[:size])
        del self._incoming[:size]
        return data

    def acknowledgements(self) -> Iterator[int]:
        while len(self._incoming) >= ACK.size:
            yield ACK.unpack(self.read(ACK.size))[0]

    def read_what_is_there(self) -> None:
        if self.is_greeted and self._poll(select.POLLIN, 0):
            self._read_some()

    def step(self) -> None:
        """Waits until something can be read, or written if there is something to write, and does that."""
        limit = self._peer.timeout
        if limit is None and not self.is_greeted:
            limit = _GREETING
        ready = self._poll(select.POLLIN | (select.POLLOUT if self._outgoing else 0), limit)
        if not ready:
            raise TimeoutError("timed out")
        if ready & ~select.POLLOUT:
            self._read_some()
        if ready & select.POLLOUT:
            self._write_some()

    def _poll(self, events: int, seconds: float | None) -> int:
        assert self._socket
        poll = select.poll()
        poll.register(self._socket.fileno(), events)
        found = poll.poll(None if seconds is None else seconds * 1000)
        return found[0][1] if found else 0

    def _read_some(self) -> None:
        assert self._socket
        try:
            data = self._socket.recv(_SOME)
        except BlockingIOError:
            return
        if not data:
            unasked = "" if self.is_greeted else " before it answered: it has no place, or is older than version 2 of the protocol"
            raise ConnectionResetError(f"the receiver has closed the connection{unasked}")
        self._incoming += data

    def _write_some(self) -> None:
        assert self._socket
        first = self._outgoing.popleft()
        try:
            sent = self._socket.send(first)
        except BlockingIOError:
            sent = 0
        if sent < len(first):
            self._outgoing.appendleft(first[sent:])
