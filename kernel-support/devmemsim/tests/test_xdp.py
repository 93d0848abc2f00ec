#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""XDP programs: what they see, what their verdicts do, what excludes them."""

import contextlib
import errno
import os
import socket
import struct
import time
from typing import Iterator

import devmem
import flow
import lab
import netlink
import xdp
from tap import check, equal, eventually, main, raises
from test_devmem import gone, prepare, receive
from test_devmem import setup as setup_devmem

SIZE = 3 << 20
# A page has room for the program in front and for skb_shared_info behind
MAX_MTU = 4096 - 256 - 320 - 18


def total(name: str) -> int:
    return sum(queue[name] for queue in netlink.rx_stats(lab.index()).values())


def has_feature(name: str) -> bool:
    return f"{name}: on" in lab.run("ethtool -k dms0")


@contextlib.contextmanager
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """UDP: one of the peer, connected to one of ours."""
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with out, sock:
        sock.bind((lab.LOCAL[4], 0))
        out.connect(sock.getsockname())
        for each in (out, sock):
            each.settimeout(60)
        yield out, sock


def arrives(sock: socket.socket, data: bytes) -> bool:
    sock.settimeout(1)
    try:
        return sock.recv(65536) == data
    except TimeoutError:
        return False


def grown(name: str, before: dict[str, int]) -> int:
    return xdp.counters()[name] - before[name]


def test_pass() -> None:
    """Packets of a wire, whatever the peer sends, and as they were sent."""
    before = xdp.counters()
    large, drops = total("hw-gro-packets"), total("hw-drops")
    with xdp.program(xdp.return_(xdp.PASS)):
        for version in (4, 6):
            for size in (1, 1448, 65536, SIZE):
                lab.transfer(version, size)
            lab.transfer(version, SIZE, inward=False)
        equal(total("hw-gro-packets"), large, "large packets")
        equal(total("hw-drops"), drops, "dropped packets")
        check(grown("rx_xdp_pass", before) > 2 * SIZE // 1448, "packets")
    before = xdp.counters()
    lab.transfer(4, SIZE)
    equal(xdp.counters(), before, "packets after detaching")


def test_hardware_gro_comes_back() -> None:
    check(has_feature("rx-gro-hw"), "no hardware GRO at first")
    with xdp.program(xdp.return_(xdp.PASS)) as fd:
        check(not has_feature("rx-gro-hw"), "hardware GRO with a program")
        lab.run("ethtool -K dms0 rx-gro-hw on", check=False)
        xdp.attach(fd)
        check(not has_feature("rx-gro-hw"), "hardware GRO after -K")
    check(has_feature("rx-gro-hw"), "no hardware GRO any more")
    before = total("hw-gro-packets")
    lab.transfer(4, SIZE)
    check(total("hw-gro-packets") > before, "no large packets any more")


def test_drop() -> None:
    for verdict, name in ((xdp.DROP, "rx_xdp_drop"),
                          (xdp.ABORTED, "rx_xdp_aborted"),
                          (77, "rx_xdp_aborted")):
        with xdp.program(xdp.to_udp(xdp.return_(verdict))), \
                sockets() as (out, sock):
            before, packets = xdp.counters(), total("packets")
            for _ in range(500):
                out.send(b"x" * 1000)
            check(not arrives(sock, b"x" * 1000), f"arrives: {name}")
            equal(grown(name, before), 500, name)
            check(total("packets") - packets >= 500, "packets of the queues")
            lab.transfer(4, 65536)


def echoes(out: socket.socket, sizes: tuple[int, ...]) -> None:
    """What the peer sends comes back, from the address it was sent to."""
    for number in range(300):
        size = sizes[number % len(sizes)]
        data = bytes((n * 7 + number) & 0xFF for n in range(size))
        out.send(data)
        check(arrives(out, data), f"echo {number} of {size} bytes")


def test_tx_and_redirect() -> None:
    for verdict, end in (("tx", xdp.return_(xdp.TX)),
                         ("redirect", xdp.redirect(lab.index()))):
        before = xdp.counters()
        with sockets() as (out, _), xdp.program(xdp.echo(end)):
            echoes(out, (0, 1, 100, 1000, 1472))
        equal(grown(f"rx_xdp_{verdict}", before), 300, f"verdicts: {verdict}")
        equal(grown("tx_xdp_packets", before), 300, f"packets sent: {verdict}")


def test_redirect_to_nowhere() -> None:
    before = xdp.counters()
    with sockets() as (out, sock), \
            xdp.program(xdp.to_udp(xdp.redirect(12345))):
        out.send(b"hello")
        check(not arrives(sock, b"hello"), "arrives")
    equal(grown("rx_xdp_redirect", before) + grown("rx_xdp_aborted", before),
          1, "packets")


def test_tx_without_room() -> None:
    """Frames in flight are limited, and come home when the peer drops them."""
    netlink.rings_set("dms0", tx=32)
    lab.set_fault("delay_us", 1_000_000, "dms1")
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_RAW, xdp.TCP)
    with out, xdp.program(xdp.echo(xdp.return_(xdp.TX), xdp.TCP)):
        before = xdp.counters()
        header = struct.pack("!HHIIBBHHH", 1, 2, 3, 4, 5 << 4, 0, 5, 0, 0)
        for _ in range(100):
            out.sendto(header, (lab.LOCAL[4], 0))
        equal(grown("rx_xdp_tx", before), 100, "verdicts")
        equal(grown("tx_xdp_packets", before), 32, "packets sent")
        equal(grown("tx_xdp_drops", before), 68, "packets dropped")
        lab.peer("ip link set dms1 down")
        lab.run("timeout 20 ip link set dms0 down")
        lab.addresses()
    lab.set_fault("delay_us", 0, "dms1")
    test_tx_and_redirect()


