#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Machines on which the module must not load. Needs a kernel booted with
swiotlb=force, and no module loaded."""

import os
import subprocess

import lab
from tap import check, main


def test_bounce_buffers() -> None:
    load = subprocess.run(["insmod", lab.module()], capture_output=True,
                          text=True, check=False)
    check(load.returncode != 0, "the module loaded")
    # That no device came of it is all that insmod is told; why, the log says.
    check("No such device" in load.stderr, load.stderr)
    check(not os.path.exists("/sys/class/net/dms0"), "dms0 exists")
    check("boot without swiotlb=force" in lab.run("dmesg"), "no reason")


def setup() -> None:
    with open("/proc/cmdline", encoding="ascii") as command_line:
        check("swiotlb=force" in command_line.read(), "not this machine")


if __name__ == "__main__":
    main(globals(), setup, lambda: None)
