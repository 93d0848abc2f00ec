# SPDX-License-Identifier: GPL-2.0-only
"""XDP programs of a few instructions, made here, and attached to a device."""

import contextlib
import ctypes
import os
import re
import struct
from typing import Iterator

import lab
import netlink

ABORTED, DROP, PASS, TX, REDIRECT = range(5)
BPF_PROG_LOAD = 5
BPF_PROG_TYPE_XDP = 6
BPF_F_XDP_HAS_FRAGS = 1 << 5
SYSCALL = {"x86_64": 321, "aarch64": 280}
IFLA_XDP, IFLA_XDP_FD, IFLA_XDP_FLAGS = 43, 1, 3
XDP_FLAGS_DRV_MODE = 1 << 2
TCP, UDP = 6, 17
UDP_PAYLOAD = 42

# Opcodes. Of the registers, r1 is the context at first, then the packet, and
# r2 its end
LOAD = {1: 0x71, 2: 0x69, 4: 0x61}
STORE = {1: 0x73, 2: 0x6B, 4: 0x63}
MOVE, MOVE_NUMBER, ADD_NUMBER = 0xBF, 0xB7, 0x07
JUMP_GREATER, JUMP_NOT_NUMBER = 0x2D, 0x55
CALL, EXIT = 0x85, 0x95
CALL_REDIRECT = 23

libc = ctypes.CDLL(None, use_errno=True)
Code = list[bytes]


def insn(opcode: int, dst: int = 0, src: int = 0, offset: int = 0,
         number: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, dst | src << 4, offset, number)


def swap(size: int, one: int, two: int) -> Code:
    """Exchange two fields of the packet."""
    return [insn(LOAD[size], 3, 1, one), insn(LOAD[size], 4, 1, two),
            insn(STORE[size], 1, 4, one), insn(STORE[size], 1, 3, two)]


def return_(verdict: int) -> Code:
    return [insn(MOVE_NUMBER, 0, number=verdict), insn(EXIT)]


def only(protocol: int, body: Code, size: int = UDP_PAYLOAD) -> Code:
    """Only look at IPv4 of this protocol and size at least, pass the rest."""
    other = return_(PASS)
    tests = [insn(LOAD[1], 3, 1, 23),
             insn(JUMP_NOT_NUMBER, 3, offset=len(body), number=protocol)]
    return [insn(LOAD[4], 2, 1, 4), insn(LOAD[4], 1, 1, 0),
            insn(MOVE, 3, 1), insn(ADD_NUMBER, 3, number=size),
            insn(JUMP_GREATER, 3, 2, offset=len(tests) + len(body)),
            *tests, *body, *other]


def to_udp(body: Code, size: int = UDP_PAYLOAD) -> Code:
    return only(UDP, body, size)


def echo(end: Code, protocol: int = UDP) -> Code:
    """Back to where it came from: addresses and ports change sides."""
    return only(protocol, swap(4, 0, 6) + swap(2, 4, 10) + swap(4, 26, 30) +
                swap(2, 34, 36) + end)


def redirect(ifindex: int) -> Code:
    return [insn(MOVE_NUMBER, 1, number=ifindex), insn(MOVE_NUMBER, 2),
            insn(CALL, number=CALL_REDIRECT), insn(EXIT)]


def spoil() -> Code:
    """Change the payload and let the checksum be."""
    return to_udp([insn(LOAD[1], 3, 1, UDP_PAYLOAD),
                   insn(ADD_NUMBER, 3, number=1),
                   insn(STORE[1], 1, 3, UDP_PAYLOAD), *return_(PASS)],
                  UDP_PAYLOAD + 1)


def load(code: Code, frags: bool = False) -> int:
    """A program, as a file descriptor."""
    instructions = ctypes.create_string_buffer(b"".join(code))
    license_ = ctypes.create_string_buffer(b"GPL")
    log = ctypes.create_string_buffer(1 << 16)
    attr = ctypes.create_string_buffer(struct.pack(
        "=IIQQIIQII", BPF_PROG_TYPE_XDP, len(code),
        ctypes.addressof(instructions), ctypes.addressof(license_), 1,
        len(log), ctypes.addressof(log), 0,
        BPF_F_XDP_HAS_FRAGS if frags else 0))
    fd = libc.syscall(SYSCALL[os.uname().machine], BPF_PROG_LOAD, attr,
                      len(attr) - 1)
    if fd < 0:
        raise OSError(ctypes.get_errno(), log.value.decode())
    return fd


def attach(fd: int, device: str = "dms0") -> None:
    netlink.set_link(lab.index(device), [(IFLA_XDP, [
        (IFLA_XDP_FD, struct.pack("=i", fd)),
        (IFLA_XDP_FLAGS, XDP_FLAGS_DRV_MODE)])])


def detach(device: str = "dms0") -> None:
    attach(-1, device)


@contextlib.contextmanager
def program(code: Code, frags: bool = False) -> Iterator[int]:
    """dms0 has a program for as long as the block runs."""
    fd = load(code, frags)
    try:
        attach(fd)
        yield fd
    finally:
        os.close(fd)
        detach()


def counters() -> dict[str, int]:
    """What became of packets, of all programs ever."""
    return {name: int(count) for name, count in
            re.findall(r"(\w+): (\d+)", lab.run("ethtool -S dms0"))}
