#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Hardware GRO: what is made one large packet and what is not, and for how long packets wait for that."""

import contextlib
import functools
import hashlib
import ipaddress
import re
import socket
import struct
import time
from typing import Iterator, NamedTuple, Optional

import devmem
import lab
import netlink
from tap import Skip, check, equal, main, once_below
from test_devmem import QUEUE, gone, prepare, receive, setup
from test_traffic import flow, ones, total

SIZE = 2 << 20
MSS = 1448
FIN, RST, PSH, ACK = 1, 4, 8, 16
PORT = 9
VNET = struct.Struct("=BBHHHH")
NEEDS_CSUM, GSO_TCPV4 = 1, 1
SOL_PACKET, PACKET_VNET_HDR, SO_RCVBUFFORCE = 263, 15, 33


class Packet(NamedTuple):
    """A TCP packet as dms0 hands it to the stack."""

    port: int
    seq: int
    flags: int
    data: bytes
    gso_size: int


def before() -> None:
    """The peer sends one by one, and only the device merges."""
    setup()
    after()


def after() -> None:
    lab.peer("ethtool -K dms1 tso on gso on")
    prepare()
    lab.run("ethtool -X dms0 default")
    lab.peer("ethtool -K dms1 tso off gso off")
    lab.run("ethtool -K dms0 gro off")
    usecs(2000)


def restore() -> None:
    after()
    lab.peer("ethtool -K dms1 tso on gso on")
    lab.reset()


def usecs(value: int) -> None:
    lab.run(f"ethtool -C dms0 rx-usecs {value}", check=False)


def merged() -> tuple[int, int, int]:
    """Large packets, the packets in them, and all packets."""
    return total("hw-gro-packets"), total("hw-gro-wire-packets"), total("packets")


