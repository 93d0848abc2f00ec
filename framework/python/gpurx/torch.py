# SPDX-License-Identifier: Apache-2.0
"""Streams of tensors as torch's data loaders want them. Needs torch, which the rest of the package does not.

    loader = DataLoader(gpurx.torch.StreamDataset(stream), batch_size=None, num_workers=0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from ._stream import TensorStream

WHY_NO_WORKERS = (
    "a gpurx stream is read in the process that made it: a worker of DataLoader is another, CUDA contexts do not survive "
    "a fork, and the NIC's queues and the memory that they write into belong to this process. Use "
    "DataLoader(num_workers=0): receiving happens in threads of the library, which wait for no worker and no GIL"
)


class StreamDataset(IterableDataset):  # type: ignore[misc, unused-ignore]
    """A TensorStream's batches as dicts of torch tensors, which share its memory. For DataLoader(batch_size=None)."""

    def __init__(self, stream: TensorStream) -> None:
        super().__init__()
        self.stream = stream

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise RuntimeError(WHY_NO_WORKERS)
        for batch in self.stream:
            yield {name: torch.from_dlpack(one) for name, one in batch.items()}