def test_mtu_of_single_buffer() -> None:
    lab.peer("ip link set dms1 mtu 9000")
    fd = xdp.load(xdp.return_(xdp.PASS))
    try:
        lab.run(f"ip link set dms0 mtu {MAX_MTU + 1}")
        raises(errno.EOPNOTSUPP, f"exceeds {MAX_MTU}, the maximum", xdp.attach, fd)
        check(has_feature("rx-gro-hw"), "refused, and hardware GRO is gone")
        lab.run(f"ip link set dms0 mtu {MAX_MTU}")
        xdp.attach(fd)
        try:
            out = lab.run(f"ip link set dms0 mtu {MAX_MTU + 1}", check=False)
            check("Invalid argument" in out, f"MTU: {out!r}")
            lab.transfer(4, SIZE)
            with sockets() as (out, sock):
                out.send(b"x" * (MAX_MTU - 28))
                check(arrives(sock, b"x" * (MAX_MTU - 28)), "largest packet")
                # Four bytes are left for a VLAN tag
                before = total("hw-drops")
                out.send(b"x" * (MAX_MTU - 28 + 5))
                check(not arrives(sock, b"x" * (MAX_MTU - 28 + 5)), "too much")
                equal(total("hw-drops") - before, 1, "hw-drops")
        finally:
            xdp.detach()
        lab.run("ip link set dms0 mtu 9000")
    finally:
        os.close(fd)


