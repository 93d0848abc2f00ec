# SPDX-License-Identifier: Apache-2.0
"""A network that fails: what goes through it is cut off, or changed, where a test says so."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

# After so many bytes of a direction, in this way.
Fate = Callable[[int], "Cut | Flip | None"]


class Cut(NamedTuple):
    """The connection, both ways."""

    after: int
    of_answers: bool = False
    resets: bool = True


class Flip(NamedTuple):
    """One bit of what the sender sends."""

    at: int


class Proxy:
    """Between those who connect to `address` and who listens at `to`. fate(n) says what becomes of connection n, from 0."""

    def __init__(self, to: str, fate: Fate) -> None:
        host, _, port = to.rpartition(":")
        self._to = (host, int(port))
        self._fate = fate
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listens.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listens.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listens.accept()
            except OSError:
                return
            fate = self._fate(self.connections)
            self.connections += 1
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            for source, target, answers in ((near, far, False), (far, near, True)):
                threading.Thread(target=_forward, args=(source, target, fate, answers), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, fate: Cut | Flip | None, answers: bool) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := bytearray(source.recv(1 << 16)):
            if isinstance(fate, Flip) and not answers and 0 <= fate.at - passed < len(data):
                data[fate.at - passed] ^= 1
            if isinstance(fate, Cut) and fate.of_answers == answers and passed + len(data) >= fate.after:
                target.sendall(data[: fate.after - passed])
                return _end(source, target, resets=fate.resets)
            target.sendall(data)
            passed += len(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _end(*both: socket.socket, resets: bool) -> None:
    for one in both:
        with contextlib.suppress(OSError):
            if resets:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Also wakes the thread that reads it: as long as that does, the kernel closes nothing.
            one.shutdown(socket.SHUT_RD if resets else socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def proxy(to: str, fate: Fate) -> Iterator[Proxy]:
    made = Proxy(to, fate)
    try:
        yield made
    finally:
        made.close()
