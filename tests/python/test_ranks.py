# SPDX-License-Identifier: Apache-2.0
"""Ranks of torchrun: which listens where, and which sources it has."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import gpurx

TWO_NODES = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
ONE_NODE = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}


def test_addresses_in_the_order_of_ranks() -> None:
    assert gpurx.rank_addresses(9000, environment=ONE_NODE) == ["10.0.0.1:9000", "10.0.0.1:9001"]
    assert gpurx.rank_addresses(9000, hosts=["a", "fd00::1"], environment=TWO_NODES) == [
        "a:9000",
        "a:9001",
        "[fd00::1]:9000",
        "[fd00::1]:9001",
    ]


@pytest.mark.parametrize(
    ("hosts", "change", "says"),
    [
        (None, {}, "hosts= must name the 2 machines"),
        (["a"], {}, "1 hosts cannot have 4 ranks"),
        (["a", "b"], {"WORLD_SIZE": "5"}, "2 hosts cannot have 5 ranks"),
        (["a", "b"], {"WORLD_SIZE": "four"}, "WORLD_SIZE is 'four' in the environment"),
        (["a", "b"], {"RANK": "4"}, "do not belong together"),
    ],
)
def test_an_environment_that_does_not_say_enough(hosts: list[str] | None, change: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        gpurx.rank_addresses(9000, hosts=hosts, environment={**TWO_NODES, **change})


def test_a_process_that_torchrun_did_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match="WORLD_SIZE is None in the environment: torchrun sets it"):
        gpurx.TensorStream.of_rank(9000)


RANK = """
import gpurx, sys
with gpurx.TensorStream.of_rank(int(sys.argv[1]), sources=4, batch_size=4, transport="copy", size=4 << 20) as stream:
    print(sorted(set(row for batch in stream for row in batch.x.numpy().tolist())))
"""


def two_free_ports() -> int:
    """The first of two that follow each other and nobody has: below those that the kernel gives to connections."""
    for port in random.sample(range(20_000, 32_000, 2), 100):
        with contextlib.suppress(OSError), contextlib.ExitStack() as both:
            for one in (port, port + 1):
                both.enter_context(socket.create_server(("127.0.0.1", one)))
            return port
    raise AssertionError("no two ports are free")


def test_each_rank_gets_its_sources() -> None:
    port = two_free_ports()
    environments = [
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(r), "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1"}
        for r in range(2)
    ]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **one},
        )
        for one in environments
    ]
    addresses = gpurx.rank_addresses(port, environment=environments[0])
    for source in range(4):
        with connected(addresses[source % 2], source, ranks[source % 2]) as sender:
            sender.send(x=np.full(4, source))
    assert [rank.communicate(timeout=120)[0] for rank in ranks] == ["[0, 2]\n", "[1, 3]\n"]


def connected(address: str, source: int, rank: subprocess.Popen[str]) -> gpurx.TensorSender:
    """Once the rank listens there."""
    end = time.monotonic() + 120
    while True:
        try:
            return gpurx.TensorSender(address, source=source)
        except ConnectionRefusedError:
            if rank.poll() is not None:
                pytest.fail(f"the rank that {address} belongs to has ended: {rank.communicate()[0]}")
            if time.monotonic() > end:
                raise
        time.sleep(0.05)
