#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 4. Bind a dmabuf for sending that maps to more than its size."""

import errno
import fcntl
import os

import common
from common import lab, netlink


def main() -> None:
    """The kernel complains, or the binding is refused."""
    common.load_nic()
    lab.run(f"insmod {os.environ['EXPORTER_KO']}")
    with open("/dev/exporter", "rb") as exporter:
        dmabuf = fcntl.ioctl(exporter, 4, 8)
    with netlink.Family("netdev") as family:
        try:
            common.bind_tx(family, dmabuf)
        except OSError as error:
            assert error.errno == errno.EINVAL, error
            return
    os.close(dmabuf)
    common.settle()
    common.there("it was bound")


if __name__ == "__main__":
    main()
