# SPDX-License-Identifier: GPL-2.0-only
"""The two ends: dms0 here, dms1 in the network namespace "peer"."""

import contextlib
import ctypes
import fcntl
import hashlib
import os
import random
import re
import socket
import struct
import subprocess
import threading
import time
from typing import Any, Callable, Iterator, Optional

import netlink
from tap import eventually

LOCAL = {4: "10.77.0.1", 6: "fd77::1"}
PEER = {4: "10.77.0.2", 6: "fd77::2"}
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
FAULTS = "/sys/kernel/debug/devmemsim"

libc = ctypes.CDLL(None, use_errno=True)


def run(command: str, check: bool = True) -> str:
    """Run a command, return what it prints."""
    done = subprocess.run(command, shell=True, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stdout.strip()}")
    return done.stdout


def set_channels(count: int) -> None:
    """Says -EAGAIN while queues that went are still looked at in sysfs; where
    kobjects are debugged that is for seconds."""
    out = ""

    def has_answer() -> bool:
        nonlocal out
        out = run(f"ethtool -L dms0 combined {count}", check=False)
        return "Resource temporarily unavailable" not in out

    eventually(has_answer, lambda: f"{count} channels: {out}")
    if out:
        raise RuntimeError(f"{count} channels: {out.strip()}")


def peer(command: str, check: bool = True) -> str:
    """Run a command at the other end."""
    return run(f"ip netns exec peer {command}", check)


