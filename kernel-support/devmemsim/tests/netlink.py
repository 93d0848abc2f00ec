# SPDX-License-Identifier: GPL-2.0-only
"""Netlink, as much as the tests need: links, netdev and ethtool families."""

import os
import socket
import struct
from typing import Any, Iterator, Optional, Union

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP = 0x300
NLMSG_ERROR = 2
NLMSG_DONE = 3
NLA_F_NESTED = 0x8000
NLA_TYPE_MASK = 0x3FFF
SOL_NETLINK = 270
NETLINK_EXT_ACK = 11
NLM_F_CAPPED = 0x100
NLM_F_ACK_TLVS = 0x200
GENL_ID_CTRL = 0x10
RTM_SETLINK = 19

Value = Union[int, bytes, list]
Attrs = list[tuple[int, Value]]


class NetlinkError(OSError):
    """The kernel said no; strerror ends with its extended message."""

    def __init__(self, code: int, extack: str) -> None:
        reason = os.strerror(code)
        super().__init__(code, f"{reason}: {extack}" if extack else reason)
        self.extack = extack


def u8(value: int) -> bytes:
    return struct.pack("=B", value)


def u32(value: int) -> bytes:
    return struct.pack("=I", value)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def encode(attrs: Attrs) -> bytes:
    out = b""
    for kind, value in attrs:
        if isinstance(value, list):
            data = encode(value)
            kind |= NLA_F_NESTED
        elif isinstance(value, int):
            data = u32(value)
        else:
            data = value
        out += struct.pack("=HH", 4 + len(data), kind) + data
        out += bytes(-len(out) % 4)
    return out


