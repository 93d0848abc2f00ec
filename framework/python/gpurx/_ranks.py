# SPDX-License-Identifier: Apache-2.0
"""Addresses of the ranks of a torchrun job. No input or output."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Rank(NamedTuple):
    """Numbers that torchrun gives to a process: global rank, rank on its machine, and the counts of both."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @staticmethod
    def of(environment: Mapping[str, str]) -> Rank:
        """Read the numbers from an environment. Raises ValueError if torchrun did not set them."""

        def number(name: str, default: int | None = None) -> int:
            text = environment.get(name)
            if text is None and default is not None:
                return default
            if text is None or not text.isdigit():
                raise ValueError(f"{name} is {text!r} in the environment: torchrun sets it for its processes")
            return int(text)

        world_size = number("WORLD_SIZE")
        rank = number("RANK")
        local_world_size = number("LOCAL_WORLD_SIZE", world_size)
        local_rank = number("LOCAL_RANK", rank % max(1, local_world_size))
        if not (rank < world_size and local_rank < local_world_size <= world_size):
            raise ValueError(
                f"RANK {rank} of WORLD_SIZE {world_size}, LOCAL_RANK {local_rank} of LOCAL_WORLD_SIZE {local_world_size}: "
                "these do not belong together"
            )
        return Rank(rank, local_rank, world_size, local_world_size)


def rank_addresses(
    port: int, *, hosts: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Return the addresses of the streams of TensorStream.of_rank(port), in the order of the ranks.

    Source s sends to addresses[s % len(addresses)].

    * port: the port of local rank 0 on each machine. Local rank n listens at port + n.
    * hosts: the machines, in the order of their ranks. Each runs the same number of processes. Default: one machine,
      MASTER_ADDR.
    * environment: the environment of a process of the job, or an equal mapping: WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR.
      Default: that of this process.

    Raises ValueError if the environment lacks one of them, or if the hosts do not fit it.
    """
    where = os.environ if environment is None else environment
    known = Rank.of({"RANK": "0", "LOCAL_RANK": "0", **where})
    nodes, rest = divmod(known.world_size, known.local_world_size)
    if hosts is None:
        master = where.get("MASTER_ADDR")
        if master is None or nodes > 1:
            raise ValueError(
                f"hosts= must name the {nodes} machines of WORLD_SIZE {known.world_size}, LOCAL_WORLD_SIZE "
                f"{known.local_world_size}: MASTER_ADDR, {master!r}, names only the first"
            )
        hosts = [master]
    if rest or len(hosts) != nodes:
        raise ValueError(f"{len(hosts)} hosts cannot have {known.world_size} ranks, {known.local_world_size} on each")
    bracketed = [f"[{host}]" if ":" in host else host for host in hosts]
    return [f"{host}:{port + local}" for host in bracketed for local in range(known.local_world_size)]