@contextlib.contextmanager
def namespace(name: Optional[str]) -> Iterator[None]:
    """Be in a network namespace, this thread only. Sockets stay in theirs."""
    if name is None:
        yield
        return
    with open("/proc/thread-self/ns/net", "rb") as old:
        with open(f"/run/netns/{name}", "rb") as new:
            if libc.setns(new.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns {name}")
        try:
            yield
        finally:
            libc.setns(old.fileno(), CLONE_NEWNET)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def listen(address: str, where: Optional[str] = None,
           receive_buffer: int = 0) -> socket.socket:
    """A listening socket on a port of the kernel's choice."""
    with namespace(where):
        sock = socket.socket(family(address), socket.SOCK_STREAM)
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(60)
    sock.bind((address, 0))
    sock.listen(16)
    return sock


def connect(address: str, port: int, where: Optional[str] = None,
            ) -> socket.socket:
    with namespace(where):
        sock = socket.socket(family(address), socket.SOCK_STREAM)
    sock.settimeout(60)
    sock.connect((address, port))
    return sock


class Sender(threading.Thread):
    """Sends `size` bytes that depend on `seed`, then closes."""

    def __init__(self, sock: socket.socket, size: int, seed: int = 1,
                 chunk: int = 1 << 18) -> None:
        super().__init__(daemon=True)
        self._sock, self._size, self._chunk = sock, size, chunk
        self._block = random.Random(seed).randbytes(min(size, 1 << 18) or 1)
        self.sum = hashlib.sha256()
        self.error: Optional[OSError] = None
        self.start()

    def run(self) -> None:
        left = self._size
        try:
            while left:
                data = self._block[:min(left, self._chunk)]
                self._sock.sendall(data)
                self.sum.update(data)
                left -= len(data)
                # Not periodic: a page in the wrong place must show
                self._block = self._block[1:] + self._block[:1]
        except OSError as error:
            self.error = error
        finally:
            self._sock.close()


def read_all(sock: socket.socket, sink: Callable[[bytes], Any]) -> int:
    """Plain receive until the end."""
    total = 0
    sock.settimeout(60)
    while data := sock.recv(1 << 18):
        sink(data)
        total += len(data)
    return total


def transfer(version: int, size: int, inward: bool = True,
             listener: Optional[socket.socket] = None) -> None:
    """Send bytes to this end, or away from it, and compare what arrives."""
    address = (LOCAL if inward else PEER)[version]
    here, there = (None, "peer") if inward else ("peer", None)
    with listener or listen(address, here) as server:
        port = server.getsockname()[1]
        sender = Sender(connect(address, port, there), size)
        sock, _ = server.accept()
        with sock:
            digest = hashlib.sha256()
            total = read_all(sock, digest.update)
        sender.join(60)
    if sender.error:
        raise sender.error
    if total != size or digest.digest() != sender.sum.digest():
        raise AssertionError(f"{total} of {size} bytes, or not the same ones")


def index(device: str = "dms0") -> int:
    return socket.if_nametoindex(device)


@contextlib.contextmanager
def rule(spec: str, device: str = "dms0") -> Iterator[int]:
    """An ntuple rule for as long as the block runs."""
    location = add_rule(spec, device)
    try:
        yield location
    finally:
        run(f"ethtool -N {device} delete {location}")


def add_rule(spec: str, device: str = "dms0") -> int:
    out = run(f"ethtool -N {device} flow-type {spec}")
    found = re.search(r"ID (\d+)", out)
    if not found:
        raise RuntimeError(f"no rule id in {out!r}")
    return int(found.group(1))


def set_fault(name: str, value: int, device: str = "dms0") -> None:
    with open(f"{FAULTS}/{device}/{name}", "w", encoding="ascii") as file:
        file.write(str(value))


def injected(device: str = "dms0") -> dict[str, int]:
    with open(f"{FAULTS}/{device}/injected", encoding="ascii") as file:
        return {name: int(count) for name, count in map(str.split, file)}


def counters(where: Optional[str] = None) -> dict[str, int]:
    """TCP counters of an end, by name; also with the protocol before it."""
    found: dict[str, int] = {}
    for name in ("netstat", "snmp"):
        with namespace(where):
            with open(f"/proc/thread-self/net/{name}",
                      encoding="ascii") as file:
                lines = file.read().splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            protocol, *each = names.split()
            numbers = list(map(int, values.split()[1:]))
            found.update(zip(each, numbers))
            found.update(zip((protocol[:-1] + name for name in each), numbers))
    return found


def setup() -> None:
    """Load the module and give the pair its addresses, as the lab does."""
    if os.path.isdir("/sys/class/net/dms0"):
        return
    await_driver_gone()
    run(f"insmod {module()}")
    run("mkdir -p /run/netns")
    if not os.path.exists("/run/netns/peer"):
        run("ip netns add peer")
        peer("ip link set lo up")
    run("ip link set lo up")
    plug_in()


def plug_in() -> None:
    """Move the far end of a new pair to its namespace; addresses of both."""
    run("ip link set dms1 netns peer")
    addresses()


def await_driver_gone() -> None:
    """Wait until the driver's name is free again.

    rmmod only puts the driver's kobject, and with CONFIG_DEBUG_KOBJECT_RELEASE
    the name goes 1 to 4 s after that: sometimes later than rmmod returns.
    """
    eventually(lambda: not os.path.isdir("/sys/bus/platform/drivers/devmemsim"),
               lambda: "the driver's name is left in sysfs")


def take_down(device: str) -> float:
    """Have its link down; how many seconds that takes, without a program's."""
    request = struct.Struct("16sh22x")
    with socket.socket() as sock:
        now = fcntl.ioctl(sock, SIOCGIFFLAGS, request.pack(device.encode(), 0))
        name, flags = request.unpack(now)
        start = time.monotonic()
        fcntl.ioctl(sock, SIOCSIFFLAGS, request.pack(name, flags & ~IFF_UP))
        return time.monotonic() - start


def addresses() -> None:
    """Addresses and link up, both ends."""
    for device, ends, command in (("dms0", LOCAL, run), ("dms1", PEER, peer)):
        command(f"ip addr replace {ends[4]}/24 dev {device}")
        command(f"ip link set {device} up")
        command(f"ip addr replace {ends[6]}/64 dev {device} nodad")


def module() -> str:
    """The module file: $DEVMEMSIM_KO, as the one who boots knows where."""
    path = os.environ.get("DEVMEMSIM_KO", "")
    if not os.path.exists(path):
        raise RuntimeError("DEVMEMSIM_KO does not name the module file")
    return path


def reset() -> None:
    """Everything back to what it is after loading."""
    for device in ("dms0", "dms1"):
        for name in injected(device):
            set_fault(name, 0, device)
    run("ethtool -K dms0 ntuple off rx-gro-hw on gro on")
    run("ethtool -K dms0 ntuple on")
    for context in netlink.rss_contexts(index()):
        run(f"ethtool -X dms0 context {context} delete")
    run("ethtool -X dms0 default")
    netlink.rss_set("dms0", xfrm=0,
                    fields={flow: "sdfn" for flow in netlink.FLOWS})
    peer("ethtool -K dms1 rx-gro-hw on gro on")
    set_mtu(1500)
    addresses()
    if "Combined:\t4" not in run("ethtool -l dms0").split("Current")[1]:
        set_channels(4)
    netlink.rings_set("dms0", rx=128, tx=256, hds_thresh=0,
                      tcp_data_split=netlink.SPLIT_AUTO)
    # They complain where nothing changes
    if not re.search(r"rx-usecs:\s*0\n", run("ethtool -c dms0")):
        run("ethtool -C dms0 rx-usecs 0")
    if "rx-copybreak: 0\n" not in run("ethtool --get-tunable dms0 rx-copybreak"):
        run("ethtool --set-tunable dms0 rx-copybreak 0")


def set_mtu(mtu: int) -> None:
    run(f"ip link set dms0 mtu {mtu}")
    peer(f"ip link set dms1 mtu {mtu}")
