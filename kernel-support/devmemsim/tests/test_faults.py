#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Each fault happens, is counted, and leaves the byte stream whole."""

import errno
import socket
import time
from typing import Callable, Optional

import devmem
import lab
import netlink
from tap import check, equal, main, once_below, raises
from test_devmem import QUEUE, gone, prepare, receive, setup, stream

SIZE = 3 << 20


def with_fault(name: str, value: int, effect: Callable[[], int],
               look: Optional[Callable[[devmem.Receiver], None]] = None,
               ) -> None:
    """Transfers of all kinds; `effect` reads a number that must grow."""
    for setting in ("on", "off"):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        before, count = effect(), lab.injected()[name]
        lab.set_fault(name, value)
        with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
            for version in (4, 6):
                rx = receive(binding, version, SIZE)
                if look:
                    look(rx)
        lab.transfer(4, SIZE)
        lab.set_fault(name, 0)
        check(lab.injected()[name] > count, f"{name} was not counted")
        check(effect() > before, f"{name}: no effect with GRO {setting}")
    count = lab.injected()[name]
    lab.transfer(4, SIZE)
    equal(lab.injected()[name], count, f"{name} while off")
    gone()


def counter(name: str, where: Optional[str] = None) -> Callable[[], int]:
    return lambda: lab.counters(where).get(name, 0)


def one_more() -> Callable[[], int]:
    """For faults whose effect is looked at in each transfer."""
    numbers = iter(range(1_000_000))
    return lambda: next(numbers)


def test_drop() -> None:
    with_fault("drop", 30, counter("RetransSegs", "peer"))


def test_duplicate() -> None:
    with_fault("duplicate", 5, counter("TCPDSACKOldSent"))


def test_reorder() -> None:
    with_fault("reorder", 10, counter("TCPOFOQueue"))


def test_alloc_fail() -> None:
    def failures() -> int:
        return sum(queue["alloc-fail"]
                   for queue in netlink.rx_stats(lab.index()).values())

    with_fault("alloc_fail", 30, failures)


def test_corrupt() -> None:
    """TCP sees it, in device memory too, and has it sent again."""
    with_fault("corrupt", 30, counter("TcpInCsumErrors"))
    before = lab.counters()["TcpInCsumErrors"], lab.injected()["corrupt"]
    lab.set_fault("corrupt", 20)
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        receive(binding, 4, SIZE)
    lab.set_fault("corrupt", 0)
    equal(lab.counters()["TcpInCsumErrors"] - before[0],
          lab.injected()["corrupt"] - before[1], "errors that TCP counts")


def test_delay() -> None:
    with_fault("delay_us", 3000, one_more())
    lab.set_fault("delay_us", 50_000)
    with lab.listen(lab.LOCAL[4]) as server:
        out = lab.connect(lab.LOCAL[4], server.getsockname()[1], "peer")
        sock, _ = server.accept()
    with out, sock:
        start = time.monotonic()
        out.sendall(b"x")
        sock.recv(1)
        check(time.monotonic() - start >= 0.05, "it is not late")


def test_linear_bytes() -> None:
    def look(rx: devmem.Receiver) -> None:
        check(rx.linear_bytes > 0, "no linear bytes")
        equal(rx.linear_bytes + rx.device_bytes + rx.host_bytes, SIZE, "sum")

    with_fault("linear_bytes", 100, one_more(), look)


def test_linear_payload() -> None:
    def look(rx: devmem.Receiver) -> None:
        equal(rx.host_bytes, SIZE, "bytes in host memory")

    with_fault("linear_bytes", 65535, one_more(), look)


