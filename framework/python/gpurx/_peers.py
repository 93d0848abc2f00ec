# SPDX-License-Identifier: Apache-2.0
"""Blocks of memory that the ranks of a machine share. One rank fills a block, and the others map it."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from typing import NamedTuple

from ._error import Error

# Ranks connect right after they have told each other their names.
_CONNECT_SECONDS = 60.0

_CREDENTIALS = struct.Struct("3i")  # process, user, group
_SIZE = struct.Struct("=cQ")
_BLOCK, _END, _FAILED = b"b", b"e", b"f"


class Block(NamedTuple):
    """A file in memory, which lives as long as a descriptor or mapping of it."""

    descriptor: int
    size: int

    @staticmethod
    def of(size: int) -> Block:
        """Make a block. /dev/shm is often too small, so the block is in no file system."""
        block = Block(os.memfd_create("gpurx"), size)
        os.truncate(block.descriptor, size)
        return block

    def shared(self) -> mmap.mmap:
        """Map the block. Every process sees what is written."""
        return mmap.mmap(self.descriptor, self.size)

    def private(self) -> mmap.mmap:
        """Map the block, and close the descriptor. Only this process sees what it writes."""
        try:
            return mmap.mmap(self.descriptor, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(self.descriptor)


def failure_of(rank: int, text: str) -> Error:
    return Error(f"load on rank {rank}: {text}", 125, "system", "load", f"rank {rank}", "", text)


class Peers:
    """Sockets to the other ranks of the machine, for blocks. Processes of other users cannot connect."""

    def __init__(self) -> None:
        self.name = f"gpurx-{secrets.token_hex(16)}"
        self._sockets: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{self.name}")
        self._listener.listen(socket.SOMAXCONN)
        self._listener.settimeout(_CONNECT_SECONDS)

    @property
    def are_none(self) -> bool:
        return not self._sockets

    def meet(self, here: int, names: Mapping[int, str]) -> None:
        """Connect to the ranks of these names. Each of them calls it, too."""
        for rank, name in names.items():
            if rank < here:
                self._sockets[rank] = one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                one.connect(f"\0{name}")
                one.send(str(here).encode())
        while absent := {*names} - {*self._sockets, here}:
            try:
                one = self._listener.accept()[0]
            except TimeoutError:
                raise failure_of(min(absent), f"it has not connected within {_CONNECT_SECONDS:.0f} s") from None
            one.setblocking(True)
            credentials = one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
                one.close()
                continue
            self._sockets[int(one.recv(32))] = one
        self._listener.close()

    def give(self, block: Block) -> None:
        """Pass a block to all. The caller keeps its descriptor."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [block.descriptor]))]
        self._send(_SIZE.pack(_BLOCK, block.size), rights)

    def end(self) -> None:
        """Tell all that no block follows."""
        self._send(_END)

    def fail(self, text: str) -> None:
        """Tell all that no block follows because of a failure."""
        self._send(_FAILED + text.encode()[:10_000])

    def take(self, rank: int) -> Block | None:
        """Wait for the next block of a rank, or None after the last one. Raises an Error if that rank has failed or ended."""
        message, descriptors = self._receive(rank)
        if message[:1] == _BLOCK:
            return Block(descriptors[0], _SIZE.unpack(message)[1])
        if message[:1] == _FAILED:
            raise failure_of(rank, message[1:].decode(errors="replace"))
        if not message:
            raise failure_of(rank, "it has ended before the last tensor")
        return None

    def close(self) -> None:
        self._listener.close()
        for one in self._sockets.values():
            one.close()

    def _send(self, message: bytes, rights: list[tuple[int, int, array.array[int]]] | None = None) -> None:
        for one in self._sockets.values():
            with contextlib.suppress(ConnectionError):  # take() reports it
                one.sendmsg([message], rights or [])

    def _receive(self, rank: int) -> tuple[bytes, list[int]]:
        one = self._sockets[rank]
        try:
            message, descriptors, _, _ = socket.recv_fds(one, 16_384, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # comes before the last messages of that rank
            message, descriptors, _, _ = socket.recv_fds(one, 16_384, 1, socket.MSG_CMSG_CLOEXEC)
        return message, descriptors
