#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train on several ranks of torchrun, each with a stream of rows from Ray's workers: train.py --help"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpurx
from gpurx.torch import as_tensor

FEATURES = 32


def train(stream: gpurx.TensorStream, device: torch.device) -> torch.Tensor:
    """One pass over the rows. Returns how many this rank had, the sum of their numbers, and the last loss."""
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = ids = 0
    loss = torch.zeros(())
    # A rank whose rows are all there takes part until the others have theirs.
    with model.join():
        for batch in stream:
            x, y = as_tensor(batch.x), as_tensor(batch.y)
            loss = torch.nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += batch.rows
            ids += int(as_tensor(batch.id).sum())
    return torch.tensor([rows, ids, loss.item()], dtype=torch.float64, device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="of rank 0; rank r has PORT + r")
    parser.add_argument("--sources", type=int, default=16, help="that all ranks share")
    parser.add_argument("--memory", choices=("host", "gpu"), default="host", help="gpu: that of the rank's number")
    parser.add_argument("--interface", default="", help="of the NIC that is to write into it")
    wanted = parser.parse_args()
    rank, ranks, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    on_gpu = wanted.memory == "gpu"
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    host, _, port = wanted.listen.rpartition(":")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    with gpurx.TensorStream(
        f"{host}:{int(port) + rank}",
        memory=f"gpu:{local}" if on_gpu else "host",
        interface=wanted.interface,
        sources=wanted.sources,
        rank=rank,
        world_size=ranks,
    ) as stream:
        result = train(stream, device)
    dist.all_reduce(result)
    if rank == 0:
        rows, ids, loss = result.tolist()
        print(f"{rows:.0f} rows, the sum of their numbers {ids:.0f}, loss {loss / ranks:.4f}, {ranks} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
