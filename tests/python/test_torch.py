# SPDX-License-Identifier: Apache-2.0
"""gpurx.torch: with torch where it is installed, else with as much of it as the package uses."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import address_of
from test_stream import sending

import gpurx


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    torch, utils, data = (types.ModuleType(name) for name in ("torch", "torch.utils", "torch.utils.data"))
    torch.from_dlpack = np.from_dlpack  # type: ignore[attr-defined]
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
