# SPDX-License-Identifier: GPL-2.0-only
"""A TCP flow that runs in the background for as long as it is let."""

import random
import socket
import struct
import threading
from typing import Optional

import devmem
import lab

# The stream repeats a block whose length fits no power of two
BLOCK = random.Random(0).randbytes(1_000_003)
ABORT = struct.pack("=ii", 1, 0)


class Flow:
    """Sends from one end to the other and compares what arrives.

    Breaking off at any moment is fine, another byte than expected is not.
    With a binding the receiver takes device memory, and keeps up to `hold`
    pages on loan.
    """

    def __init__(self, version: int, inward: bool = True,
                 binding: Optional[devmem.Binding] = None,
                 queue: int = 0, hold: int = 0) -> None:
        self.binding = binding
        self.received = 0
        self.problem = ""
        self._hold = hold
        self._stop = threading.Event()
        here, there = (None, "peer") if inward else ("peer", None)
        address = (lab.LOCAL if inward else lab.PEER)[version]
        with lab.listen(address, here) as server:
            server.settimeout(60)
            port = server.getsockname()[1]
            self.rule = None
            if binding:
                self.rule = lab.add_rule(
                    f"tcp{version} dst-port {port} action {queue}")
            self._out = lab.connect(address, port, there)
            self._sock, _ = server.accept()
        for sock in (self._out, self._sock):
            sock.settimeout(0.3)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        self._threads = [threading.Thread(target=self._send, daemon=True),
                         threading.Thread(target=self._receive, daemon=True)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Break off, both ends."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            if thread.is_alive():
                self.problem = self.problem or "a thread hangs"
        self._out.close()
        self._sock.close()

    def _send(self) -> None:
        position = 0
        while not self._stop.is_set():
            try:
                position += self._out.send(BLOCK[position:position + (1 << 17)])
                position %= len(BLOCK)
            except TimeoutError:
                continue
            except OSError:
                return

    def _receive(self) -> None:
        try:
            if self.binding:
                self._receive_pages(self.binding)
            else:
                while not self._stop.is_set():
                    try:
                        self._compare(self._sock.recv(1 << 17))
                    except TimeoutError:
                        continue
        except OSError:
            return
        except Exception as error:  # pylint: disable=broad-except
            self.problem = f"{type(error).__name__}: {error}"

    def _receive_pages(self, binding: devmem.Binding) -> None:
        receiver = devmem.Receiver(self._sock, binding, self._compare)
        give_back, held = receiver.release, []

        def release(tokens: list[int]) -> None:
            held.extend(tokens)
            if len(held) > self._hold:
                give_back(held)
                held.clear()

        receiver.release = release  # type: ignore[method-assign]
        while not self._stop.is_set():
            try:
                receiver.step()
            except TimeoutError:
                if held:
                    give_back(held)
                    held.clear()

    def _compare(self, data: bytes) -> None:
        start = self.received % len(BLOCK)
        want = (BLOCK + BLOCK[:len(data)])[start:start + len(data)]
        if data != want:
            raise ValueError(f"other bytes than sent after {self.received}")
        self.received += len(data)
