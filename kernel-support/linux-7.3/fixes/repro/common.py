# SPDX-License-Identifier: GPL-2.0-only
"""What the reproducers share, on top of the modules of the software NIC's tests."""

import ctypes
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NoReturn

sys.path.append(str(Path(__file__).resolve().parents[3] / "devmemsim/tests"))

import devmem  # noqa: E402  pylint: disable=wrong-import-position
import lab  # noqa: E402  pylint: disable=wrong-import-position
import netlink  # noqa: E402  pylint: disable=wrong-import-position

BIND_TX = 15
SO_ZEROCOPY = 60
MSG_ZEROCOPY = 0x4000000
SCM_DEVMEM_DMABUF = 79
DEVICE, PEER = "dms0", lab.PEER[4]

libc = ctypes.CDLL(None, use_errno=True)


class Msghdr(ctypes.Structure):
    """struct msghdr."""
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.c_void_p),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_char_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


def there(what: str) -> NoReturn:
    """The defect is there; exit status 1. Where the kernel's log says so the lab looks for it."""
    print(f"there: {what}", flush=True)
    sys.exit(1)


def load_nic(parameters: str = "") -> None:
    """A new NIC with its two ends, of the module that run.sh has built."""
    lab.run("! grep -q ^devmemsim /proc/modules || rmmod devmemsim; ! ip netns list | grep -qw peer || ip netns del peer")
    lab.run(f"{Path(__file__).resolve().parents[3]}/lab/guest/network {os.environ['DEVMEMSIM_KO']} {parameters}")
    netlink.rings_set(DEVICE, tcp_data_split=netlink.SPLIT_ON)


def bind_tx(family: netlink.Family, fd: int) -> int:
    """Bind a dmabuf for sending, return the id of the binding, which lasts as long as the family's socket."""
    reply = family.call(BIND_TX, [(1, socket.if_nametoindex(DEVICE)), (3, fd)])
    return next(netlink.number(value) for kind, value in reply[0] if kind == 4)


def send(sock: socket.socket, binding: int, offset: int, size: int) -> int:
    """Send from an offset in a binding; returns what sendmsg() does, or -errno."""
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    iov = (ctypes.c_uint64 * 2)(offset, size)
    control = struct.pack("=QIIIxxxx", 20, socket.SOL_SOCKET, SCM_DEVMEM_DMABUF, binding)
    message = Msghdr(iov=ctypes.addressof(iov), iovlen=1, control=control, controllen=len(control))
    sent = libc.sendmsg(sock.fileno(), ctypes.byref(message), MSG_ZEROCOPY)
    return sent if sent >= 0 else -ctypes.get_errno()


NO_MEMORY = "/sys/module/no_memory/parameters"


def watch(pid: int) -> None:
    """Which process the module no_memory looks at; run.sh has built it."""
    if not os.path.exists(NO_MEMORY):
        lab.run(f"insmod {os.environ['NO_MEMORY_KO']}")
    Path(NO_MEMORY, "pid").write_text(str(pid), encoding="ascii")


def check_waits(who: str) -> None:
    """There is a defect if the process has waited for memory with BHs disabled."""
    disabled, enabled = (int(Path(NO_MEMORY, name).read_text(encoding="ascii")) for name in ("disabled", "enabled"))
    print(f"waited with BHs disabled {disabled} times, enabled {enabled} times")
    if disabled:
        there(f"{who} waits for memory with BHs disabled")
    assert enabled, "nothing was tried"


def settle() -> None:
    """What is freed with RCU and by workers has been; where kobjects are debugged that is late."""
    time.sleep(6 if os.environ.get("GPURX_LAB") == "debug" else 2)
