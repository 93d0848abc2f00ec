# SPDX-License-Identifier: Apache-2.0
"""Ranges of an object, which plug-ins for other formats than safetensors are built on."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from cuda import Driver
from ranges import Server, running

import gpurx
from gpurx import _native
from gpurx._options import settings_of
from gpurx._wait import wait

CONTENT = np.random.default_rng(1).bytes(3_000_000)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["object"] = CONTENT
    with running(one):
        yield one


def load(server: Server, ranges: Sequence[tuple[int, int]], device: str = "host") -> list[gpurx.Tensor]:
    with gpurx.Session(device, transport="copy", size=4 << 20) as session:
        options = settings_of(device, {"timeout": 60.0, "attempts": 3}).http
        opened = _native.OpenObject(session, server.url("object"), device, options)
        tensors: list[gpurx.Tensor] = wait(opened.fetch(ranges))
        return tensors


def test_each_range_has_its_bytes_and_memory_of_its_own(server: Server) -> None:
    ranges = [(2_000_000, 999_999), (0, 1), (7, 0), (500_000, 300_000), (800_000, 1), (2_999_999, 1), (3_000_000, 0)]
    tensors = load(server, ranges)
    assert [(one.dtype, one.shape) for one in tensors] == [("uint8", (size,)) for _, size in ranges]
    for one, (offset, size) in zip(tensors, ranges, strict=True):
        assert one.numpy().tobytes() == CONTENT[offset : offset + size]
    assert all(one.data_ptr % 64 == 0 for one in tensors if one.nbytes)
    assert load(server, []) == []


def test_on_a_gpu(server: Server, gpu: Driver) -> None:
    tensors = load(server, [(100, 70_000), (2_000_000, 3)], "cuda:0")
    assert [one.device for one in tensors] == ["cuda:0"] * 2
    assert [one.numpy().tobytes() for one in tensors] == [CONTENT[100:70_100], CONTENT[2_000_000:2_000_003]]


def test_what_no_memory_can_hold(server: Server) -> None:
    server.sizes["object"] = 1 << 51
    with pytest.raises(gpurx.Error, match=str(1 << 50)) as failed:
        load(server, [(0, 1 << 50)])
    assert (failed.value.category, failed.value.code, failed.value.url) == ("system", errno.ENOMEM, server.url("object"))


@pytest.mark.parametrize("wrong", [(3_000_000, 1), (0, 3_000_001), (1 << 60, 1), (1, 1 << 62), (1, (1 << 64) - 1)])
def test_what_the_object_does_not_have_is_an_error(server: Server, wrong: tuple[int, int]) -> None:
    with pytest.raises(gpurx.Error, match="it has 3000000 bytes, and the range") as failed:
        load(server, [(0, 10), wrong])
    assert failed.value.code == gpurx.ErrorCode.BAD_DESTINATION
    assert failed.value.url == server.url("object")


def test_two_that_share_bytes_are_an_error(server: Server) -> None:
    with pytest.raises(gpurx.Error, match="overlap"):
        load(server, [(0, 10), (9, 10)])


def test_the_package_imports_nobody_elses() -> None:
    """Its plug-ins are modules that their users import: what they need is gigabytes."""
    program = "import sys, gpurx; print(sorted({'numpy', 'ray', 'torch', 'vllm', 'jax', 'ml_dtypes'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
