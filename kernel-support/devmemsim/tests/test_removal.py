#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""The module goes and leaves no device behind, while memory is bound. Needs a
kernel where core keeps the device of a binding; others use freed memory."""

import time

import devmem
import lab
import netlink
from tap import eventually, main


def test_binding_outlives_device() -> None:
    with devmem.Binding("dms0", [1], 1 << 20):
        lab.run("rmmod devmemsim")
        lab.await_driver_gone()
        # Freed with RCU, and late if kobjects are being debugged
        time.sleep(5)
    eventually(lambda: not netlink.page_pools(),
               lambda: "page pools are left")


def setup() -> None:
    lab.run("rmmod devmemsim", check=False)
    lab.await_driver_gone()
    lab.run(f"insmod {lab.module()} keep_device=0")
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)


if __name__ == "__main__":
    main(globals(), setup, lambda: None)
