#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 12. Fill the rings of a NIC when no node for a DMA index is to be had without waiting. No device memory here."""

import os

import common
from common import netlink


def main() -> None:
    """The process waits with BHs disabled, or enabled."""
    common.load_nic()
    common.watch(os.getpid())
    netlink.rings_set(common.DEVICE, rx=64)
    common.watch(0)
    common.check_waits("page_pool_register_dma_index()")


if __name__ == "__main__":
    main()
