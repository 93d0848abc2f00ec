#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The system calls by which a program opens its packet sockets, in their order and much as strace shows them.

socket_calls.py FILE PROGRAM [ARGUMENT...] runs the program, writes a line to FILE for each socket() of AF_PACKET and each
setsockopt() and bind() of what that returned, and ends as the program ends. Exit code 77: nothing can be traced here."""

import contextlib
import ctypes
import os
import platform
import signal
import socket
import struct
import sys
from typing import TextIO

CANNOT_TRACE = 77

# The numbers of socket, bind and setsockopt.
NUMBERS = {"x86_64": (41, 49, 54), "aarch64": (198, 200, 208)}

# <linux/ptrace.h>
TRACEME, SYSCALL, SETOPTIONS, GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
TRACESYSGOOD, TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC, EXITKILL = 1, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 20
ENTRY, EXIT = 1, 2
WALL = 0x40000000  # __WALL: threads, too

SOL_PACKET = 263
OPTIONS = {
    (SOL_PACKET, 5): "SOL_PACKET, PACKET_RX_RING",
    (SOL_PACKET, 10): "SOL_PACKET, PACKET_VERSION",
    (socket.SOL_SOCKET, 26): "SOL_SOCKET, SO_ATTACH_FILTER",
}
PROTOCOLS = {0: "htons(0)", 3: "htons(ETH_P_ALL)"}
TYPE_MASK = 0xF
TYPES = {socket.SOCK_RAW: "SOCK_RAW", socket.SOCK_DGRAM: "SOCK_DGRAM"}
FLAGS = {socket.SOCK_CLOEXEC: "|SOCK_CLOEXEC", socket.SOCK_NONBLOCK: "|SOCK_NONBLOCK"}

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
LIBC.ptrace.restype = ctypes.c_long


class SyscallInfo(ctypes.Structure):
    """struct ptrace_syscall_info: at ENTRY the number and the arguments, at EXIT the result first."""

    _fields_ = [("op", ctypes.c_uint8), ("arch", ctypes.c_uint32), ("ip", ctypes.c_uint64), ("sp", ctypes.c_uint64),
                ("words", ctypes.c_uint64 * 8)]


def ptrace(request: int, pid: int, address: int = 0, data: object = None) -> None:
    if LIBC.ptrace(request, pid, address, data) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace: {os.strerror(ctypes.get_errno())}")


def protocol_name(network_order: int) -> str:
    value = socket.ntohs(network_order & 0xFFFF)
    return PROTOCOLS.get(value, f"htons({value:#x})")


def type_name(value: int) -> str:
    return TYPES.get(value & TYPE_MASK, str(value & TYPE_MASK)) + "".join(
        name for flag, name in FLAGS.items() if value & flag)


def address_name(raw: bytes) -> str:
    """A struct sockaddr_ll."""
    family, protocol, index = struct.unpack_from("=HHi", raw.ljust(8, b"\0"))
    interface = "0"
    with contextlib.suppress(OSError):
        interface = f'"{socket.if_indextoname(index)}"' if index else "0"
    return f"{'AF_PACKET' if family == socket.AF_PACKET else family}, {protocol_name(protocol)}, {interface}"


class Calls:
    """Makes lines of what the threads of a program call."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.entered: dict[int, tuple[int, list[int]]] = {}  # what a thread is in
        self.sockets: set[int] = set()
        self.socket, self.bind, self.setsockopt = NUMBERS[platform.machine()]

    def note(self, thread: int) -> None:
        info = SyscallInfo()
        ptrace(GET_SYSCALL_INFO, thread, ctypes.sizeof(info), ctypes.byref(info))
        if info.op == ENTRY:
            self.entered[thread] = info.words[0], list(info.words[1:7])
        elif info.op == EXIT and thread in self.entered:
            self.say(thread, *self.entered.pop(thread), ctypes.c_int64(info.words[0]).value)

    def say(self, thread: int, number: int, arguments: list[int], result: int) -> None:
        fd = arguments[0]
        if number == self.socket and arguments[0] == socket.AF_PACKET:
            self.sockets.add(result)
            said = f"socket(AF_PACKET, {type_name(arguments[1])}, {protocol_name(arguments[2])})"
        elif number == self.setsockopt and fd in self.sockets:
            said = f"setsockopt({fd}, {OPTIONS.get((arguments[1], arguments[2]), f'{arguments[1]}, {arguments[2]}')})"
        elif number == self.bind and fd in self.sockets:
            with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
                memory.seek(arguments[1])
                said = f"bind({fd}, {{{address_name(memory.read(arguments[2] & 0xFF))}}})"
        else:
            return
        print(f"{said} = {result}", file=self.out, flush=True)


def start(command: list[str]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            ptrace(TRACEME, 0)
        except OSError as refusal:
            print(refusal, file=sys.stderr)
            os._exit(CANNOT_TRACE)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    return pid


def signal_to_pass_on(status: int, begun: bool) -> int:
    """What stopped a thread and is for itself: no event of the trace, nor the stop that a thread begins with."""
    number = os.WSTOPSIG(status)
    return 0 if status >> 16 or number & 0x80 or (number == signal.SIGSTOP and not begun) else number


def follow(program: int, calls: Calls) -> int:
    """Returns how the program ended, as a shell says it."""
    begun: set[int] = set()
    while True:
        thread, status = os.waitpid(-1, WALL)
        if not os.WIFSTOPPED(status):
            if thread == program:
                return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            continue
        passed_on = signal_to_pass_on(status, thread in begun)
        if thread == program and not begun:
            ptrace(SETOPTIONS, thread, 0, TRACESYSGOOD | TRACEFORK | TRACEVFORK | TRACECLONE | TRACEEXEC | EXITKILL)
        begun.add(thread)
        # It may be gone before it is looked at: killed, or ended by another thread's exit.
        with contextlib.suppress(ProcessLookupError):
            if os.WSTOPSIG(status) & 0x80:
                calls.note(thread)
            ptrace(SYSCALL, thread, 0, passed_on)


def main() -> int:
    if platform.machine() not in NUMBERS:
        print(f"no numbers of system calls for {platform.machine()}", file=sys.stderr)
        return CANNOT_TRACE
    with open(sys.argv[1], "w", encoding="ascii") as out:
        return follow(start(sys.argv[2:]), Calls(out))


if __name__ == "__main__":
    sys.exit(main())
