# SPDX-License-Identifier: Apache-2.0
"""Every function that takes a device, or memory, takes the same: None, a name, a number, and what torch.device has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from cuda import Driver

import gpurx
from gpurx._native import parse_device, tensor_of_bytes


class Device(NamedTuple):
    """As torch.device is to be read."""

    type: str
    index: int | None = None


HOST = [None, "host", "cpu", Device("cpu"), Device("cpu", 0)]
GPU = [0, np.int64(0), "gpu", "gpu:0", "cuda", "cuda:0", Device("cuda"), Device("cuda", 0)]
REFUSED: list[tuple[Any, type[Exception]]] = [
    (-1, ValueError), ("tpu:0", ValueError), ("cuda:x", ValueError), (Device("meta"), ValueError), (2**40, ValueError),
    (True, TypeError), (1.5, TypeError), (["cpu"], TypeError), (b"cpu", TypeError),
]  # fmt: skip


@pytest.fixture
def uses(tmp_path: Path) -> dict[str, Callable[[Any], object]]:
    """Each with a place, of which it gives what it made."""
    path = tmp_path / "one.safetensors"
    safetensors.numpy.save_file({"a": np.arange(3)}, path)

    def opened(place: Any) -> object:
        with gpurx.safe_open(path, "gpurx", device=place) as file:
            return file.get_tensor("a")

    def session(place: Any) -> object:
        with gpurx.Session(place, transport="copy", size=1 << 20) as one:
            return one.memory

    def stream(place: Any) -> object:
        with gpurx.TensorStream("127.0.0.1:0", memory=place, transport="copy", size=1 << 20) as one:
            return one.session.memory

    return {
        "load_safetensors": lambda place: gpurx.load_safetensors(path, place)["a"],
        "safe_open": opened,
        "Session": session,
        "TensorStream": stream,
        "tensor_of_bytes": lambda place: tensor_of_bytes(bytes(8), "uint8", [8], place),
    }


USES = pytest.mark.parametrize("use", ["load_safetensors", "safe_open", "Session", "TensorStream", "tensor_of_bytes"])


@USES
def test_the_hosts_memory(use: str, uses: dict[str, Callable[[Any], object]]) -> None:
    for place in HOST:
        made = uses[use](place)
        assert "GPU" not in made if isinstance(made, str) else getattr(made, "device") == "cpu", place


@USES
def test_a_gpus_memory(use: str, uses: dict[str, Callable[[Any], object]], gpu: Driver) -> None:
    for place in GPU:
        made = uses[use](place)
        assert "GPU 0" in made if isinstance(made, str) else getattr(made, "device") == "cuda:0", place


@USES
def test_what_is_no_place_is_refused(use: str, uses: dict[str, Callable[[Any], object]]) -> None:
    for place, kind in REFUSED:
        with pytest.raises(kind, match="None, 'cpu'.*'cuda:0'"):
            uses[use](place)


def test_numbers_are_those_of_cuda() -> None:
    assert [parse_device(place) for place in (*HOST, *GPU, 3, "cuda:3", Device("cuda", 3))] == [-1] * 5 + [0] * 8 + [3] * 3
