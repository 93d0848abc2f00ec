# SPDX-License-Identifier: Apache-2.0
"""Every element type has a way out: to numpy with and without ml_dtypes, to torch old and new, and in by a sender."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from capsules import Taken
from conftest import address_of
from cuda import Driver

import gpurx
from gpurx._native import tensor_of_bytes

OF_NUMPY = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
OF_ML_DTYPES = "bfloat16 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()


def numpy_type(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name) if name in OF_ML_DTYPES else name)


def tensor(array: Any, **options: Any) -> gpurx.Tensor:
    return tensor_of_bytes(array.tobytes(), array.dtype.name, array.shape, **options)


@pytest.mark.parametrize("name", OF_NUMPY + OF_ML_DTYPES)
@pytest.mark.parametrize("shape", [(2, 4), (), (0, 3), (1,)])
def test_numpy_has_it_without_a_copy(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(numpy_type(name))
    one = tensor(array)
    assert one.dtype == name
    for seen in (one.numpy(), np.asarray(one)):
        assert type(seen) is np.ndarray and seen.dtype == array.dtype and seen.shape == shape
        assert seen.tobytes() == array.tobytes()
        if array.size:
            assert seen.__array_interface__["data"][0] == one.data_ptr


def test_numpy_keeps_the_memory_and_writes_to_it() -> None:
    one = tensor(np.zeros(1000, np.uint16))
    seen = one.numpy()
    seen[:] = 7
    again = np.asarray(one)
    del one, seen
    assert (again == 7).all()


def test_as_another_type_and_as_a_copy() -> None:
    array = np.arange(6, dtype=np.int16)
    one = tensor(array)
    assert np.array_equal(one.numpy("float64"), array) and one.numpy("float64").dtype == np.float64
    assert np.asarray(one, dtype=np.float32).dtype == np.float32
    copied = np.array(one)
    copied[:] = 0
    assert np.array_equal(one.numpy(), array)
    with pytest.raises(ValueError, match="copy"):
        one.__array__(np.float32, copy=False)
    assert np.array_equal(one.__array__(copy=True), array)
    assert np.array_equal(np.add(one, 1), array + 1)


WITHOUT_ML_DTYPES = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np
from gpurx._native import tensor_of_bytes

def complaint(one):
    try:
        return str(one.numpy().dtype)
    except TypeError as error:
        return str(error)

one = tensor_of_bytes(bytes.fromhex("c03f00c04940807f"), "bfloat16", [2, 2])
print(complaint(one))
print(one.numpy("float32").tolist(), one.numpy(np.float64).tolist(), one.view(np.uint16).numpy().tolist())
print(complaint(tensor_of_bytes(bytes(4), "float8_e5m2", [4])))
print(complaint(tensor_of_bytes(bytes(4), "float4_e2m1fn", [8])))
"""


def test_without_ml_dtypes_the_bits_and_what_numpy_has_are_a_way_out() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_ML_DTYPES], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    values = "[[1.5, -2.0], [3.140625, inf]]"
    assert done.stdout.splitlines() == [
        "numpy has no bfloat16: install ml_dtypes, or take numpy('float32'), or take the bits with view('uint16')",
        f"{values} {values} [[16320, 49152], [16457, 32640]]",
        "numpy has no float8_e5m2: install ml_dtypes, or take the bits with view('uint8')",
        "numpy has no float4_e2m1fn: install ml_dtypes, or take the bits with view('uint8')",
    ]


def test_elements_of_four_bits_are_two_in_a_byte_the_lower_first() -> None:
    one = tensor_of_bytes(bytes([0x21, 0x43, 0x65, 0x87]), "float4_e2m1fn", [2, 4])
    seen = one.numpy()
    assert seen.dtype == ml_dtypes.float4_e2m1fn and seen.shape == (2, 4)
    assert np.array_equal(seen.astype(np.float32), [[0.5, 1, 1.5, 2], [3, 4, 6, -0.0]])
    assert np.array_equal(one.view("uint8").numpy(), [[0x21, 0x43], [0x65, 0x87]])
    with pytest.raises(ValueError, match="copy"):
        one.__array__(copy=False)


def test_elements_of_six_bits_are_bytes_only() -> None:
    one = tensor_of_bytes(bytes(range(6)), "float6_e2m3fn", [2, 4])
    with pytest.raises(TypeError, match=r"view\('uint8'\)"):
        one.numpy()
    assert one.view("uint8").shape == (2, 3)
    assert np.array_equal(one.view("uint8").numpy(), [[0, 1, 2], [3, 4, 5]])


def test_a_view_has_the_same_memory() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    one = tensor(array)
    for dtype in ("int16", np.int16, np.dtype("int16")):
        assert np.array_equal(one.view(dtype).numpy(), array.view(np.int16))
    assert np.array_equal(one.view("int64").numpy(), array.view(np.int64))
    assert one.view("float32").data_ptr == one.data_ptr
    view = one.view("uint8")
    del one
    assert view.shape == (3, 16) and np.array_equal(view.numpy(), array.view(np.uint8))
    assert tensor(np.float32(1)).view("int32").numpy() == np.float32(1).view(np.int32)
    assert tensor(array, read_only=True).view("uint8").readonly


@pytest.mark.parametrize(
    ("shape", "dtype", "says"),
    [((3, 3), "int64", "12 bytes"), ((), "int16", "dimension"), ((3,), "quux", "no dtype 'quux'")],
)
def test_views_that_are_none(shape: tuple[int, ...], dtype: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tensor(np.zeros(shape, np.int32)).view(dtype)


@pytest.mark.parametrize("name", OF_ML_DTYPES)
def test_a_sender_takes_what_ml_dtypes_has(stream: Callable[..., gpurx.TensorStream], name: str) -> None:
    receives = stream(batch_size=6)
    sent = np.arange(12).reshape(6, 2).astype(numpy_type(name))
    with gpurx.TensorSender(address_of(receives)) as sender:
        sender.send(x=sent)
    [batch] = receives
    assert batch.x.dtype == name and batch.x.numpy().tobytes() == sent.tobytes()
    with gpurx.TensorStream("127.0.0.1:0", transport="copy") as other, pytest.raises(TypeError, match="float4_e2m1fn"):
        gpurx.TensorSender(address_of(other)).send(x=np.zeros(4, ml_dtypes.float4_e2m1fn))


def test_tensors_on_a_gpu_are_copied_to_the_host(gpu: Driver) -> None:
    array = np.arange(1000).astype(ml_dtypes.bfloat16)
    one = tensor(array, device="cuda:0")
    assert one.numpy().tobytes() == array.tobytes()
    assert np.asarray(one).dtype == ml_dtypes.bfloat16
    with pytest.raises(ValueError, match="copy"):
        one.__array__(copy=False)
    stream = gpu.stream()
    taken = Taken(one.view("int16").__dlpack__(stream=stream))
    assert (taken.device, taken.dtype) == ((2, 0), (0, 16, 1))
    assert gpu.read(taken.data, one.nbytes, stream) == array.tobytes()
    taken.let_go()
