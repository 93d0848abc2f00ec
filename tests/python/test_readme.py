# SPDX-License-Identifier: Apache-2.0
"""Examples of framework/python/README.md and samples/quick_start: on the host, in the place of a GPU."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running
from test_torch import stand_in as stand_in  # a fixture

import gpurx

README = Path(__file__).parents[2] / "framework/python/README.md"
QUICK_START = README.parents[2] / "samples/quick_start/load.py"
TENSORS = {str(number): np.full(1 << 17, number, np.float64) for number in range(8)}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["m"] = safetensors.numpy.save(TENSORS)
    with running(one):
        yield one


def example_with(word: str) -> str:
    """The one that has it."""
    (found,) = [one for one in re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S) if word in one]
    return found.replace('device="cuda:0"', 'device="cpu"')


class Bar:
    """As much of tqdm.tqdm as the example uses, where that is not installed."""

    def __init__(self, unit: str, unit_scale: bool) -> None:
        self.n = 0
        self.total: int | None = None

    def update(self, n: int) -> None:
        assert n >= 0 and self.total is not None
        self.n += n

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.n == self.total


def tqdm() -> Any:
    try:
        return importlib.import_module("tqdm").tqdm
    except ImportError:
        return Bar


def test_a_bar_of_tqdm(stand_in: Any, server: Server) -> None:
    given = {"gpurx": gpurx, "tqdm": tqdm(), "url": server.url("m")}
    importlib.import_module("gpurx.torch")
    exec(example_with("tqdm"), given)
    bar = given["bar"]
    assert bar.n == bar.total == sum(one.nbytes for one in TENSORS.values())
    assert all(np.array_equal(one, TENSORS[name]) for name, one in given["weights"].items()) and len(given["weights"]) == 8


def test_the_quick_start(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    printed_url = "http://127.0.0.1:9001/model.safetensors"
    program = QUICK_START.read_text()
    assert printed_url in program
    exec(program.replace(printed_url, server.url("m")), {})
    assert capsys.readouterr().out.splitlines() == [f"{name} {one.shape}" for name, one in TENSORS.items()]
