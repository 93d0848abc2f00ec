# SPDX-License-Identifier: Apache-2.0
"""Tensors of every element type as torch's, and streams of them for its data loaders. Needs torch; the rest of the package
does not.

    weights = gpurx.torch.load_file("http://10.77.0.2/model.safetensors", device="cuda:0")
    loader = DataLoader(gpurx.torch.StreamDataset(stream), batch_size=None, num_workers=0)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

try:
    import torch  # noqa: F401  # else the error names torch.utils
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gpurx.torch needs torch, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
        name="torch",
    ) from None

from ._convert import to_torch
from ._locations import Locations
from ._native import Tensor
from ._open import load_as
from ._stream import TensorStream

WHY_NO_WORKERS = (
    "a gpurx stream is read in the process that made it: a worker of DataLoader is another, CUDA contexts do not survive "
    "a fork, and the NIC's queues and the memory that they write into belong to this process. Use "
    "DataLoader(num_workers=0): receiving happens in threads of the library, which wait for no worker and no GIL"
)


def as_tensor(one: Tensor) -> Any:
    """Returns a tensor of torch on the same memory, for every element type, also those that torch's DLPack lacks.

    torch has pairs of elements of four bits: the last dimension is half as long. A type that this torch lacks raises TypeError;
    `one.view("uint8")` has its bytes.
    """
    return to_torch(one)


def load_file(url: Locations, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    """Loads all tensors as torch's, as safetensors.torch.load_file does, also from a server and from several files. The options
    are those of gpurx.safe_open().
    """
    return load_as("pt", url, device, options)


class StreamDataset(IterableDataset):  # type: ignore[misc, unused-ignore]
    """Batches of a TensorStream as dicts of torch tensors, which share its memory. For DataLoader(batch_size=None)."""

    def __init__(self, stream: TensorStream) -> None:
        super().__init__()
        self.stream = stream

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise RuntimeError(WHY_NO_WORKERS)
        for batch in self.stream:
            yield {name: as_tensor(one) for name, one in batch.items()}
