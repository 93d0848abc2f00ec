#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 6. Receive device memory when no node for a token is to be had without waiting."""

import os

import common
from common import devmem, lab


def main() -> None:
    """The process waits with BHs disabled, or enabled."""
    common.load_nic()
    lab.run(f"ethtool -X {common.DEVICE} equal 1")
    with devmem.Binding(common.DEVICE, [1], 1 << 20) as binding, lab.listen(lab.LOCAL[4]) as server:
        port = server.getsockname()[1]
        with lab.rule(f"tcp4 dst-port {port} action 1"):
            lab.Sender(lab.connect(lab.LOCAL[4], port, "peer"), 1 << 14)
            sock, _ = server.accept()
            received: list[bytes] = []
            receiver = devmem.Receiver(sock, binding, received.append)
            common.watch(os.getpid())
            receiver.run()
            # page_pool_sleep.py shows the page pool of a queue that restarts
            common.watch(0)
            sock.close()
    assert sum(map(len, received)) == 1 << 14
    common.check_waits("recvmsg()")


if __name__ == "__main__":
    main()
