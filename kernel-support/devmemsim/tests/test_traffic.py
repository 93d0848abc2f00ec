#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""What arrives, and on which queue. No device memory here."""

import contextlib
import ipaddress
import itertools
import socket
import struct
import threading
import time
from typing import Iterator

import lab
import netlink
from tap import check, equal, main

# A published Toeplitz key, with published results to check our arithmetic by
KEY = bytes.fromhex("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b4"
                    "77cb2da38030f20c6a42b73bbeac01fa") + bytes(12)
KNOWN = (("66.9.149.187", 2794, "161.142.100.80", 1766, 0x51CCC178),
         ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xC626B0EA),
         ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766,
          0x40207D3D))


def toeplitz(src: str, sport: int, dst: str, dport: int) -> int:
    return toeplitz_of(ipaddress.ip_address(src).packed
                       + ipaddress.ip_address(dst).packed
                       + struct.pack("!HH", sport, dport))


def toeplitz_of(data: bytes) -> int:
    key = int.from_bytes(KEY[:40], "big")
    result = 0
    for bit in range(8 * len(data)):
        if data[bit // 8] >> (7 - bit % 8) & 1:
            result ^= key >> (320 - 32 - bit) & 0xFFFFFFFF
    return result


@contextlib.contextmanager
def flow(version: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from the peer: its end, and ours."""
    with lab.listen(lab.LOCAL[version]) as server:
        out = lab.connect(lab.LOCAL[version], server.getsockname()[1], "peer")
        sock, _ = server.accept()
    with out, sock:
        out.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield out, sock


@contextlib.contextmanager
def datagrams(version: int, sport: int = 0, dport: int = 0,
              ) -> Iterator[tuple[socket.socket, socket.socket]]:
    """UDP from the peer: its end, and ours."""
    with lab.namespace("peer"):
        out = socket.socket(lab.family(lab.PEER[version]), socket.SOCK_DGRAM)
    sock = socket.socket(lab.family(lab.LOCAL[version]), socket.SOCK_DGRAM)
    with out, sock:
        sock.bind((lab.LOCAL[version], dport))
        sock.settimeout(60)
        out.bind((lab.PEER[version], sport))
        out.connect(sock.getsockname()[:2])
        yield out, sock


def queue_of(out: socket.socket, sock: socket.socket) -> int:
    """The queue that packets of a flow arrive on."""
    before = netlink.rx_stats(lab.index())
    for _ in range(40):
        out.send(b"x")
        sock.recv(1)
    after = netlink.rx_stats(lab.index())
    grown = {q: after[q]["packets"] - before[q]["packets"] for q in after}
    queue = max(grown, key=lambda q: grown[q])
    check(grown[queue] >= 40, f"packets are spread: {grown}")
    check(sum(grown.values()) - grown[queue] < 20, f"spread: {grown}")
    return queue


def test_tcp() -> None:
    for mtu in (1500, 9000):
        lab.set_mtu(mtu)
        for features in ("rx-gro-hw on gro on", "rx-gro-hw off gro on",
                         "rx-gro-hw off gro off"):
            lab.run(f"ethtool -K dms0 {features}")
            lab.peer(f"ethtool -K dms1 {features}")
            for version in (4, 6):
                for inward in (True, False):
                    lab.transfer(version, 2 << 20, inward)


def test_tcp_sizes() -> None:
    for size in (0, 1, 1447, 1448, 1449, 4096, 65535, 65536, 65537):
        for version in (4, 6):
            lab.transfer(version, size)


def test_tcp_without_offloads() -> None:
    lab.peer("ethtool -K dms1 tx off sg off tso off")
    try:
        lab.transfer(4, 1 << 20)
        lab.transfer(6, 1 << 20)
    finally:
        lab.peer("ethtool -K dms1 tx on sg on tso on")


def test_hardware_gro() -> None:
    for setting, large in (("on", True), ("off", False)):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        before = total("hw-gro-packets"), total("hw-gro-wire-packets")
        lab.transfer(4, 2 << 20)
        packets = total("hw-gro-packets") - before[0]
        wire = total("hw-gro-wire-packets") - before[1]
        equal(packets > 0, large, f"large packets with rx-gro-hw {setting}")
        check(not large or wire > 4 * packets, f"{wire} in {packets}")


def test_wire_packets() -> None:
    """A large packet counts as what it is on a wire, received and sent."""
    size, mss = 2 << 20, 1448
    for setting in ("on", "off"):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        names = ("packets", "bytes")
        before = [total(name) for name in names]
        sent = int(lab.peer("cat /sys/class/net/dms1/statistics/tx_packets"))
        lab.transfer(4, size)
        packets, data = (total(n) - b for n, b in zip(names, before))
        sent = int(lab.peer("cat /sys/class/net/dms1/statistics/tx_packets")) - sent
        check(size // mss <= packets < size // mss * 1.2, f"{packets} packets")
        check(size + 66 * (size // mss) <= data < size * 1.1, f"{data} bytes")
        # Neighbour discovery goes on, also between two looks
        check(abs(sent - packets) < 20, f"{sent} sent, {packets} received")


def ones(data: bytes) -> int:
    """The Internet checksum."""
    number = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while number >> 16:
        number = (number & 0xFFFF) + (number >> 16)
    return number ^ 0xFFFF


def raw_frame(protocol: int, port: int, wrong: int) -> bytes:
    """From the peer to here: UDP, or TCP that no connection has asked for."""
    payload = b"0123456789abcdef" * 64
    if protocol == socket.IPPROTO_UDP:
        header = struct.pack("!HHHH", 4000, port, 8 + len(payload), 0)
        field = 6
    else:
        header = struct.pack("!HHLLBBHHH", 4000, port, 1, 1, 0x50, 0x10, 1000, 0, 0)
        field = 16
    ends = b"".join(ipaddress.ip_address(end[4]).packed
                    for end in (lab.PEER, lab.LOCAL))
    length = len(header) + len(payload)
    right = ones(ends + struct.pack("!HH", protocol, length) + header + payload)
    header = (header[:field] + struct.pack("!H", right ^ wrong)
              + header[field + 2:])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, protocol, 0) + ends
    ip = ip[:10] + struct.pack("!H", ones(ip)) + ip[12:]
    macs = (lab.run("cat /sys/class/net/dms0/address"),
            lab.peer("cat /sys/class/net/dms1/address"))
    return (b"".join(bytes.fromhex(mac.strip().replace(":", "")) for mac in macs)
            + b"\x08\x00" + ip + header + payload)


def test_bad_checksums() -> None:
    """Nobody fills these in: the device looks, and the stack drops them."""
    with lab.namespace("peer"):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((lab.LOCAL[4], 0))
    port = udp.getsockname()[1]
    udp.setblocking(False)
    with raw, udp:
        raw.bind(("dms1", 0))
        for protocol, name in ((socket.IPPROTO_UDP, "UdpInCsumErrors"),
                               (socket.IPPROTO_TCP, "TcpInCsumErrors")):
            for wrong in (0, 1):
                before = lab.counters()[name]
                frame = raw_frame(protocol, port, wrong)
                for _ in range(20):
                    raw.send(frame)
                # Follows them, so they have arrived
                lab.transfer(4, 1000)
                got = 0
                with contextlib.suppress(BlockingIOError):
                    while udp.recv(2000):
                        got += 1
                if protocol == socket.IPPROTO_UDP:
                    equal(got, 20 * (1 - wrong), "datagrams")
                equal(lab.counters()[name] - before, 20 * wrong, name)


def test_checksums_are_filled_in() -> None:
    """Whoever looks at the packets of the wire sees right ones."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    raw.bind(("dms0", 0))
    raw.settimeout(60)
    lab.run("ethtool -K dms0 rx-gro-hw off gro off")
    ends = ipaddress.ip_address(lab.PEER[4]).packed + ipaddress.ip_address(lab.LOCAL[4]).packed
    seen = 0
    with raw, flow(4) as (out, sock):
        for _ in range(20):
            out.send(b"some payload")
            sock.recv(100)
        raw.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, where = raw.recvfrom(2000)
                if where[2] == socket.PACKET_OUTGOING or frame[23] != socket.IPPROTO_TCP:
                    continue
                length = struct.unpack("!H", frame[16:18])[0] - 20
                segment = frame[34:34 + length]
                equal(ones(ends + struct.pack("!HH", socket.IPPROTO_TCP, length)
                           + segment + b"\0" * (length % 2)), 0, "sum")
                seen += 1
    check(seen >= 20, f"{seen} packets")


def total(name: str) -> int:
    return sum(q[name] for q in netlink.rx_stats(lab.index()).values())


def test_many_flows() -> None:
    problems = []

    def one(number: int) -> None:
        try:
            lab.transfer(4 + number % 2 * 2, 300_000, number % 4 < 2)
        except Exception as error:  # pylint: disable=broad-except
            problems.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(problems, [], "failed flows")


def test_udp() -> None:
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with out, sock:
        sock.bind((lab.LOCAL[4], 0))
        sock.settimeout(60)
        for size in (0, 1, 200, 300, 1472, 1473, 20_000, 60_000):
            data = bytes(n * 7 & 0xFF for n in range(size))
            out.sendto(data, sock.getsockname())
            equal(sock.recv(65536), data, f"datagram of {size}")


def test_link_down_and_up() -> None:
    with flow(4) as (out, sock):
        for _ in range(3):
            lab.run("ip link set dms0 down")
            lab.addresses()
            out.sendall(b"hello")
            equal(sock.recv(5, socket.MSG_WAITALL), b"hello", "after up")


def test_fewer_channels_under_traffic() -> None:
    """Frames wait on the wire to queues that go. RPS complains of a packet from a queue that is gone."""
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    stop = threading.Event()

    def send() -> None:
        ports = itertools.cycle(range(1000, 1064))
        while not stop.wait(0.0005):
            out.sendto(b"x", (lab.LOCAL[4], next(ports)))

    sender = threading.Thread(target=send)
    with out:
        sender.start()
        try:
            lab.run("echo 1 >/sys/class/net/dms0/queues/rx-0/rps_cpus")
            lab.run("ethtool -C dms0 rx-usecs 20000")
            for _ in range(6):
                lab.set_channels(16)
                time.sleep(0.2)
                seen = {queue for queue, stats in netlink.rx_stats(lab.index()).items() if stats["packets"]}
                check(len(seen) > 8, f"queues seen: {seen}")
                # Not 1, where the kernel does not complain
                lab.set_channels(2)
        finally:
            stop.set()
            sender.join()
            lab.run("echo 0 >/sys/class/net/dms0/queues/rx-0/rps_cpus")
    check("received packet on queue" not in lab.run("dmesg"), "a queue that is gone")
    lab.transfer(4, 1 << 16)


def test_toeplitz_arithmetic() -> None:
    for src, sport, dst, dport, want in KNOWN:
        equal(toeplitz(src, sport, dst, dport), want, f"{src} to {dst}")


def set_key() -> None:
    lab.run(f"ethtool -X dms0 hkey {':'.join(f'{byte:02x}' for byte in KEY)}")


def test_rss() -> None:
    set_key()
    seen = set()
    for version in (4, 6):
        for _ in range(12):
            with flow(version) as (out, sock):
                want = toeplitz(*out.getsockname()[:2],
                                *out.getpeername()[:2]) % 128 % 4
                equal(queue_of(out, sock), want, "queue by Toeplitz")
                seen.add(want)
    equal(seen, {0, 1, 2, 3}, "queues seen")


def test_rss_of_sixteen_queues() -> None:
    lab.run("ethtool -L dms0 combined 16")
    set_key()
    # 16 queues are the same of the hash whatever the table's size, 15 are not
    for count in (16, 15):
        if count == 15:
            lab.run("ethtool -X dms0 equal 15")
        seen = set()
        for _ in range(30):
            with datagrams(4) as (out, sock):
                want = toeplitz(*out.getsockname(), *sock.getsockname()) % 512 % count
                equal(queue_of(out, sock), want, f"queue by Toeplitz, {count}")
                seen.add(want)
        check(len(seen) > 8, f"queues seen, {count}: {seen}")


def test_hash_fields() -> None:
    """Traffic goes by the fields that are hashed, and by no other."""
    set_key()
    where = {"s": 0, "d": 1, "f": 2, "n": 3}
    for version in (4, 6):
        for make, kind in ((flow, "tcp"), (datagrams, "udp")):
            for fields in ("sd", "n", "sf", "sdn"):
                lab.run(f"ethtool -N dms0 rx-flow-hash {kind}{version} {fields}")
                for _ in range(4):
                    with make(version) as (out, sock):
                        parts = [ipaddress.ip_address(out.getsockname()[0]).packed,
                                 ipaddress.ip_address(sock.getsockname()[0]).packed,
                                 struct.pack("!H", out.getsockname()[1]),
                                 struct.pack("!H", sock.getsockname()[1])]
                        data = b"".join(parts[where[each]] for each in fields)
                        equal(queue_of(out, sock), toeplitz_of(data) % 128 % 4,
                              f"{kind}{version} by {fields}")


def test_hash_fields_of_a_context() -> None:
    lab.run("ethtool -X dms0 context new")
    lab.run("ethtool -N dms0 rx-flow-hash tcp4 sd context 1")
    inside, outside = set(), set()
    for _ in range(12):
        with flow(4) as (out, sock):
            outside.add(queue_of(out, sock))
            with lab.rule(f"tcp4 dst-port {sock.getsockname()[1]} context 1"):
                inside.add(queue_of(out, sock))
    equal(len(inside), 1, f"queues by addresses alone: {inside}")
    check(len(outside) > 1, f"queues by ports too: {outside}")


def test_hash_of_the_flow_label() -> None:
    """Each connection has a label of its own, whatever else is the same."""
    seen = {}
    for fields in ("sd", "sdl"):
        netlink.rss_set("dms0", fields={"tcp6": fields})
        seen[fields] = set()
        for _ in range(12):
            with flow(6) as (out, sock):
                seen[fields].add(queue_of(out, sock))
    equal(len(seen["sd"]), 1, "queues without the label")
    check(len(seen["sdl"]) > 1, f"queues with it: {seen}")


def test_symmetric_hash() -> None:
    """Both directions have one queue: what differs is who comes first."""
    set_key()
    for xfrm in (netlink.SYM_XOR, netlink.SYM_OR_XOR):
        netlink.rss_set("dms0", xfrm=xfrm)
        seen = set()
        for version in (4, 6):
            ends = [int.from_bytes(ipaddress.ip_address(end[version]).packed, "big")
                    for end in (lab.PEER, lab.LOCAL)]
            size = 4 if version == 4 else 16
            for n in range(12):
                ports = 20000 + 37 * n, 30000 + 101 * n
                data = b""
                for (a, b), width in ((ends, size), (ports, 2)):
                    first = a | b if xfrm == netlink.SYM_OR_XOR else a ^ b
                    data += first.to_bytes(width, "big") + (a ^ b).to_bytes(width, "big")
                want = toeplitz_of(data) % 128 % 4
                for sport, dport in (ports, ports[::-1]):
                    with datagrams(version, sport, dport) as (out, sock):
                        equal(queue_of(out, sock), want, "queue")
                seen.add(want)
        check(len(seen) > 1, f"queues seen: {seen}")


def test_rss_table() -> None:
    lab.run("ethtool -X dms0 weight 0 0 1 0")
    for version in (4, 6):
        with flow(version) as (out, sock):
            equal(queue_of(out, sock), 2, "only queue of the table")


def test_rules() -> None:
    lab.run("ethtool -X dms0 equal 1")
    for version in (4, 6):
        with flow(version) as (out, sock):
            here, there = sock.getsockname(), out.getsockname()
            three = f"tcp{version} dst-ip {here[0]} dst-port {here[1]}"
            five = f"{three} src-ip {there[0]} src-port {there[1]}"
            equal(queue_of(out, sock), 0, "no rule")
            with lab.rule(f"{three} action 1"):
                equal(queue_of(out, sock), 1, "3-tuple")
                with lab.rule(f"{five} action 2"):
                    equal(queue_of(out, sock), 2, "5-tuple over 3-tuple")
                equal(queue_of(out, sock), 1, "5-tuple gone")
            with lab.rule(f"{five} action 3"):
                with lab.rule(f"{three} action 1"):
                    equal(queue_of(out, sock), 3, "whichever came first")
            other = three.replace(f"dst-port {here[1]}",
                                  f"dst-port {here[1] ^ 1}")
            with lab.rule(f"{other} action 2"):
                equal(queue_of(out, sock), 0, "rule for another port")


def test_rules_for_udp() -> None:
    lab.run("ethtool -X dms0 equal 1")
    for version in (4, 6):
        with datagrams(version) as (out, sock):
            here, there = sock.getsockname(), out.getsockname()
            for spec in (f"dst-port {here[1]}", f"src-port {there[1]}",
                         f"src-ip {there[0]}", f"dst-ip {here[0]}",
                         f"src-ip {there[0]} src-port {there[1]} "
                         f"dst-ip {here[0]} dst-port {here[1]}"):
                with lab.rule(f"udp{version} {spec} action 2"):
                    equal(queue_of(out, sock), 2, f"rule for {spec}")
            with lab.rule(f"tcp{version} dst-port {here[1]} action 2"):
                equal(queue_of(out, sock), 0, "rule for TCP")
            with lab.rule(f"udp{version} dst-port {here[1] ^ 1} action 2"):
                equal(queue_of(out, sock), 0, "rule for another port")
            with lab.rule(f"ip{version} l4proto 17 action 3"):
                equal(queue_of(out, sock), 3, "rule for the protocol")
            with lab.rule(f"ip{version} l4proto 6 action 3"):
                equal(queue_of(out, sock), 0, "rule for another protocol")
            with lab.rule(f"ip{version} src-ip {there[0]} action 1"):
                equal(queue_of(out, sock), 1, "rule for any protocol")


def test_rules_by_location() -> None:
    lab.run("ethtool -X dms0 equal 1")
    with flow(4) as (out, sock):
        port = sock.getsockname()[1]
        for location, queue in ((9, 1), (8, 2), (10, 3)):
            lab.run(f"ethtool -N dms0 flow-type tcp4 dst-port {port} "
                    f"action {queue} loc {location}")
        equal(queue_of(out, sock), 2, "lowest location")
        lab.run("ethtool -N dms0 delete 8")
        equal(queue_of(out, sock), 1, "next location")


def test_rule_mask() -> None:
    lab.run("ethtool -X dms0 equal 1")
    with flow(4) as (out, sock):
        with lab.rule("tcp4 src-ip 10.77.0.0 m 0.0.0.255 action 3"):
            equal(queue_of(out, sock), 3, "subnet")
        with lab.rule("tcp4 src-ip 10.78.0.0 m 0.0.0.255 action 3"):
            equal(queue_of(out, sock), 0, "another subnet")


def test_rule_into_context() -> None:
    lab.run("ethtool -X dms0 equal 1")
    lab.run("ethtool -X dms0 context new start 2 equal 2")
    seen = set()
    for _ in range(20):
        with flow(4) as (out, sock):
            port = sock.getsockname()[1]
            with lab.rule(f"tcp4 dst-port {port} context 1"):
                seen.add(queue_of(out, sock))
    equal(seen, {2, 3}, "queues of the context")


def test_feature_off_takes_rules_away() -> None:
    lab.run("ethtool -X dms0 equal 1")
    with flow(6) as (out, sock):
        lab.add_rule(f"tcp6 dst-port {sock.getsockname()[1]} action 2")
        equal(queue_of(out, sock), 2, "rule")
        lab.run("ethtool -K dms0 ntuple off")
        equal(queue_of(out, sock), 0, "no ntuple")


if __name__ == "__main__":
    main(globals(), lab.setup, lab.reset)
