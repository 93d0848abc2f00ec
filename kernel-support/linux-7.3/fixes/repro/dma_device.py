#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 1. The driver goes with its DMA device, while memory is bound; then the binding ends."""

import common
from common import devmem, lab


def main() -> None:
    """The kernel complains, or it does not."""
    common.load_nic("keep_device=0")
    with devmem.Binding(common.DEVICE, [1], 1 << 20):
        lab.run("rmmod devmemsim")
        common.settle()
    common.settle()


if __name__ == "__main__":
    main()
