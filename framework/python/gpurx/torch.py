# SPDX-License-Identifier: Apache-2.0
"""Tensors of every element type as torch tensors, and streams for torch's data loaders. Needs torch; `import gpurx` does
not.

    weights = gpurx.torch.load_file("http://10.77.0.2/model.safetensors", device="cuda:0")
    loader = DataLoader(gpurx.torch.StreamDataset(stream), batch_size=None, num_workers=0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

try:
    import torch  # else the error names torch.utils
    from torch.utils.data import IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "gpurx.torch needs torch, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
        name="torch",
    ) from None

from ._arguments import Device
from ._convert import to_torch
from ._locations import Locations
from ._native import Tensor
from ._open import load_as
from ._stream import TensorStream

WHY_NO_WORKERS = (
    "only the process that made a gpurx stream can read it, and a worker of DataLoader is another: CUDA contexts do not survive "
    "a fork, and the NIC's queues and the memory that they write into belong to this process. Use "
    "DataLoader(num_workers=0): receiving happens in threads of the library, which wait for no worker and no GIL"
)


def as_tensor(one: Tensor) -> torch.Tensor:
    """Return a torch tensor with the same memory, also for element types that torch's DLPack lacks.

    Torch stores elements of four bits in pairs, so the last dimension is half as long. Raises TypeError if this torch has
    no such type; `one.view("uint8")` then gives the bytes.
    """
    tensor: torch.Tensor = to_torch(one)
    return tensor


def load_file(
    url: Locations, device: Device = "cpu", *, into: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, torch.Tensor]:
    """Load all tensors of a model as torch tensors, as safetensors.torch.load_file does, also from servers and from several
    files.

    `url` and `options` are those of gpurx.safe_open(), and `into` is that of its get_tensors(): CPU tensors to fill, such
    as model.state_dict(). Raises gpurx.Error if the load fails.
    """
    return load_as("pt", url, device, options, into)


class StreamDataset(IterableDataset):  # type: ignore[misc, unused-ignore]
    """Provide a TensorStream's batches as dicts of torch tensors, which share its memory.

    Use it with DataLoader(batch_size=None, num_workers=0). Iteration in a worker process raises RuntimeError.
    """

    def __init__(self, stream: TensorStream) -> None:
        super().__init__()
        self.stream = stream

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        if get_worker_info() is not None:
            raise RuntimeError(WHY_NO_WORKERS)
        for batch in self.stream:
            yield {name: as_tensor(one) for name, one in batch.items()}
