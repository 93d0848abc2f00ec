#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Patch 9. A rule adds to the queue of an RSS context; DEVMEMSIM_KO is a NIC that leaves it to the core to keep the sum."""

import common
from common import lab


def main() -> None:
    """The queue that the rule reaches goes, or the kernel refuses to take it away."""
    common.load_nic()
    lab.set_channels(4)
    lab.run(f"ethtool -X {common.DEVICE} equal 2")
    context = lab.run(f"ethtool -X {common.DEVICE} context new equal 2").split()[-1]
    lab.add_rule(f"tcp4 dst-port 1234 context {context} action 1")
    try:
        # The rule reaches the queues 1 and 2.
        lab.set_channels(2)
    except RuntimeError as error:
        print(f"refused: {error}")
        return
    common.there("a rule sends to queue 2, and there are 2 queues")


if __name__ == "__main__":
    main()
