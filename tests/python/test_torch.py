# SPDX-License-Identifier: Apache-2.0
"""gpurx.torch: with torch where it is installed, else with as much of it as the package uses."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import address_of
from test_stream import sending

import gpurx
from gpurx._convert import _TORCH_TAKES
from gpurx._native import tensor_of_bytes


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    torch, utils, data = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data"))
    torch.from_dlpack = np.from_dlpack  # type: ignore[attr-defined]
    torch.__version__ = "1"  # type: ignore[attr-defined]
    torch.bool = np.bool_  # type: ignore[attr-defined]
    data.IterableDataset = type("IterableDataset", (), {})  # type: ignore[attr-defined]
    data.get_worker_info = lambda: None  # type: ignore[attr-defined]
    for module in (torch, utils, data):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    sys.modules.pop("gpurx.torch", None)
    yield data
    sys.modules.pop("gpurx.torch", None)


def test_a_dataset_gives_dicts(stand_in: Any, stream: Callable[..., gpurx.TensorStream]) -> None:
    receives = stream(batch_size=25)
    thread = sending(address_of(receives), 50)
    dataset = importlib.import_module("gpurx.torch").StreamDataset(receives)
    assert isinstance(dataset, stand_in.IterableDataset)
    batches = list(dataset)
    thread.join()
    assert [sorted(batch) for batch in batches] == [["x", "y"]] * 2
    assert np.array_equal(batches[1]["y"], -np.arange(25, 50))


def test_what_dlpack_of_torch_does_not_know_comes_as_its_bits(stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("gpurx.torch")
    taken: list[str] = []

    def from_dlpack(one: gpurx.Tensor) -> Any:
        assert one.dtype in _TORCH_TAKES
        taken.append(one.dtype)
        return np.from_dlpack(one)

    monkeypatch.setattr(sys.modules["torch"], "from_dlpack", from_dlpack)
    flags = tensor_of_bytes(bytes([0, 1, 1, 0]), "bool", [2, 2])
    assert np.array_equal(module.as_tensor(flags), [[False, True], [True, False]])
    words = tensor_of_bytes(np.arange(3, dtype=np.uint64).tobytes(), "uint64", [3])
    with pytest.raises(TypeError, match=r"torch 1 has no uint64.*view\('uint8'\)"):
        module.as_tensor(words)
    newer: dict[str, Any] = {"uint64": np.uint64, "float8_e5m2": ml_dtypes.float8_e5m2, "float4_e2m1fn_x2": np.uint8}
    for name, dtype in newer.items():
        monkeypatch.setattr(sys.modules["torch"], name, dtype, raising=False)
    assert np.array_equal(module.as_tensor(words), np.arange(3))
    assert module.as_tensor(tensor_of_bytes(bytes(1), "float8_e5m2", [])).dtype == ml_dtypes.float8_e5m2
    assert module.as_tensor(tensor_of_bytes(bytes(4), "float4_e2m1fn", [2, 4])).shape == (2, 2)
    assert module.as_tensor(tensor_of_bytes(bytes(4), "float32", [1])).dtype == np.float32
    assert taken == ["uint8", "int64", "uint8", "uint8", "float32"]


def test_torch_has_every_type_that_it_knows() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from gpurx.torch import as_tensor

    for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16 complex64".split():
        if hasattr(torch, name):
            width = torch.empty(0, dtype=getattr(torch, name)).element_size()
            one = as_tensor(tensor_of_bytes(bytes(6 * width), name, [2, 3]))
            assert one.dtype == getattr(torch, name) and one.shape == (2, 3)
    for name in "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu".split():
        if hasattr(torch, name):
            assert as_tensor(tensor_of_bytes(bytes(6), name, [2, 3])).dtype == getattr(torch, name)


def test_a_worker_is_told_why_not(stand_in: Any, stream: Callable[..., gpurx.TensorStream]) -> None:
    module = importlib.import_module("gpurx.torch")
    dataset = module.StreamDataset(stream())
    module.get_worker_info = object
    with pytest.raises(RuntimeError, match="CUDA contexts do not survive.*num_workers=0"):
        next(iter(dataset))


def test_a_data_loader(stream: Callable[..., gpurx.TensorStream]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from gpurx.torch import StreamDataset

    receives = stream(batch_size=25)
    thread = sending(address_of(receives), 50)
    loader = torch.utils.data.DataLoader(StreamDataset(receives), batch_size=None, num_workers=0)
    assert [batch["x"].shape for batch in loader] == [(25, 2), (25, 2)]
    thread.join()
    loader = torch.utils.data.DataLoader(StreamDataset(stream()), batch_size=None, num_workers=1)
    with pytest.raises((RuntimeError, TypeError), match="num_workers=0"):
        next(iter(loader))
