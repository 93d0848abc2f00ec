# SPDX-License-Identifier: Apache-2.0
"""The example of samples/quick_start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running

import gpurx

QUICK_START = Path(__file__).parents[2] / "samples/quick_start/load.py"
TENSORS = {str(number): np.full(1 << 17, number, np.float64) for number in range(8)}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["m"] = safetensors.numpy.save(TENSORS)
    with running(one):
        yield one


def test_the_quick_start(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    printed_url = "http://127.0.0.1:9001/model.safetensors"
    program = QUICK_START.read_text()
    assert printed_url in program
    exec(program.replace(printed_url, server.url("m")), {})
    assert capsys.readouterr().out.splitlines() == [f"{name} {one.shape}" for name, one in TENSORS.items()]
