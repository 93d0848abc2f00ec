# SPDX-License-Identifier: Apache-2.0
"""A rank of a job whose tensors are sharded, for torchrun:  shards.py save DIRECTORY | shards.py load URL

Saves rows of a matrix per rank with torch's own writer, or loads columns per rank with gpurx, and compares.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import gpurx.dcp

WHOLE = torch.arange(101 * 7, dtype=torch.float32).reshape(101, 7)
BIAS = torch.arange(11, dtype=torch.bfloat16)


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if sys.argv[1].startswith("save"):
        state = {"matrix": distribute_tensor(WHOLE, mesh, [Shard(0)]), "bias": distribute_tensor(BIAS, mesh, [Replicate()])}
        writer = gpurx.dcp.StorageWriter() if sys.argv[1] == "save-by-gpurx" else None
        dcp.save(state, checkpoint_id=sys.argv[2], storage_writer=writer)
    else:
        state = {
            "matrix": distribute_tensor(torch.zeros_like(WHOLE), mesh, [Shard(1)]),
            "bias": distribute_tensor(torch.zeros_like(BIAS), mesh, [Shard(0)]),
        }
        dcp.load(state, storage_reader=gpurx.dcp.StorageReader(sys.argv[2], transport="copy"))
        assert isinstance(state["matrix"], DTensor)
        assert torch.equal(state["matrix"].full_tensor(), WHOLE) and torch.equal(state["bias"].full_tensor(), BIAS)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
