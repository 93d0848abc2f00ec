#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 6. Receive device memory when no node for a token is to be had without waiting."""

import os

import common
from common import devmem, lab

PARAMETERS = "/sys/module/no_memory/parameters"


def read(name: str) -> int:
    """A number that the module has."""
    with open(f"{PARAMETERS}/{name}", encoding="ascii") as file:
        return int(file.read())


def watch(pid: int) -> None:
    """Which process the module looks at."""
    with open(f"{PARAMETERS}/pid", "w", encoding="ascii") as file:
        file.write(str(pid))


def main() -> None:
    """The process waits with BHs disabled, or enabled."""
    common.load_nic()
    lab.run(f"insmod {os.environ['NO_MEMORY_KO']}")
    lab.run(f"ethtool -X {common.DEVICE} equal 1")
    with devmem.Binding(common.DEVICE, [1], 1 << 20) as binding, lab.listen(lab.LOCAL[4]) as server:
        port = server.getsockname()[1]
        with lab.rule(f"tcp4 dst-port {port} action 1"):
            lab.Sender(lab.connect(lab.LOCAL[4], port, "peer"), 1 << 14)
            sock, _ = server.accept()
            received: list[bytes] = []
            receiver = devmem.Receiver(sock, binding, received.append)
            watch(os.getpid())
            receiver.run()
            # The page pool of a queue that is restarted has the same mistake
            watch(0)
            sock.close()
    disabled, enabled = read("disabled"), read("enabled")
    print(f"waited with BHs disabled {disabled} times, enabled {enabled} times")
    assert sum(map(len, received)) == 1 << 14
    if disabled:
        common.there("recvmsg() waits for memory with BHs disabled")
    assert enabled, "nothing was tried"


if __name__ == "__main__":
    main()