def test_no_split() -> None:
    def look(rx: devmem.Receiver) -> None:
        check(rx.host_bytes > SIZE // 10, "too few bytes in host memory")
        check(rx.device_bytes > SIZE // 10, "too few bytes in device memory")

    with_fault("no_split", 3, one_more(), look)


def test_no_split_at_all() -> None:
    def look(rx: devmem.Receiver) -> None:
        equal(rx.host_bytes, SIZE, "bytes in host memory")

    with_fault("no_split", 1, one_more(), look)


def test_pack() -> None:
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        lab.run("ethtool -K dms0 rx-gro-hw off")
        equal(receive(binding, 4, SIZE).shared, 0, "shared pages without")
        lab.set_fault("pack", 1)
        rx = receive(binding, 4, SIZE)
        check(rx.shared > rx.fragments // 4, f"{rx.shared}/{rx.fragments}")
    with_fault("pack", 1, one_more())


def test_pack_halves() -> None:
    """Two packets share a page, and no two that follow each other."""
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        lab.run("ethtool -K dms0 rx-gro-hw off")
        lab.set_fault("pack", 2)
        rx = receive(binding, 4, SIZE)
        check(rx.shared > rx.fragments // 4, f"{rx.shared}/{rx.fragments}")
    gone()


def test_all_at_once() -> None:
    for name, value in (("drop", 97), ("duplicate", 13), ("reorder", 17),
                        ("delay_us", 300), ("alloc_fail", 101),
                        ("no_split", 7), ("linear_bytes", 33), ("pack", 1)):
        lab.set_fault(name, value)
    for setting in ("on", "off"):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
            for version in (4, 6):
                receive(binding, version, SIZE)
            lab.transfer(4, SIZE)
    gone()


def test_only_tcp() -> None:
    lab.set_fault("drop", 1)
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with out, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((lab.LOCAL[4], 0))
        sock.settimeout(60)
        for _ in range(10):
            out.sendto(b"x", sock.getsockname())
            equal(sock.recv(1), b"x", "datagram")
    with lab.listen(lab.LOCAL[4]) as server, lab.namespace("peer"):
        with socket.socket() as tcp:
            tcp.settimeout(0.5)
            raises(None, "timed out", tcp.connect, server.getsockname())


def test_per_device() -> None:
    lab.set_fault("drop", 10, "dms1")
    count = lab.injected()["drop"]
    lab.transfer(4, SIZE, inward=False)
    equal(lab.injected()["drop"], count, "drop at dms0")
    check(lab.injected("dms1")["drop"] > 0, "no drop at dms1")


def test_counted_not_drawn() -> None:
    """The same frames hit the same way: every second one of 40 is late."""
    lab.set_fault("duplicate", 2)
    with lab.listen(lab.LOCAL[4]) as server:
        out = lab.connect(lab.LOCAL[4], server.getsockname()[1], "peer")
        sock, _ = server.accept()
    with out, sock:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        count = lab.injected()["duplicate"]
        for _ in range(40):
            out.send(b"x")
            sock.recv(1)
        equal(lab.injected()["duplicate"] - count, 20, "frames hit")


def test_held_frames_at_link_down() -> None:
    lab.set_fault("delay_us", 1_000_000)
    with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
        with lab.listen(lab.LOCAL[4]) as server:
            lab.set_fault("delay_us", 0)
            out = lab.connect(lab.LOCAL[4], server.getsockname()[1], "peer")
            sock, _ = server.accept()
        with out, sock:

            def seconds_to_stop() -> float:
                lab.set_fault("delay_us", 1_000_000)
                out.sendall(bytes(100_000))
                taken = lab.take_down("dms0")
                lab.set_fault("delay_us", 0)
                lab.addresses()
                equal(len(sock.recv(100_000, socket.MSG_WAITALL)), 100_000,
                      "bytes")
                return taken

            once_below(0.8, seconds_to_stop, "it waits for the frames")
        with stream(binding, 4, 1000) as (rx, _, _):
            rx.run()
    gone()


def test_settings() -> None:
    raises(errno.ERANGE, "", lab.set_fault, "pack", 3)
    raises(errno.ERANGE, "", lab.set_fault, "delay_us", 1_000_001)
    raises(errno.ERANGE, "", lab.set_fault, "linear_bytes", 65536)
    equal(set(lab.injected()), {"drop", "duplicate", "reorder", "delay_us", "corrupt",
                                "alloc_fail", "linear_bytes", "no_split",
                                "pack"}, "faults")


if __name__ == "__main__":
    main(globals(), setup, prepare)