def test_bulk() -> None:
    for setting in ("on", "off"):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        for version in (4, 6):
            start = merged()
            lab.transfer(version, SIZE)
            large, wire, packets = (now - then for now, then in zip(merged(), start))
            check(SIZE // MSS <= packets < SIZE // MSS * 1.2, f"{packets} packets")
            if setting == "off":
                equal(large, 0, "large packets")
                continue
            check(wire > SIZE // MSS // 2, f"only {wire} packets were merged")
            check(wire > 3 * large, f"{wire} packets in {large}")


def test_sizes() -> None:
    for size in (1, 1447, 1448, 1449, 2896, 2897, 65536, 200_000):
        for version in (4, 6):
            lab.transfer(version, size)


def test_mtu_9000() -> None:
    lab.set_mtu(9000)
    for version in (4, 6):
        start = merged()
        lab.transfer(version, 2 * SIZE)
        check(merged()[0] > start[0], "nothing was merged")


def test_software_gro_on_top() -> None:
    lab.run("ethtool -K dms0 gro on")
    for version in (4, 6):
        lab.transfer(version, SIZE)


def test_device_memory() -> None:
    lab.run(f"ethtool -X dms0 equal {QUEUE}")
    for setting in ("on", "off"):
        lab.run(f"ethtool -K dms0 rx-gro-hw {setting}")
        with devmem.Binding("dms0", [QUEUE], 4 << 20) as binding:
            for version in (4, 6):
                start = merged()
                rx = receive(binding, version, SIZE)
                equal(rx.device_bytes, SIZE, "bytes in device memory")
                equal(merged()[0] > start[0], setting == "on", f"merged with rx-gro-hw {setting}")
                # A segment takes a page, where it is not merged
                few = rx.fragments < SIZE // MSS * 0.7
                equal(few, setting == "on", f"few fragments ({rx.fragments})")
    gone()


@functools.cache
def ethernet() -> bytes:
    macs = (lab.run("cat /sys/class/net/dms0/address"), lab.peer("cat /sys/class/net/dms1/address"))
    return b"".join(bytes.fromhex(mac.strip().replace(":", "")) for mac in macs) + b"\x08\x00"


def segment(seq: int, data: bytes, flags: int = ACK, port: int = PORT, wrong: int = 0, ip_id: int = 0,
            ack: int = 1) -> bytes:
    """From the peer to here, with checksums; `wrong` is added to that of TCP."""
    ends = b"".join(ipaddress.ip_address(end[4]).packed for end in (lab.PEER, lab.LOCAL))
    tcp = struct.pack("!HHLLBBHHH", port, PORT, seq, ack, 0x50, flags, 1000, 0, 0)
    length = len(tcp) + len(data)
    right = ones(ends + struct.pack("!HH", socket.IPPROTO_TCP, length) + tcp + data + b"\0" * (length % 2))
    tcp = tcp[:16] + struct.pack("!H", right ^ wrong) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, ip_id, 0x4000, 64, socket.IPPROTO_TCP, 0) + ends
    ip = ip[:10] + struct.pack("!H", ones(ip)) + ip[12:]
    return ethernet() + ip + tcp + data


def parse(raw: bytes) -> Optional[Packet]:
    """What a packet socket got: None if it is not ours. The headers must be right for what is behind them."""
    flags, gso_type, _, gso_size, start, offset = VNET.unpack_from(raw)
    frame = raw[VNET.size:]
    ip, tcp = frame[14:34], frame[34:54]
    if frame[12:14] != b"\x08\x00" or ip[9] != socket.IPPROTO_TCP or tcp[2:4] != struct.pack("!H", PORT):
        return None
    equal(struct.unpack("!H", ip[2:4])[0], len(frame) - 14, "length in the IP header")
    equal(ones(ip), 0, "sum of the IP header")
    if gso_size:
        equal((gso_type, flags, start, offset), (GSO_TCPV4, NEEDS_CSUM, 34, 16), "type, flags, place of the checksum")
        length = struct.pack("!HH", socket.IPPROTO_TCP, len(frame) - 34)
        equal(ones(ip[12:] + length), ~struct.unpack("!H", tcp[16:18])[0] & 0xFFFF, "sum of the pseudo header")
    return Packet(struct.unpack("!H", tcp[:2])[0], struct.unpack("!L", tcp[4:8])[0], tcp[13], frame[54:], gso_size)


def exchange(frames: list[bytes]) -> list[Packet]:
    """Have the peer send frames at once; what dms0 makes of them."""
    usecs(50_000)
    lab.run("ethtool -X dms0 equal 1")
    with lab.namespace("peer"):
        out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    found = []
    with out, sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        sock.bind(("dms0", 0x0800))
        sock.settimeout(0.5)
        out.bind(("dms1", 0))
        for frame in frames:
            out.send(frame)
        with contextlib.suppress(TimeoutError):
            while True:
                raw, where = sock.recvfrom(1 << 17)
                packet = parse(raw)
                if packet and where[2] != socket.PACKET_OUTGOING:
                    found.append(packet)
    return found


def payload(count: int, length: int = 100) -> list[bytes]:
    return [bytes((number + byte) & 0xFF for byte in range(length)) for number in range(count)]


def row(data: list[bytes], port: int = PORT) -> list[bytes]:
    """Segments that continue each other."""
    frames, seq = [], 1000
    for part in data:
        frames.append(segment(seq, part, port=port))
        seq += len(part)
    return frames


def test_headers() -> None:
    data = payload(3) + [b"end"]
    frames = row(data[:3]) + [segment(1300, b"end", ACK | PSH)]
    equal(exchange(frames), [Packet(PORT, 1000, ACK | PSH, b"".join(data), 100)], "packets")


def test_flows_take_turns() -> None:
    data = payload(3)
    rows = [row(data, port) for port in (11, 12, 13, 14)]
    got = exchange([frame for turn in zip(*rows) for frame in turn])
    equal(got, [Packet(port, 1000, ACK, b"".join(data), 100) for port in (11, 12, 13, 14)], "packets")


def test_more_flows_than_there_is_room_for() -> None:
    data = payload(2, 20)
    rows = [row(data, port) for port in range(1000, 1520)]
    netlink.rings_set("dms0", rx=4096)
    got = exchange([frame for turn in zip(*rows) for frame in turn])
    joined: dict[int, bytes] = {}
    for packet in got:
        joined[packet.port] = joined.get(packet.port, b"") + packet.data
    equal(len(joined), 520, "flows")
    for port, found in joined.items():
        equal(found, b"".join(data), f"bytes of flow {port}")


def test_what_does_not_merge() -> None:
    one, two, three = payload(3)
    first = segment(1000, one)
    for what, frames, lengths in (
            ("a gap", [first, segment(1101, two)], [100, 100]),
            ("the same again", [first, first], [100, 100]),
            ("a longer one", [first, segment(1100, two + b"x")], [100, 101]),
            ("after a shorter one", [first, segment(1100, b"x"), segment(1101, two)], [101, 100]),
            ("after a push", [first, segment(1100, two, ACK | PSH), segment(1200, three)], [200, 100]),
            ("a push first", [segment(1000, one, ACK | PSH), segment(1100, two)], [100, 100]),
            ("another acknowledgment", [first, segment(1100, two, ack=2)], [100, 100]),
            ("a wrong checksum", [first, segment(1100, two, wrong=1), segment(1200, three)], [100, 100, 100]),
            ("a reset", [first, segment(1100, b"", ACK | RST), segment(1100, two)], [100, 0, 100]),
            ("a pure acknowledgment", [first, segment(1100, b""), segment(1100, two)], [100, 0, 100]),
            ("one without a TCP header", [first, segment(1100, two)[:36], segment(1100, two)], [100, 100]),
            ("IDs that jump", [first, segment(1100, two, ip_id=2)], [100, 100]),
            ("IDs that stop", [first, segment(1100, two, ip_id=1), segment(1200, three, ip_id=1)], [200, 100]),
            ("a last one", [first, segment(1100, two, ACK | FIN)], [200])):
        got = exchange(frames)
        equal([len(packet.data) for packet in got], lengths, what)
        sent = b"".join(frame[54:] for frame in frames)
        equal(b"".join(packet.data for packet in got), sent, f"{what}: bytes in order")


def test_64_kib() -> None:
    data = payload(70, 1000)
    got = exchange(row(data))
    equal([len(packet.data) for packet in got], [65_000, 5000], "packets")
    equal(b"".join(packet.data for packet in got), b"".join(data), "bytes")


@contextlib.contextmanager
def tunnel(kind: str, module: str) -> Iterator[None]:
    """10.78.0.1 and fd78:1::1 here, .2 and ::2 there."""
    lab.run(f"/run/modprobe {module}", check=False)
    version = 6 if kind.startswith("ip6") else 4
    for number, (local, remote, command) in enumerate((
            (lab.LOCAL[version], lab.PEER[version], lab.run), (lab.PEER[version], lab.LOCAL[version], lab.peer))):
        made = command(f"ip link add tun{number} type {kind} local {local} remote {remote} && echo made", check=False)
        if "made" not in made:
            raise Skip(f"no {kind} here: {made.strip()}")
        command(f"ip link set tun{number} up mtu 1400")
        command(f"ip addr add 10.78.0.{number + 1}/24 dev tun{number}", check=False)
        command(f"ip addr add fd78:1::{number + 1}/64 dev tun{number} nodad", check=False)
    try:
        yield
    finally:
        lab.run("ip link del tun0", check=False)
        lab.peer("ip link del tun1", check=False)


def in_tunnel(kind: str, module: str, address: str) -> None:
    with tunnel(kind, module):
        start = merged()
        with lab.listen(address) as server:
            sender = lab.Sender(lab.connect(address, server.getsockname()[1], "peer"), SIZE)
            sock, _ = server.accept()
            with sock:
                digest = hashlib.sha256()
                equal(lab.read_all(sock, digest.update), SIZE, "bytes")
            sender.join(60)
        equal(digest.digest(), sender.sum.digest(), "bytes")
        check(merged()[0] > start[0], "nothing was merged")


def test_tunnel_ip_in_ip() -> None:
    in_tunnel("ipip", "ipip", "10.78.0.1")


def test_tunnel_ip6_in_ip() -> None:
    in_tunnel("sit", "sit", "fd78:1::1")


def test_tunnel_ip6_in_ip6() -> None:
    in_tunnel("ip6tnl mode ip6ip6", "ip6_tunnel", "fd78:1::1")


def test_tunnel_ip_in_ip6() -> None:
    in_tunnel("ip6tnl mode ipip6", "ip6_tunnel", "10.78.0.1")


def test_moderation() -> None:
    usecs(0)
    check(re.search(r"rx-usecs:\s+0\n", lab.run("ethtool -c dms0")), "rx-usecs")
    out = lab.run("ethtool -C dms0 rx-usecs 100001", check=False)
    check("at most 100000" in out, out)
    with flow(4) as (out_sock, sock):

        def lateness() -> float:
            start = time.monotonic()
            out_sock.send(b"x")
            sock.recv(1)
            return time.monotonic() - start

        usecs(0)
        once_below(0.1, lateness, "it waits with rx-usecs 0")
        usecs(100_000)
        check(lateness() >= 0.1, "it does not wait with rx-usecs 100000")


def test_frames_that_wait_at_link_down() -> None:
    def seconds_to_stop() -> float:
        usecs(100_000)
        with flow(4) as (out, sock):
            out.sendall(bytes(10_000))
            taken = lab.take_down("dms0")
            with lab.namespace("peer"):
                taken += lab.take_down("dms1")
            usecs(0)
            lab.addresses()
            equal(len(sock.recv(10_000, socket.MSG_WAITALL)), 10_000, "bytes")
        return taken

    once_below(0.1, seconds_to_stop, "it waits for the frames")


def test_change_while_frames_wait() -> None:
    with flow(4) as (out, sock):
        for value in (100_000, 0, 50_000, 10, 0):
            usecs(value)
            out.sendall(bytes(5000))
        equal(len(sock.recv(25_000, socket.MSG_WAITALL)), 25_000, "bytes")


if __name__ == "__main__":
    try:
        main(globals(), before, after)
    finally:
        restore()
