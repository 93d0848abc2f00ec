# SPDX-License-Identifier: Apache-2.0
"""A rank of test_distributed.py:  share_ranks.py RANK RANKS STORE URL CASE"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from typing import Any

import numpy as np

warnings.simplefilter("ignore")  # of a torch for an older numpy

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import gpurx  # noqa: E402
import gpurx.distributed  # noqa: E402

RANK, RANKS = int(sys.argv[1]), int(sys.argv[2])
URL, CASE = sys.argv[4:]
OPTIONS: dict[str, Any] = {"transport": "copy", "size": 1 << 20, "chunk_size": 1 << 18}


def plan_of(shapes: dict[str, list[int]]) -> dict[str, Any]:
    """All that slices can be."""
    plan: dict[str, Any] = {}
    for name, shape in shapes.items():
        if len(shape) < 2:
            plan[name] = ...
        elif "column" in name:
            plan[name] = np.s_[:, RANK * shape[1] // RANKS : (RANK + 1) * shape[1] // RANKS]
        elif "row" in name:
            plan[name] = np.s_[RANK * shape[0] // RANKS : (RANK + 1) * shape[0] // RANKS]
        elif "odd" in name:
            plan[name] = np.s_[RANK :: RANKS + 1, -1] if RANK else np.s_[3:3]
        elif RANK != 1:
            plan[name] = np.s_[:]
    return plan


def check(loaded: dict[str, Any], plan: dict[str, Any]) -> None:
    with gpurx.safe_open(URL, "pt", **OPTIONS) as file:
        assert loaded.keys() == plan.keys()
        for name, one in loaded.items():
            expected = file.get_slice(name)[plan[name]]
            assert one.dtype == expected.dtype and one.shape == expected.shape, name
            assert torch.equal(one, expected), name


def shapes() -> dict[str, list[int]]:
    with gpurx.safe_open(URL, "pt", **OPTIONS) as file:
        return {name: file.get_slice(name).get_shape() for name in file.keys()}


def all_of_it() -> None:
    plan = plan_of(shapes())
    print("go", flush=True)
    sys.stdin.readline()
    loaded = gpurx.distributed.load(URL, plan, memory_limit=3 << 20, **OPTIONS)
    print("done", flush=True)
    sys.stdin.readline()
    check(loaded, plan)


def on_two_nodes() -> None:
    gpurx.distributed._node = lambda: str(RANK % 2)
    all_of_it()


def under_a_limit() -> None:
    """Of memory: what is wanted, what is declared, and a little."""
    plan = plan_of(shapes())
    limit = 12 << 20
    warm = {name: index for name, index in plan.items() if name == "warm.column"}
    gpurx.distributed.load(URL, warm, memory_limit=limit, **OPTIONS)
    data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    wanted = 122 << 20
    resource.setrlimit(resource.RLIMIT_DATA, (data + wanted + limit + (24 << 20),) * 2)
    loaded = gpurx.distributed.load(URL, plan, memory_limit=limit, **OPTIONS)
    assert sum(one.numel() for one in loaded.values()) == wanted
    for name, one in loaded.items():
        assert one.min() == one.max() == int(name.split(".")[0].replace("warm", "1")), name
    try:
        gpurx.distributed.load(URL, warm, memory_limit=1 << 10, **OPTIONS)
    except ValueError as error:
        assert "memory_limit" in str(error)
    else:
        raise AssertionError


def failing() -> None:
    """In the middle, on a rank that others wait for; and before, on one."""
    plan = {name: ... for name in shapes()}
    read = gpurx.distributed._Exchange._read
    blocks = 0

    def failing_read(self: Any, block: Any) -> Any:
        nonlocal blocks
        blocks += 1
        if RANK == 1 and blocks == 2:
            self._failure = gpurx.Error("the disk is on fire")
        return read(self, block)

    gpurx.distributed._Exchange._read = failing_read  # type: ignore[method-assign]
    for load, words in (
        (lambda: gpurx.distributed.load(URL, plan, memory_limit=1 << 20, **OPTIONS), "the disk is on fire"),
        (lambda: gpurx.distributed.load(URL, plan | ({"absent": ...} if RANK == 1 else {}), **OPTIONS), "tensor 'absent'"),
    ):
        try:
            load()
        except gpurx.Error as error:
            assert words in str(error) and ("rank 1" in str(error)) == (RANK != 1), str(error)
        else:
            raise AssertionError
    # They are of one mind still.
    check(gpurx.distributed.load(URL, plan, **OPTIONS), plan)


dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=RANK, world_size=RANKS)
{one.__name__: one for one in (all_of_it, on_two_nodes, under_a_limit, failing)}[CASE]()
dist.barrier()
print(json.dumps("ok"), flush=True)
