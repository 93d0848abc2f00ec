#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 11. DMA_BUF_IOCTL_SYNC of a udmabuf made of a huge page, where DMA goes through swiotlb or is checked."""

import fcntl
import struct

import common
from common import devmem

DMA_BUF_IOCTL_SYNC = 0x40086200
START, END, READ = 0, 4, 1


def main() -> None:
    """The ioctl fails, or the kernel complains, or neither."""
    memory = devmem.Memory(2 << 20, huge=True)
    memory.bytes[:4] = b"data"
    for when in START, END:
        try:
            fcntl.ioctl(memory.fd, DMA_BUF_IOCTL_SYNC, struct.pack("=Q", READ | when))
        except OSError as error:
            common.there(f"DMA_BUF_IOCTL_SYNC: {error}")
    assert memory.bytes[:4] == b"data"


if __name__ == "__main__":
    main()