def test_multi_buffer() -> None:
    lab.set_mtu(9000)
    before = xdp.counters()
    with xdp.program(xdp.return_(xdp.PASS), frags=True):
        for version in (4, 6):
            lab.transfer(version, SIZE)
            lab.transfer(version, SIZE, inward=False)
    check(grown("rx_xdp_pass", before) > SIZE // 8948, "packets")
    sizes = (0, 3478, 3479, 7574, 7575, 8972)
    for end in (xdp.return_(xdp.TX), xdp.redirect(lab.index())):
        with sockets() as (out, _), xdp.program(xdp.echo(end), frags=True):
            echoes(out, sizes)
    with sockets() as (out, sock), \
            xdp.program(xdp.to_udp(xdp.return_(xdp.DROP)), frags=True):
        before = xdp.counters()
        for _ in range(500):
            out.send(b"x" * 8900)
        check(not arrives(sock, b"x" * 8900), "arrives")
        equal(grown("rx_xdp_drop", before), 500, "dropped")


def test_checksum_of_what_a_program_changed() -> None:
    with sockets() as (out, sock):
        with xdp.program(xdp.spoil()):
            before = lab.counters()["UdpInCsumErrors"]
            out.send(b"hello")
            check(not arrives(sock, b"iello"), "no checksum was looked at")
            equal(lab.counters()["UdpInCsumErrors"] - before, 1, "errors")
        out.send(b"hello")
        check(arrives(sock, b"hello"), "does not arrive without a program")


def test_header_split() -> None:
    def split() -> int:
        return netlink.rings_get("dms0")["tcp-data-split"]

    equal(split(), netlink.SPLIT_ON, "header split at first")
    with xdp.program(xdp.return_(xdp.PASS)):
        equal(split(), netlink.SPLIT_OFF, "header split with a program")
        raises(errno.EINVAL, "single buffer XDP", netlink.rings_set, "dms0",
               tcp_data_split=netlink.SPLIT_ON)
    equal(split(), netlink.SPLIT_ON, "header split after detaching")

    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
    fd = xdp.load(xdp.return_(xdp.PASS))
    raises(errno.EBUSY, "tcp-data-split", xdp.attach, fd)
    os.close(fd)
    for mtu in (1500, 9000):
        lab.set_mtu(mtu)
        with xdp.program(xdp.return_(xdp.PASS), frags=True):
            equal(split(), netlink.SPLIT_ON, "header split that was asked for")
            for version in (4, 6):
                lab.transfer(version, SIZE)


def test_not_with_device_memory() -> None:
    prepare()
    fd = xdp.load(xdp.return_(xdp.PASS), frags=True)
    with devmem.Binding("dms0", [3], 1 << 20):
        raises(errno.EBUSY, "memory provider", xdp.attach, fd)
    gone()
    xdp.attach(fd)
    raises(errno.EEXIST, "XDP program attached", devmem.Binding, "dms0", [3],
           1 << 20)
    xdp.detach()
    os.close(fd)
    with devmem.Binding("dms0", [3], 4 << 20) as binding:
        rx = receive(binding, 4, SIZE)
        equal(rx.device_bytes, SIZE, "bytes in device memory")
    gone()


def test_changes_under_traffic() -> None:
    flows = [flow.Flow(4), flow.Flow(6), flow.Flow(4, inward=False)]
    single = xdp.load(xdp.return_(xdp.PASS))
    multi = xdp.load(xdp.return_(xdp.PASS), frags=True)
    for number in range(20):
        before = [each.received for each in flows]
        xdp.attach(single)
        if number % 4 == 1:
            xdp.attach(multi)
        if number % 4 == 2:
            lab.run(f"ethtool -L dms0 combined {number % 8 + 1}")
        if number % 4 == 3:
            netlink.rings_set("dms0", rx=64 + number)
        time.sleep(0.1)
        xdp.detach()
        time.sleep(0.1)
        eventually(lambda old=before: all(each.received != bytes_
                                          for each, bytes_ in zip(flows, old)),
                   lambda number=number: f"no progress, {number}")
    for each in flows:
        each.stop()
        equal(each.problem, "", "problem")
    os.close(single)
    os.close(multi)


def test_link_down_and_up() -> None:
    lab.run("ip link set dms0 down")
    with xdp.program(xdp.to_udp(xdp.return_(xdp.DROP))), \
            contextlib.ExitStack() as stack:
        lab.addresses()
        out, sock = stack.enter_context(sockets())
        for _ in range(3):
            out.send(b"hello")
            check(not arrives(sock, b"hello"), "the program is gone")
            lab.run("ip link set dms0 down")
            lab.addresses()
        check(not has_feature("rx-gro-hw"), "hardware GRO with a program")
        lab.run("ip link set dms0 down")
    lab.addresses()
    lab.transfer(4, SIZE)


def test_faults() -> None:
    for name, value in (("drop", 30), ("duplicate", 5), ("reorder", 10),
                        ("delay_us", 2000), ("alloc_fail", 30),
                        ("linear_bytes", 10), ("pack", 1)):
        before, count = xdp.counters(), lab.injected()[name]
        with xdp.program(xdp.return_(xdp.PASS)):
            lab.set_fault(name, value)
            lab.transfer(4, 1 << 20)
            lab.set_fault(name, 0)
        check(grown("rx_xdp_pass", before) > (1 << 20) // 1448,
              f"past the program: {name}")
        equal(lab.injected()[name] > count, name not in ("linear_bytes", "pack"),
              f"counted: {name}")


def test_removal() -> None:
    fd = xdp.load(xdp.return_(xdp.PASS))
    xdp.attach(fd)
    running = flow.Flow(4)
    time.sleep(0.3)
    lab.run("rmmod devmemsim")
    running.stop()
    os.close(fd)
    lab.setup()
    lab.transfer(4, SIZE)


def setup() -> None:
    setup_devmem()
    lab.reset()


def reset() -> None:
    xdp.detach()
    lab.reset()


if __name__ == "__main__":
    main(globals(), setup, reset)
