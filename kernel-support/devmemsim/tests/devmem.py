# SPDX-License-Identifier: GPL-2.0-only
"""Device memory made of host memory, and TCP that is received into it."""

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import struct
from typing import Any, Callable, Optional

import netlink

MSG_SOCK_DEVMEM = 0x2000000
SCM_DEVMEM_LINEAR = 78
SCM_DEVMEM_DMABUF = 79
SO_DEVMEM_DONTNEED = 80
UDMABUF_CREATE = 0x40187542
UDMABUF_FLAGS_CLOEXEC = 1
MAX_RANGES = 128
MAX_PAGES = 1024
FRAGMENT = struct.Struct("=QIIII")

libc = ctypes.CDLL(None, use_errno=True)


class Memory:
    """A memfd, mapped here and exported as a dmabuf."""

    def __init__(self, size: int, huge: bool = False) -> None:
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        fd = os.memfd_create("devmem", flags | (os.MFD_HUGETLB if huge else 0))
        try:
            os.ftruncate(fd, size)
            self.bytes = mmap.mmap(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            request = bytearray(struct.pack("=IIQQ", fd, UDMABUF_FLAGS_CLOEXEC,
                                            0, size))
            with open("/dev/udmabuf", "rb") as device:
                self.fd = fcntl.ioctl(device, UDMABUF_CREATE, request)
        finally:
            os.close(fd)

    def close(self) -> None:
        os.close(self.fd)
        self.bytes.close()


class Binding:
    """Memory bound to Rx queues for as long as this object is open."""

    def __init__(self, device: str, queues: list[int], size: int,
                 page_size: Optional[int] = None, huge: bool = False) -> None:
        self.memory = Memory(size, huge)
        self._family = netlink.Family("netdev")
        try:
            self.id = netlink.bind_rx(self._family,
                                      socket.if_nametoindex(device), queues,
                                      self.memory.fd, page_size)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> "Binding":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def unbind(self) -> None:
        """End the binding, keep the memory for what is still to be read."""
        self._family.close()

    def close(self) -> None:
        self.unbind()
        self.memory.close()


class Receiver:
    """Reads a socket to its end, from device memory or not.

    Counts bytes by kind: in device memory, in the linear part of a packet that
    has device memory, in host memory. And fragments, and those that share a
    page with another of the same recvmsg.
    """

    def __init__(self, sock: socket.socket, binding: Binding,
                 sink: Callable[[bytes], Any], control: int = 64) -> None:
        self.sock = sock
        self._binding = binding
        self._sink = sink
        self._control = control * socket.CMSG_SPACE(FRAGMENT.size)
        self.fragments = 0
        self.shared = 0
        self.device_bytes = 0
        self.linear_bytes = 0
        self.host_bytes = 0

    def run(self, timeout: float = 60.0) -> None:
        """Receive until the peer closes."""
        self.sock.setblocking(False)
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        while True:
            if not poll.poll(timeout * 1000):
                raise TimeoutError("no data")
            if not self.step():
                return

    def step(self) -> int:
        """One recvmsg, return its bytes."""
        try:
            data, control, flags, _ = self.sock.recvmsg(
                1 << 18, self._control, MSG_SOCK_DEVMEM)
        except BlockingIOError:
            return -1
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMSGSIZE, "control data lost")
        # The kernel counts device bytes in the result, Python cuts the buffer
        # to it: what was copied comes first.
        return self._take(data, control)

    def _take(self, data: bytes, control: list[tuple[int, int, bytes]]) -> int:
        tokens: list[int] = []
        pages: set[int] = set()
        copied = 0
        for level, kind, value in control:
            if level != socket.SOL_SOCKET:
                continue
            offset, size, token, dmabuf, _ = FRAGMENT.unpack(value)
            if kind == SCM_DEVMEM_LINEAR:
                self._sink(data[copied:copied + size])
                copied += size
                self.linear_bytes += size
            elif kind == SCM_DEVMEM_DMABUF:
                if dmabuf != self._binding.id:
                    raise OSError(errno.EINVAL, f"dmabuf {dmabuf}")
                self._sink(self._binding.memory.bytes[offset:offset + size])
                self.fragments += 1
                self.shared += offset // mmap.PAGESIZE in pages
                pages.add(offset // mmap.PAGESIZE)
                self.device_bytes += size
                tokens.append(token)
        if not control:
            self._sink(data)
            self.host_bytes += len(data)
        self.release(tokens)
        return len(data)

    def release(self, tokens: list[int]) -> None:
        """Give pages back, all of them or an error."""
        ranges: list[list[int]] = []
        for token in sorted(tokens):
            if (ranges and sum(ranges[-1]) == token and
                    ranges[-1][1] < MAX_PAGES):
                ranges[-1][1] += 1
            else:
                ranges.append([token, 1])
        while ranges:
            batch: list[int] = []
            pages = 0
            while (ranges and len(batch) < MAX_RANGES and
                   pages + ranges[0][1] <= MAX_PAGES):
                pages += ranges[0][1]
                batch += ranges.pop(0)
            data = struct.pack(f"={len(batch)}I", *batch)
            freed = libc.setsockopt(self.sock.fileno(), socket.SOL_SOCKET,
                                    SO_DEVMEM_DONTNEED, data, len(data))
            if freed != pages:
                raise OSError(ctypes.get_errno(), f"freed {freed} of {pages}")
