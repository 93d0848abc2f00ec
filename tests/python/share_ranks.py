# SPDX-License-Identifier: Apache-2.0
"""A rank of test_distributed.py, in a process that is forked with torch imported."""

from __future__ import annotations

import json
import os
import resource
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

warnings.simplefilter("ignore")  # of a torch for an older numpy

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import gpurx  # noqa: E402
import gpurx.distributed  # noqa: E402

RANK, RANKS, URL = 0, 0, ""
test: Connection[Any, Any]
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
    test.send("go")
    test.recv()
    loaded = gpurx.distributed.load(URL, plan, memory_limit=3 << 20, **OPTIONS)
    test.send("done")
    test.recv()
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
    resource.setrlimit(resource.RLIMIT_DATA, (data + wanted + limit + (12 << 20),) * 2)
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


def with_whole_tensors() -> None:
    """A model of two linear layers and an embedding, which each rank cuts for itself."""
    test.send("go")
    test.recv()
    parts, order = {}, []
    for name, whole in gpurx.distributed.tensors(URL, memory_limit=60 << 20, **OPTIONS):
        order.append(name)
        if name in ("embedding", "up"):  # rows
            parts[name] = whole.chunk(RANKS)[RANK].clone()
        elif name == "down":
            parts[name] = whole.chunk(RANKS, 1)[RANK].clone()
        else:
            parts[name] = whole.clone()
            whole.zero_()  # no other rank sees it
    test.send("done")
    test.recv()
    checksums = [int(one.reshape(-1).view(torch.uint8).long().sum()) for name, one in sorted(parts.items()) if "other" in name]
    assert torch.equal(gpurx.distributed.load(URL, {"norm": ...}, **OPTIONS)["norm"], parts["norm"])
    test.send([order, checksums, logits(parts).tolist()])


def logits(parts: dict[str, Any]) -> Any:
    """Of some tokens, by the ranks together."""
    tokens = torch.arange(0, 400, 133)
    rows = parts["embedding"].shape[0]
    ours = (tokens >= RANK * rows) & (tokens < (RANK + 1) * rows)
    states = torch.where(ours[:, None], parts["embedding"][(tokens - RANK * rows).clamp(0, rows - 1)], torch.tensor(0.0))
    dist.all_reduce(states)
    states = torch.relu((states * parts["norm"]) @ parts["up"].T) @ parts["down"].T
    dist.all_reduce(states)
    found = [torch.empty(len(tokens), rows) for _ in range(RANKS)]
    dist.all_gather(found, states @ parts["embedding"].T)
    return torch.cat(found, 1)


def stopping() -> None:
    """One rank fails to read, or has no use for the rest. All others learn it."""
    passed_on = gpurx.distributed._passed_on

    def failing(*arguments: Any) -> Any:
        if RANK == 1:
            raise gpurx.Error("the disk is on fire")
        return passed_on(*arguments)

    gpurx.distributed._passed_on = failing
    for words in ("the disk is on fire", "it has ended before the last tensor"):
        try:
            for _ in gpurx.distributed.tensors(URL, **OPTIONS):
                if RANK == 1:
                    break
        except gpurx.Error as error:
            assert words in str(error) and ("rank 1" in str(error)) == (RANK != 1), str(error)
        else:
            assert RANK == 1 and words.startswith("it has ended")
        gpurx.distributed._passed_on = passed_on
        dist.barrier()
    # They are of one mind still.
    assert sum(1 for _ in gpurx.distributed.tensors(URL, **OPTIONS)) == 6


def of_small_files() -> None:
    wanted = gpurx.distributed._wanted

    def opened(*arguments: Any) -> Any:
        test.send("opened")
        test.recv()
        return wanted(*arguments)

    plan = {name: ... for name in shapes()}
    gpurx.distributed._wanted = opened
    check(gpurx.distributed.load(URL, plan, flows=16, **OPTIONS), plan)


def twice() -> None:
    try:
        for _ in gpurx.distributed.tensors(json.loads(URL), **OPTIONS):
            pass
    except gpurx.Error as error:
        assert "tensor 'a' is in two files" in str(error), str(error)
    else:
        raise AssertionError


CASES = (all_of_it, on_two_nodes, under_a_limit, failing, with_whole_tensors, stopping, twice, of_small_files)


def run(connection: Connection[Any, Any], rank: int, ranks: int, store: str, url: str, case: str) -> None:
    """Sends what the case says, and "ok" or a traceback."""
    global RANK, RANKS, URL, test
    RANK, RANKS, URL, test = rank, ranks, url, connection
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=RANK, world_size=RANKS)
        {one.__name__: one for one in CASES}[case]()
        dist.barrier()
        # Without this torch's threads of the group can abort a rank whose peer has ended before it.
        dist.destroy_process_group()
        test.send("ok")
    except BaseException:
        test.send(traceback.format_exc())
        raise
