# SPDX-License-Identifier: Apache-2.0
"""Sessions: memory and queues of a NIC."""

from __future__ import annotations

import os
from types import TracebackType

from . import _native
from ._arguments import Device, flag, path, text, whole


class Session(_native.Session):
    """Memory that a NIC writes into, and the queues of the NIC that are bound to it.

    TensorStream and the loading functions open a session if they get none. Several of them can share one.

    * memory: memory for the NIC: "host", "cpu" or None; "gpu:0", "cuda:0", 0 or a torch.device.
    * size: bytes of the memory. More flows need more (MEMORY_TOO_SMALL).
    * interface: name of the NIC. Empty: only transport copy works. If set, the interface must exist, whatever the transport.
    * transport: "devmem", "zcrx", "copy" or "automatic". "automatic" falls back to copy, and explain() has the reason. Another
      value that cannot work raises Error.
    * allow_zcrx: whether "automatic" may use zcrx, which costs less than devmem on a stock kernel. No hardware NIC has run it.
    * rx_queues: RX queues to set aside, the last ones of the NIC.
    * max_flows: flows at one time.
    * rx_page_size: bytes of a page at the NIC: a power of two, at least a page of the kernel. 0: a page of the kernel.
    * state_directory: directory of the journal of changes. A later session undoes the changes of a killed one.

    Opening a session takes some 100 ms. Several threads may use it. A closed session raises Error.
    So does receiving in a forked child.
    """

    def __init__(
        self,
        memory: Device = "host",
        *,
        size: int = 64 << 20,
        interface: str = "",
        transport: str = "automatic",
        allow_zcrx: bool = False,
        rx_queues: int = 1,
        max_flows: int = 16,
        rx_page_size: int = 0,
        state_directory: str | os.PathLike[str] = "/run/gpurx",
    ) -> None:
        super().__init__(
            memory,
            whole("size", size),
            text("interface", interface),
            text("transport", transport),
            flag("allow_zcrx", allow_zcrx),
            whole("rx_queues", rx_queues, 32),
            whole("max_flows", max_flows, 32),
            whole("rx_page_size", rx_page_size, 32),
            path("state_directory", state_directory),
        )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
