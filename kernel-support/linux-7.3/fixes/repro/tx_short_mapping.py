#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 3. Send from an offset that the dmabuf has, and its mapping has not."""

import errno
import fcntl
import os

import common
from common import lab, netlink


def main() -> None:
    """The kernel complains, or sendmsg() fails with EFAULT."""
    common.load_nic()
    lab.run(f"insmod {os.environ['EXPORTER_KO']}")
    with open("/dev/exporter", "rb") as exporter:
        dmabuf = fcntl.ioctl(exporter, 64, 1)
    with netlink.Family("netdev") as family, lab.listen(common.PEER, "peer") as server:
        binding = common.bind_tx(family, dmabuf)
        with lab.connect(common.PEER, server.getsockname()[1]) as sock:
            assert common.send(sock, binding, 0, 100) == 100
            sent = common.send(sock, binding, 32 * 4096, 100)
            if sent != -errno.EFAULT:
                common.there(f"sendmsg() from behind the mapping: {sent}")
    os.close(dmabuf)
    common.settle()


if __name__ == "__main__":
    main()
