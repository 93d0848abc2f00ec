# SPDX-License-Identifier: Apache-2.0
"""Reads a pcapng file with one section and one interface, in this machine's byte order, and believes nothing of it.

pcapng.py FILE prints what is in it, as JSON."""

import json
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Packet:
    time: int  # nanoseconds since the epoch
    captured: bytes
    length: int
    outgoing: bool


@dataclass
class File:
    interface: str = ""
    packets: list[Packet] = field(default_factory=list)
    received: int | None = None
    dropped: int | None = None


def blocks(data: bytes):
    while data:
        kind, size = struct.unpack_from("=II", data)
        if size % 4 or size > len(data) or struct.unpack_from("=I", data, size - 4)[0] != size:
            raise ValueError(f"a block of type {kind} says it has {size} bytes; {len(data)} are left")
        yield kind, data[8 : size - 4]
        data = data[size:]


def options(data: bytes) -> dict[int, bytes]:
    found = {}
    while data:
        code, size = struct.unpack_from("=HH", data)
        if code == 0:
            break
        found[code] = data[4 : 4 + size]
        data = data[4 + (size + 3) // 4 * 4 :]
    return found


def read_packet(body: bytes) -> Packet:
    interface, high, low, captured, length = struct.unpack_from("=IIIII", body)
    if interface != 0:
        raise ValueError(f"a packet of interface {interface}")
    said = options(body[20 + (captured + 3) // 4 * 4 :])
    direction = struct.unpack("=I", said[2])[0] & 3
    return Packet((high << 32) + low, body[20 : 20 + captured], length, direction == 2)


def read(data: bytes) -> File:
    file = File()
    kinds = []
    for kind, body in blocks(data):
        kinds.append(kind)
        if kind == 0x0A0D0D0A and struct.unpack_from("=I", body)[0] != 0x1A2B3C4D:
            raise ValueError("not of this byte order")
        elif kind == 1:
            said = options(body[8:])
            if struct.unpack_from("=H", body)[0] != 1 or said[9] != b"\x09":
                raise ValueError("not Ethernet in nanoseconds")
            file.interface = said[2].decode()
        elif kind == 6:
            file.packets.append(read_packet(body))
        elif kind == 5:
            said = options(body[12:])
            file.received, file.dropped = (struct.unpack("=Q", said[code])[0] for code in (4, 5))
    if kinds[:2] != [0x0A0D0D0A, 1] or kinds[-1] != 5 or set(kinds[2:-1]) - {6}:
        raise ValueError(f"blocks of types {kinds[:2]} to {kinds[-1]}")
    return file


def summary(file: File) -> dict[str, int]:
    """Of TCP packets over IPv4 without options, or IPv6."""
    counts = {"packets": len(file.packets), "out": 0, "with_payload": 0, "bytes_in": 0}
    for packet in file.packets:
        ip = 34 if packet.captured[12:14] == b"\x08\x00" else 54
        headers = ip + (packet.captured[ip + 12] >> 4) * 4
        counts["out"] += packet.outgoing
        counts["with_payload"] += len(packet.captured) > headers
        counts["bytes_in"] += 0 if packet.outgoing else packet.length - headers
    return counts


if __name__ == "__main__":
    print(json.dumps(summary(read(Path(sys.argv[1]).read_bytes()))))
