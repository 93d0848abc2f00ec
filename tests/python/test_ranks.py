# SPDX-License-Identifier: Apache-2.0
"""Ranks of torchrun: which listens where, and which sources it has."""

from __future__ import annotations

import os
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
        (None, {}, "hosts= has to name the 2 machines"),
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


def test_each_rank_gets_its_sources() -> None:
    port = 41_000 + time.time_ns() % 10_000
    environments = [
        {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": str(r), "LOCAL_RANK": str(r), "MASTER_ADDR": "127.0.0.1"}
        for r in range(2)
    ]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(port)], stdout=subprocess.PIPE, text=True, env={**os.environ, **one}
        )
        for one in environments
    ]
    addresses = gpurx.rank_addresses(port, environment=environments[0])
    for source in range(4):
        with connected(addresses[source % 2], source) as sender:
            sender.send(x=np.full(4, source))
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["[0, 2]\n", "[1, 3]\n"]


def connected(address: str, source: int) -> gpurx.TensorSender:
    """Once somebody listens there."""
    end = time.monotonic() + 30
    while True:
        try:
            return gpurx.TensorSender(address, source=source)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
        time.sleep(0.05)
