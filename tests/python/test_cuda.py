# SPDX-License-Identifier: Apache-2.0
"""Tensors in a GPU's memory: what DLPack and the array API ask of streams. Needs a GPU, or the fake driver."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
from capsules import IS_COPIED, Taken
from conftest import soon
from cuda import Driver

import gpurx
from gpurx import Tensor
from gpurx._native import tensor_of_bytes

DATA = np.arange(3000, dtype=np.int32)


def on_gpu() -> Tensor:
    return tensor_of_bytes(DATA.tobytes(), "int32", DATA.shape, "gpu:0")


def test_the_gpu_of_a_process_is_that_of_its_local_rank(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert gpurx.local_gpu() == 0
    monkeypatch.setenv("LOCAL_RANK", "99")
    with pytest.raises(gpurx.Error, match="LOCAL_RANK '99'.*this process sees") as refused:
        gpurx.local_gpu()
    assert refused.value.code == errno.ENODEV
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert gpurx.local_gpu() == 0


def test_a_consumer_sees_the_bytes_on_its_stream(gpu: Driver) -> None:
    one = on_gpu()
    assert one.device == "cuda:0" and one.__dlpack_device__() == (2, 0)
    stream = gpu.stream()
    taken = Taken(one.__dlpack__(stream=stream, max_version=(1, 0)))
    assert taken.versioned and taken.device == (2, 0) and taken.shape == (3000,)
    assert gpu.read(taken.data, DATA.nbytes, stream) == DATA.tobytes()
    taken.let_go()


@pytest.mark.parametrize("number", [None, 1, 2, "own"])
def test_the_consumers_stream_waits_for_the_bytes(fake_gpu: Driver, number: Any) -> None:
    own = fake_gpu.stream()
    handle = {None: 1, "own": own}.get(number, number)
    fake_gpu.finish(handle)
    fake_gpu.hold_all()
    one = on_gpu()
    assert fake_gpu.is_idle(handle)
    taken = Taken(one.__dlpack__(stream=own if number == "own" else number))
    assert not fake_gpu.is_idle(handle)
    fake_gpu.let_all_go()
    fake_gpu.finish(handle)
    assert fake_gpu.read(taken.data, DATA.nbytes, handle) == DATA.tobytes()
    taken.let_go()


def test_nothing_waits_if_the_consumer_says_so(fake_gpu: Driver) -> None:
    own = fake_gpu.stream()
    for stream in (1, 2):
        fake_gpu.finish(stream)
    fake_gpu.hold_all()
    taken = Taken(on_gpu().__dlpack__(stream=-1))
    assert all(fake_gpu.is_idle(stream) for stream in (own, 1, 2))
    fake_gpu.let_all_go()
    taken.let_go()


def test_streams_that_are_none(gpu: Driver) -> None:
    one = on_gpu()
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        one.__dlpack__(stream=0)
    with pytest.raises(ValueError, match="stream must be"):
        one.__dlpack__(stream=-2)
    with pytest.raises(TypeError, match="None or an int"):
        one.__dlpack__(stream="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["tensor", "consumer"])
def test_memory_is_there_until_the_consumers_stream_has_passed(fake_gpu: Driver, first: str) -> None:
    before = fake_gpu.mappings()
    stream = fake_gpu.stream()
    one = on_gpu()
    taken = Taken(one.__dlpack__(stream=stream))
    assert fake_gpu.mappings() == before + 1
    fake_gpu.finish(stream)
    fake_gpu.hold(stream)
    # The last of both to go ends it, as far as the CPU is concerned.
    if first == "tensor":
        del one
        assert fake_gpu.mappings() == before + 1
        taken.let_go()
    else:
        taken.let_go()
        del one
    assert not soon(lambda: fake_gpu.mappings() == before, 0.1)
    fake_gpu.let_go()
    assert soon(lambda: fake_gpu.mappings() == before)


def test_each_consumers_stream_counts(fake_gpu: Driver) -> None:
    before = fake_gpu.mappings()
    fast, slow = fake_gpu.stream(), fake_gpu.stream()
    one = on_gpu()
    all_taken = [Taken(one.__dlpack__(stream=stream)) for stream in (slow, fast)]
    fake_gpu.finish(slow)
    fake_gpu.hold(slow)
    for taken in all_taken:
        taken.let_go()
    del one
    fake_gpu.finish(fast)
    assert not soon(lambda: fake_gpu.mappings() == before, 0.1)
    fake_gpu.let_go()
    assert soon(lambda: fake_gpu.mappings() == before)


def test_a_copy_on_the_gpu(gpu: Driver) -> None:
    one = on_gpu()
    stream = gpu.stream()
    taken = Taken(one.__dlpack__(stream=stream, max_version=(1, 0), copy=True))
    assert taken.flags == IS_COPIED and taken.data != one.data_ptr
    del one
    assert gpu.read(taken.data, DATA.nbytes, stream) == DATA.tobytes()
    taken.let_go()


def test_to_the_host_and_back(gpu: Driver) -> None:
    one = on_gpu()
    seen = np.from_dlpack(one, device="cpu")
    assert np.array_equal(seen, DATA)
    with pytest.raises(BufferError, match="without a copy it cannot be on cpu"):
        np.from_dlpack(one, device="cpu", copy=False)
    here = tensor_of_bytes(DATA.tobytes(), "int32", DATA.shape)
    stream = gpu.stream()
    taken = Taken(here.__dlpack__(stream=stream, dl_device=(2, 0)))
    assert taken.device == (2, 0)
    assert gpu.read(taken.data, DATA.nbytes, stream) == DATA.tobytes()
    taken.let_go()


def test_from_one_gpu_to_another(fake_gpu: Driver) -> None:
    one = on_gpu()
    taken = Taken(one.__dlpack__(dl_device=(2, 1)))
    assert taken.device == (2, 1)
    taken.let_go()


def test_a_copys_stream_is_there_until_what_was_copied_has_gone(fake_gpu: Driver) -> None:
    """The memory waits for what read it, and may be given up long after the copy."""
    one = on_gpu()
    memory, before = fake_gpu.mappings(), fake_gpu.streams()
    Taken(one.__dlpack__(dl_device=(2, 1))).let_go()
    made = fake_gpu.streams() - before
    assert soon(lambda: fake_gpu.mappings() == memory)
    assert not soon(lambda: fake_gpu.streams().isdisjoint(made), 0.3)
    del one
    assert soon(lambda: fake_gpu.streams().isdisjoint(made))


def test_torch_takes_it(gpu: Driver) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if gpu.is_fake:
        pytest.skip("torch needs a GPU")
    one = torch.from_dlpack(on_gpu())
    assert one.device.type == "cuda" and one.dtype == torch.int32
    assert (one.cpu().numpy() == DATA).all()


def test_cupy_takes_it(gpu: Driver) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    if gpu.is_fake:
        pytest.skip("cupy needs a GPU")
    assert (cupy.asnumpy(cupy.from_dlpack(on_gpu())) == DATA).all()