def decode(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            return
        yield kind & NLA_TYPE_MASK, data[4:size]
        data = data[(size + 3) & ~3:]


def number(data: bytes) -> int:
    return int.from_bytes(data, "little")


def check_error(message: bytes, flags: int) -> None:
    """Raise what an NLMSG_ERROR says, unless that is success."""
    code = -struct.unpack_from("=i", message)[0]
    if not code:
        return
    extack = ""
    if flags & NLM_F_ACK_TLVS:
        inner = struct.unpack_from("=I", message, 4)[0]
        skip = 4 + (16 if flags & NLM_F_CAPPED else inner)
        for kind, value in decode(message[(skip + 3) & ~3:]):
            if kind == 1:
                extack = value.rstrip(b"\0").decode()
    raise NetlinkError(code, extack)


def set_link(ifindex: int, attrs: Attrs) -> None:
    """Change attributes of a device by rtnetlink."""
    body = struct.pack("=BBHiII", 0, 0, 0, ifindex, 0, 0) + encode(attrs)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        sock.send(struct.pack("=IHHII", 16 + len(body), RTM_SETLINK,
                              NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
        reply = sock.recv(1 << 16)
    check_error(reply[16:], struct.unpack_from("=IHH", reply)[2])


class Family:
    """A socket for one generic netlink family. Closing it ends its bindings."""

    def __init__(self, name: str) -> None:
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        self._sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._sock.bind((0, 0))
        self._seq = 0
        self._id = GENL_ID_CTRL
        reply = self.call(3, [(2, text(name))])
        self._id = next(number(v) for k, v in reply[0] if k == 1)

    def __enter__(self) -> "Family":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    def call(self, cmd: int, attrs: Attrs, dump: bool = False,
             ) -> list[list[tuple[int, bytes]]]:
        """Send a request; one list of attributes per message of the reply."""
        self._seq += 1
        flags = NLM_F_REQUEST | (NLM_F_DUMP if dump else NLM_F_ACK)
        body = struct.pack("=BBH", cmd, 1, 0) + encode(attrs)
        self._sock.send(struct.pack("=IHHII", 16 + len(body), self._id, flags,
                                    self._seq, 0) + body)
        replies: list[list[tuple[int, bytes]]] = []
        while True:
            data = self._sock.recv(1 << 20)
            while data:
                size, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
                message, data = data[16:size], data[(size + 3) & ~3:]
                if kind == NLMSG_DONE:
                    return replies
                if kind == NLMSG_ERROR:
                    check_error(message, flags)
                    return replies
                replies.append(list(decode(message[4:])))


# netdev family: commands and attributes as in the kernel's UAPI headers
PAGE_POOL_GET, QUEUE_GET, NAPI_GET, QSTATS_GET, BIND_RX = 5, 10, 11, 12, 13


def bind_rx(family: Family, ifindex: int, queues: list[int], fd: int,
            page_size: Optional[int] = None) -> int:
    """Bind a dmabuf to Rx queues, return the id of the binding."""
    attrs: Attrs = [(1, ifindex), (3, fd)]
    attrs += [(2, [(1, q), (3, 0)]) for q in queues]
    if page_size is not None:
        attrs.append((5, page_size))
    reply = family.call(BIND_RX, attrs)
    return next(number(v) for k, v in reply[0] if k == 4)


def queue_get(ifindex: int, queue: int) -> dict[str, int]:
    """napi-id and, if there are any, the dmabuf binding of an Rx queue."""
    names = {1: "id", 4: "napi-id", 5: "dmabuf"}
    with Family("netdev") as family:
        reply = family.call(QUEUE_GET, [(2, ifindex), (3, 0), (1, queue)])
    return {names[k]: number(v) for k, v in reply[0] if k in names}


def napis(ifindex: int) -> list[int]:
    """Ids of the NAPI instances of a device."""
    with Family("netdev") as family:
        replies = family.call(NAPI_GET, [(1, ifindex)], dump=True)
    return [number(dict(reply)[2]) for reply in replies]


def napi_irqs(ifindex: int) -> dict[int, int]:
    """Interrupts of the NAPI instances of a device, by their ids."""
    with Family("netdev") as family:
        replies = family.call(NAPI_GET, [(1, ifindex)], dump=True)
    return {number(napi[2]): number(napi[3]) for napi in map(dict, replies)
            if 3 in napi}


def page_pools() -> list[dict[str, int]]:
    """All page pools of this network namespace."""
    names = {1: "id", 2: "ifindex", 3: "napi-id", 4: "inflight",
             5: "inflight-mem", 6: "detach-time", 7: "dmabuf"}
    with Family("netdev") as family:
        replies = family.call(PAGE_POOL_GET, [], dump=True)
    return [{names[k]: number(v) for k, v in reply if k in names}
            for reply in replies]


PER_QUEUE = 1
RX_STATS = {8: "packets", 9: "bytes", 12: "alloc-fail", 13: "hw-drops",
            14: "hw-drop-overruns", 19: "hw-gro-packets",
            21: "hw-gro-wire-packets"}


def rx_stats(ifindex: int) -> dict[int, dict[str, int]]:
    """Counters of each Rx queue of a device."""
    with Family("netdev") as family:
        replies = family.call(QSTATS_GET, [(1, ifindex), (4, PER_QUEUE)],
                              dump=True)
    stats = {}
    for reply in replies:
        attrs = dict(reply)
        if number(attrs.get(2, u32(1))) == 0:
            stats[number(attrs[3])] = {name: number(attrs[k])
                                       for k, name in RX_STATS.items()
                                       if k in attrs}
    return stats


# ethtool family
RINGS_GET, RINGS_SET, RSS_GET, RSS_SET = 15, 16, 38, 48
RINGS = {"rx-max": 2, "tx-max": 5, "rx": 6, "tx": 9, "tcp-data-split": 11,
         "hds-thresh": 17, "hds-thresh-max": 18}
SPLIT_AUTO, SPLIT_OFF, SPLIT_ON = 0, 1, 2
SYM_XOR, SYM_OR_XOR = 1, 2
FLOWS = {"tcp4": 4, "tcp6": 5, "udp4": 6, "udp6": 7}
FIELDS = {"s": 1 << 4, "d": 1 << 5, "f": 1 << 6, "n": 1 << 7,
          "l": 1 << 9}


def rings_get(device: str) -> dict[str, int]:
    """Ring parameters of a device."""
    names = {k: name for name, k in RINGS.items()}
    with Family("ethtool") as family:
        reply = family.call(RINGS_GET, [(1, [(2, text(device))])])
    return {names[k]: number(v) for k, v in reply[0] if k in names}


def rings_set(device: str, **values: int) -> None:
    """Set ring parameters, with an underscore for each dash."""
    attrs: Attrs = [(1, [(2, text(device))])]
    for name, value in values.items():
        kind = RINGS[name.replace("_", "-")]
        attrs.append((kind, u8(value) if kind == 11 else value))
    with Family("ethtool") as family:
        family.call(RINGS_SET, attrs)


def rss_get(device: str, context: int = 0) -> dict[str, int]:
    """How an RSS context transforms what it hashes: SYM_* or 0."""
    attrs: Attrs = [(1, [(2, text(device))])]
    if context:
        attrs.append((2, context))
    with Family("ethtool") as family:
        reply = dict(family.call(RSS_GET, attrs)[0])
    return {"xfrm": number(reply.get(6, b""))}


def rss_set(device: str, context: int = 0, xfrm: Optional[int] = None,
            fields: Optional[dict[str, str]] = None,
            table: Optional[list[int]] = None) -> None:
    """Set the transformation of an RSS context, what it hashes by flow, and
    its table, which repeats."""
    attrs: Attrs = [(1, [(2, text(device))])]
    if context:
        attrs.append((2, context))
    if table is not None:
        attrs.append((4, b"".join(map(u32, table))))
    if xfrm is not None:
        attrs.append((6, xfrm))
    if fields is not None:
        attrs.append((8, [(FLOWS[flow], sum(FIELDS[each] for each in letters))
                          for flow, letters in fields.items()]))
    with Family("ethtool") as family:
        family.call(RSS_SET, attrs)


def rss_contexts(ifindex: int) -> list[int]:
    """RSS contexts of a device besides the default one."""
    with Family("ethtool") as family:
        replies = [dict(r) for r in family.call(RSS_GET, [], dump=True)]
    return [number(r[2]) for r in replies
            if 2 in r and dict(decode(r[1]))[1] == u32(ifindex)]
