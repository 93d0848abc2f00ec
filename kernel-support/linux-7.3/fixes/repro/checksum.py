#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 10. A packet with a wrong checksum arrives in device memory; DEVMEMSIM_KO is a NIC that hands it up there."""

import socket
import struct
import time

import common
from common import devmem, lab

PORT = 5000
PACKET = struct.pack("!HHIIBBHHH", 6000, PORT, 1, 1, 5 << 4, 0x10, 1000, 0xbad, 0) + bytes(1000)


def errors() -> int:
    """TCP packets with a wrong checksum."""
    return int(lab.run("nstat -az TcpInCsumErrors | awk '/Csum/ {print $2}'"))


def main() -> None:
    """The kernel complains, or drops the packet. Nobody listens on the port, there is no connection."""
    common.load_nic()
    lab.run(f"ethtool -X {common.DEVICE} equal 1")
    with devmem.Binding(common.DEVICE, [1], 1 << 20), lab.rule(f"tcp4 dst-port {PORT} action 1"):
        before = errors()
        with lab.namespace("peer"):
            sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
        with sender:
            sender.sendto(PACKET, (lab.LOCAL[4], 0))
        time.sleep(2)
        print(f"{errors() - before} packets with a wrong checksum")
        assert errors() - before == 1


if __name__ == "__main__":
    main()
