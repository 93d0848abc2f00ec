# SPDX-License-Identifier: Apache-2.0
"""gpurx.jax.load_file: what safetensors makes of the same file, tensor by tensor. Behind tests that fork: jax has threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server
from test_open import server, serving, zoo  # noqa: F401

import gpurx


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
