# SPDX-License-Identifier: Apache-2.0
"""Tensors in the host's memory, as other libraries take them."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from capsules import IS_COPIED, READ_ONLY, Taken

from gpurx import Tensor
from gpurx._native import tensor_of_bytes


def tensor(array: Any, **options: Any) -> Tensor:
    return tensor_of_bytes(array.tobytes(), array.dtype.name, array.shape, **options)


@pytest.mark.parametrize(
    "dtype", "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bool".split()
)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 2, 3, 1), (), (0,), (3, 0, 2)])
def test_numpy_sees_type_shape_and_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).astype(dtype).reshape(shape)
    one = tensor(array)
    assert (one.dtype, one.shape, one.ndim, one.nbytes, one.size) == (dtype, shape, len(shape), array.nbytes, array.size)
    seen = np.from_dlpack(one)
    assert seen.dtype == array.dtype and seen.shape == shape and seen.flags.c_contiguous
    assert np.array_equal(seen, array)


def test_numpy_shares_the_memory_and_keeps_it() -> None:
    one = tensor(np.zeros(1000, np.float32))
    seen = np.from_dlpack(one)
    seen[:] = 7
    again = np.from_dlpack(one)
    address = one.data_ptr
    assert again.__array_interface__["data"][0] == address
    del one, seen
    gc.collect()
    assert (again == 7).all()


def test_types_that_numpy_does_not_have_are_in_the_capsule() -> None:
    for name, code, bits in [
        ("bfloat16", 4, 16),
        ("float8_e4m3fn", 10, 8),
        ("float8_e5m2", 12, 8),
        ("float8_e8m0fnu", 14, 8),
        ("float4_e2m1fn", 17, 4),
    ]:
        one = tensor_of_bytes(bytes(8), name, [64 // bits])
        taken = Taken(one.__dlpack__(max_version=(1, 1)))
        assert taken.dtype == (code, bits, 1)
        assert taken.shape == (64 // bits,)
        taken.let_go()
        assert one.dtype == name


def test_without_a_version_the_capsule_is_of_the_old_kind() -> None:
    one = tensor(np.arange(6, dtype=np.int16).reshape(2, 3))
    for version in (None, (0, 8)):
        taken = Taken(one.__dlpack__(max_version=version))
        assert not taken.versioned
        assert (taken.shape, taken.strides, taken.device) == ((2, 3), (3, 1), (1, 0))
        assert (taken.data, taken.byte_offset, taken.dtype) == (one.data_ptr, 0, (0, 16, 1))
        taken.let_go()


@pytest.mark.parametrize(("most", "given"), [((1, 0), (1, 0)), ((1, 1), (1, 1)), ((1, 9), (1, 1)), ((2, 0), (1, 1))])
def test_with_a_version_it_is_no_newer_than_that(most: tuple[int, int], given: tuple[int, int]) -> None:
    taken = Taken(tensor(np.zeros(3)).__dlpack__(max_version=most))
    assert taken.versioned and taken.version == given and taken.flags == 0
    taken.let_go()


def test_what_must_not_be_written_says_so() -> None:
    one = tensor(np.arange(5), read_only=True)
    assert one.readonly
    taken = Taken(one.__dlpack__(max_version=(1, 0)))
    assert taken.flags == READ_ONLY
    taken.let_go()
    assert not np.from_dlpack(one).flags.writeable
    # An old consumer could not know, and would write.
    with pytest.raises(BufferError, match="is read-only"):
        one.__dlpack__()
    taken = Taken(one.__dlpack__(copy=True))
    assert not taken.versioned and taken.data != one.data_ptr
    taken.let_go()


def test_a_copy_is_another() -> None:
    one = tensor(np.arange(1000))
    copied = np.from_dlpack(one, copy=True)
    copied[:] = 0
    assert np.array_equal(np.from_dlpack(one), np.arange(1000))
    taken = Taken(one.__dlpack__(max_version=(1, 0), copy=True))
    assert taken.flags == IS_COPIED
    taken.let_go()
    shared = np.from_dlpack(one, copy=False)
    assert shared.__array_interface__["data"][0] == one.data_ptr


def test_a_capsule_that_nobody_takes_lets_go_by_itself() -> None:
    one = tensor(np.zeros(10))
    for version in (None, (1, 0)):
        capsule = one.__dlpack__(max_version=version)
        del capsule
    gc.collect()


def test_the_host_has_no_streams() -> None:
    one = tensor(np.zeros(3))
    assert one.__dlpack_device__() == (1, 0) and one.device == "cpu"
    for number in (0, 1, -1, 2):
        with pytest.raises(ValueError, match="stream must be None"):
            one.__dlpack__(stream=number)


def test_devices_that_are_none() -> None:
    one = tensor(np.zeros(3))
    with pytest.raises(BufferError, match=r"\(10, 0\)"):
        one.__dlpack__(dl_device=(10, 0))
    with pytest.raises(BufferError, match="without a copy it cannot be on cuda:0"):
        one.__dlpack__(dl_device=(2, 0), copy=False)
    with pytest.raises(TypeError):
        one.__dlpack__(None)  # type: ignore[misc]


def test_a_tensor_as_an_object() -> None:
    one = tensor(np.zeros((2, 3), np.float32))
    assert repr(one) == "gpurx.Tensor(shape=(2, 3), dtype=float32, device=cpu)"
    assert repr(tensor(np.zeros(2))) == "gpurx.Tensor(shape=(2,), dtype=float64, device=cpu)"
    assert len(one) == 2
    with pytest.raises(TypeError, match="without dimensions"):
        len(tensor(np.float32(1)))
    with pytest.raises(ValueError, match="no float32 of that shape"):
        tensor_of_bytes(bytes(7), "float32", [2])


@pytest.mark.parametrize("shape", [[-2], [-1, -2], [2, -1], [0, -1], [-(2**62), -4], [2**32, 2**32], [2**62, 4]])
def test_shapes_that_are_none(shape: list[int]) -> None:
    with pytest.raises(ValueError, match="shape"):
        tensor_of_bytes(bytes(8), "float32", shape)
    with pytest.raises(ValueError, match="shape"):
        tensor_of_bytes(b"", "float32", shape)
