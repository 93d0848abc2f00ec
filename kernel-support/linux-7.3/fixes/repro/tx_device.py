#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 5. A user without privileges binds memory for sending, the device goes, the user's netlink socket is closed."""

import os
import signal

import common
from common import devmem, lab, netlink

NOBODY = 65534


def user(memory: devmem.Memory, bound: int, gone: int) -> None:
    """Bind, say so, wait for the device to go, and end."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    with netlink.Family("netdev") as family:
        common.bind_tx(family, memory.fd)
        os.write(bound, b"x")
        os.read(gone, 1)


def main() -> None:
    """The kernel complains, or it does not."""
    common.load_nic()
    memory = devmem.Memory(1 << 20)
    bound, gone = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            user(memory, bound[1], gone[0])
        finally:
            os._exit(0)
    os.close(bound[1])
    assert os.read(bound[0], 1), "bind-tx failed"
    lab.run("rmmod devmemsim")
    common.settle()
    os.write(gone[1], b"x")
    signal.alarm(30)
    if os.waitpid(child, 0)[1]:
        common.there("the process died of it")
    common.settle()


if __name__ == "__main__":
    main()
