# SPDX-License-Identifier: Apache-2.0
"""gpurx.torch and gpurx.jax: what safetensors makes of the same file, tensor by tensor. Behind tests that fork: both have
threads."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from conftest import address_of
from ranges import Server
from test_open import server, serving, zoo  # noqa: F401

import gpurx


# ---- torch ----


def bits(one: Any) -> bytes:
    """Of a tensor of torch, which a torch that was built for another numpy can only say by its address."""
    there = one.contiguous()
    return ctypes.string_at(there.data_ptr(), there.numel() * there.element_size())


def outcome(of: Any, name: str) -> Any:
    try:
        return of.get_tensor(name)
    except (TypeError, AttributeError, safetensors.SafetensorError):
        return None


@pytest.fixture
def torch() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a torch for an older numpy
        found = pytest.importorskip("torch", reason="torch is not installed")
        found.zeros(1)[0]
    return found


def test_torch_has_what_safetensors_gives_it(torch: Any, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "zoo.safetensors"
    path.write_bytes(zoo())
    server.files["zoo"] = path.read_bytes()
    compared = 0
    with safetensors.safe_open(path, "pt") as theirs, \
            gpurx.safe_open(server.url("zoo"), "pt", transport="copy", size=4 << 20) as ours:  # fmt: skip
        for name in theirs.keys():
            expected = outcome(theirs, name)
            if expected is None:  # a torch without that type: then this one may know it as little
                continue
            got = ours.get_tensor(name)
            assert (got.dtype, got.shape, bits(got)) == (expected.dtype, expected.shape, bits(expected)), name
            compared += 1
    assert compared >= 100


def test_a_torch_tensor_is_the_programs_own(torch: Any, tmp_path: Path) -> None:
    import gpurx.torch

    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file({"a": np.arange(1000.0), "b": np.ones((2, 3), bool)}, path)
    one, other = gpurx.torch.load_file(path), gpurx.torch.load_file(path)
    one["a"].zero_()
    assert float(other["a"][999]) == 999 and float(one["a"].sum()) == 0
    assert other["b"].dtype == torch.bool and bool(other["b"].all())
    with gpurx.safe_open(path) as file:
        assert float(file.get_slice("a")[1:3].sum()) == 3


def test_torch_tensors_are_sent_as_they_are(torch: Any, stream: Callable[..., gpurx.TensorStream]) -> None:
    from gpurx.torch import as_tensor

    names = "bool int8 int16 int32 int64 uint8 float16 float32 float64 bfloat16 complex64 complex128 float8_e4m3fn".split()
    known = [name for name in names if hasattr(torch, name)]
    made = {name: (torch.arange(24) % 3).reshape(4, 6).to(getattr(torch, name)) for name in known}
    made["turned"] = torch.arange(24.0).reshape(6, 4).t()
    made["learned"] = torch.ones(4, 2, requires_grad=True)
    made["conj"] = (torch.ones(4, 2, dtype=torch.complex64) * (1 + 2j)).conj()
    receives = stream(batch_size=4)
    with gpurx.TensorSender(address_of(receives)) as sender:
        with pytest.raises(TypeError, match="x: elements of type torch.qint8"):
            sender.send(x=torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
        sender.send(**made)
    batch = next(receives)
    assert sorted(batch) == sorted(made) and batch.bfloat16.dtype == "bfloat16"
    for name, one in made.items():
        got = as_tensor(batch[name])
        assert got.dtype == one.dtype and got.shape == one.shape, name
        assert bits(got) == bits(one.detach().resolve_conj()), name


# ---- jax ----


@pytest.fixture
def jax() -> Any:
    return pytest.importorskip("jax", reason="jax is not installed")


@pytest.mark.parametrize("wide", [False, True])
def test_jax_has_what_safetensors_gives_it(wide: bool, jax: Any, server: Server, tmp_path: Path) -> None:
    import safetensors.flax

    import gpurx.jax

    random = np.random.default_rng(2)
    tensors = {
        f"{dtype} {shape}": random.integers(0, 2, shape).astype(dtype)
        for dtype in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64".split()
        for shape in [(), (5,), (0, 3), (3, 4, 5)]
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(tensors, path)
    server.files["m"] = path.read_bytes()
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", wide)
    try:
        expected = safetensors.flax.load_file(path)
        for got in (gpurx.jax.load_file(path), gpurx.jax.load_file(server.url("m"), transport="copy", size=4 << 20)):
            assert got.keys() == expected.keys()
            for name, one in got.items():
                assert isinstance(one, jax.Array) and one.dtype == expected[name].dtype, name
                assert one.shape == tensors[name].shape and np.array_equal(one, tensors[name]), name
    finally:
        jax.config.update("jax_enable_x64", before)


def test_jax_has_every_type_that_it_knows(jax: Any, tmp_path: Path) -> None:
    path = tmp_path / "zoo.safetensors"
    path.write_bytes(zoo())
    known = "BF16 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ".split()
    with gpurx.safe_open(path, "jax") as file, gpurx.safe_open(path, "np") as arrays:
        for name in file.keys():
            if name.split()[0] in known:
                one, expected = file.get_tensor(name), arrays.get_tensor(name)
                assert one.dtype == expected.dtype and one.shape == expected.shape, name
                assert np.asarray(one).tobytes() == expected.tobytes(), name
