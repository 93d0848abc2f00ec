# SPDX-License-Identifier: Apache-2.0
"""into=: tensors arrive in memory that the program has, or the load is refused before a byte of them is asked for."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from conftest import soon
from cuda import Driver
from ranges import Server, running

import gpurx
import gpurx.numpy
from gpurx._native import tensor_of_bytes

RANDOM = np.random.default_rng(45)
# The large ones come through several requests.
TENSORS: dict[str, Any] = {
    "embedding": RANDOM.integers(0, 1 << 31, (1000, 300), dtype=np.int32),
    "flags": RANDOM.integers(0, 2, 3).astype(bool),
    "half": RANDOM.standard_normal((64, 256)).astype(np.float16),
    "nothing": np.zeros((0, 4), np.int32),
    "scale": np.array(0.5),
}
BOTH = pytest.mark.parametrize("where", ["path", "url"])


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["model"] = safetensors.numpy.save(TENSORS)
    with running(one):
        yield one


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


@pytest.fixture
def places(server: Server, session: gpurx.Session, tmp_path: Path) -> dict[str, Any]:
    """URL and path of the model, with the options that they need."""
    path = tmp_path / "model"
    path.write_bytes(server.files["model"])
    return {
        "url": (server.url("model"), {"session": session, "chunk_size": 100_000}),
        "path": (path, {"chunk_size": 100_000}),
    }


def like(tensors: dict[str, Any] = TENSORS) -> dict[str, Any]:
    """Arrays of these types and shapes, with other bytes."""
    return {name: np.frombuffer(bytearray(b"\xa5" * one.nbytes), one.dtype).reshape(one.shape) for name, one in tensors.items()}


def same(loaded: dict[str, Any]) -> bool:
    return loaded.keys() == TENSORS.keys() and all(
        np.asarray(one).tobytes() == TENSORS[name].tobytes() for name, one in loaded.items()
    )


@BOTH
def test_arrays_are_filled_and_returned(where: str, places: dict[str, Any]) -> None:
    url, options = places[where]
    into = like()
    addresses = {name: one.ctypes.data for name, one in into.items()}
    loaded = gpurx.numpy.load_file(url, into=into, **options)
    assert same(loaded)
    assert all(loaded[name] is into[name] and into[name].ctypes.data == addresses[name] for name in into)


@BOTH
def test_a_tensor_is_filled_by_name_and_in_a_loop(where: str, places: dict[str, Any]) -> None:
    url, options = places[where]
    into = like()

    async def by_loop() -> dict[str, Any]:
        async with gpurx.async_safe_open(url, "np", **options) as file:
            return {name: await file.get_tensor(name, into=one) for name, one in into.items()}

    assert same(asyncio.run(by_loop()))
    into = like()
    with gpurx.safe_open(url, "gpurx", **options) as file:
        assert same({name: file.get_tensor(name, into=one) for name, one in into.items()})


def test_bytes_are_filled_whatever_the_type(places: dict[str, Any]) -> None:
    url, options = places["url"]
    into: dict[str, Any] = {name: bytearray(one.nbytes) for name, one in TENSORS.items()}
    into["embedding"] = mmap.mmap(-1, TENSORS["embedding"].nbytes)
    into["half"] = memoryview(np.zeros(TENSORS["half"].nbytes // 8))
    into["scale"] = tensor_of_bytes(bytes(8), "float64", [])
    assert gpurx.numpy.load_file(url, into=into, **options) == into
    assert all(bytes(into[name]) == TENSORS[name].tobytes() for name in ("embedding", "flags", "half", "nothing"))
    assert into["scale"].numpy() == TENSORS["scale"]


def test_types_that_numpy_lacks(tmp_path: Path) -> None:
    wanted = {"b": RANDOM.standard_normal(8).astype(ml_dtypes.bfloat16)}
    (tmp_path / "m").write_bytes(safetensors.numpy.save(wanted))
    into = {"b": np.zeros(8, ml_dtypes.bfloat16)}
    assert np.array_equal(gpurx.numpy.load_file(tmp_path / "m", into=into)["b"], wanted["b"])
    with pytest.raises(ValueError, match=r"'b'.*bfloat16 \[8\], or 16 bytes.*float16 \[8\]"):
        gpurx.numpy.load_file(tmp_path / "m", into={"b": np.zeros(8, np.float16)})


def test_several_files_are_filled(tmp_path: Path) -> None:
    names = sorted(TENSORS)
    for number, some in enumerate((names[:2], names[2:])):
        (tmp_path / f"{number}.safetensors").write_bytes(safetensors.numpy.save({name: TENSORS[name] for name in some}))
    assert same(gpurx.numpy.load_file(sorted(tmp_path.iterdir()), into=like()))


class Foreign:
    """A CPU array that has DLPack alone."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)


def test_an_array_with_dlpack_is_filled(places: dict[str, Any]) -> None:
    url, options = places["path"]
    array = np.zeros_like(TENSORS["half"])
    with gpurx.safe_open(url, "np", **options) as file:
        file.get_tensor("half", into=Foreign(array))
    assert np.array_equal(array, TENSORS["half"])


def read_only() -> Any:
    one = np.zeros((64, 256), np.float16)
    one.flags.writeable = False
    return one


MISFITS: dict[str, tuple[Any, type[Exception], str]] = {
    "another shape": (np.zeros((256, 64), np.float16), ValueError, r"float16 \[64, 256\], or 32768 bytes.*float16 \[256, 64\]"),
    "another type": (np.zeros((64, 256), np.int16), ValueError, r"has int16 \[64, 256\]"),
    "another byte order": (np.zeros((64, 256), ">f2"), ValueError, r"has >f2"),
    "columns": (np.zeros((64, 512), np.float16)[:, ::2], ValueError, "not contiguous"),
    "transposed": (np.zeros((256, 64), np.float16).T, ValueError, "not contiguous"),
    "read-only": (read_only(), ValueError, "read-only"),
    "bytes": (bytes(32768), ValueError, "read-only"),
    "too few bytes": (bytearray(32767), ValueError, r"has uint8 \[32767\]"),
    "a read-only tensor": (tensor_of_bytes(bytes(32768), "float16", [64, 256], None, True), ValueError, "may be written"),
    "no memory": ([0.0] * 5, TypeError, "a list is no tensor"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_place_that_does_not_fit_is_refused_by_name(misfit: str, places: dict[str, Any], server: Server) -> None:
    url, options = places["url"]
    one, kind, words = MISFITS[misfit]
    with gpurx.safe_open(url, "np", **options) as file:
        asked = server.requests
        before = like()
        with pytest.raises(kind, match=rf"into: tensor 'half': .*{words}"):
            file.get_tensors(into=before | {"half": one})
        with pytest.raises(kind, match=rf"into: tensor 'half': .*{words}"):
            file.get_tensor("half", into=one)
        assert server.requests == asked
        assert all(bytes(place.tobytes()) == b"\xa5" * place.nbytes for place in before.values())
        assert same(file.get_tensors(into=before))


def test_a_place_too_few_or_too_many_is_refused_by_name(places: dict[str, Any], server: Server) -> None:
    url, options = places["url"]
    with gpurx.safe_open(url, "np", **options) as file:
        asked = server.requests
        some = {name: one for name, one in like().items() if name not in ("half", "scale")}
        with pytest.raises(ValueError, match=r"into lacks 'scale', 'half', which .*model has"):
            file.get_tensors(into=some)
        with pytest.raises(ValueError, match=r"model lacks 'a0', 'a1', 'a2', 'a3', 'a4' and 2 more, which `into` has"):
            file.get_tensors(into=like() | {f"a{number}": bytearray(1) for number in range(7)})
        with pytest.raises(gpurx.Error, match="has no such tensor"):
            file.get_tensor("absent", into=bytearray(1))
        assert server.requests == asked


def test_a_gpu_takes_no_places_on_the_host(fake_gpu: Driver, places: dict[str, Any]) -> None:
    url, options = places["path"]
    with gpurx.safe_open(url, "gpurx", device="cuda:0", **options) as file:
        with pytest.raises(ValueError, match="`device` is a GPU"):
            file.get_tensors(into=like())


def test_no_memory_is_needed_beside_the_places(places: dict[str, Any]) -> None:
    url, options = places["path"]
    with gpurx.safe_open(url, "np", memory_limit=1, **options) as file:
        assert same(file.get_tensors(into=like()))


class TorchType:
    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"torch.{self._name}"


class TorchTensor:
    """As much of a tensor of torch as into= uses."""

    def __init__(self, array: Any, device: str = "cpu", contiguous: bool = True) -> None:
        self.array, self.shape, self._contiguous = array, array.shape, contiguous
        self.dtype = TorchType(array.dtype.name)
        self.device = types.SimpleNamespace(type=device)

    def detach(self) -> TorchTensor:
        return self

    def data_ptr(self) -> int:
        address: int = self.array.ctypes.data
        return address

    def numel(self) -> int:
        size: int = self.array.size
        return size

    def element_size(self) -> int:
        size: int = self.array.itemsize
        return size

    def is_contiguous(self) -> bool:
        return self._contiguous

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj


def test_tensors_of_torch_are_filled(places: dict[str, Any]) -> None:
    url, options = places["url"]
    into = {name: TorchTensor(one) for name, one in like().items()}
    with gpurx.safe_open(url, "gpurx", **options) as file:
        assert same({name: one.array for name, one in file.get_tensors(into=into).items()})
        half = like()["half"]
        with pytest.raises(ValueError, match="'half': the tensor is not contiguous"):
            file.get_tensor("half", into=TorchTensor(half, contiguous=False))
        with pytest.raises(ValueError, match="'half': the tensor is on .*cuda"):
            file.get_tensor("half", into=TorchTensor(half, device="cuda"))


def test_a_state_dict_of_torch_is_filled(places: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import gpurx.torch

    url, options = places["path"]
    into = {name: torch.zeros(one.shape, dtype=getattr(torch, one.dtype.name)) for name, one in TENSORS.items()}
    addresses = {name: one.data_ptr() for name, one in into.items()}
    loaded = gpurx.torch.load_file(url, into=into, **options)
    for name, one in TENSORS.items():
        assert loaded[name] is into[name] and into[name].data_ptr() == addresses[name]
        # Without numpy, which not every torch works with.
        assert ctypes.string_at(addresses[name], one.nbytes) == one.tobytes(), name


def test_an_interrupted_load_writes_no_more(places: dict[str, Any], server: Server) -> None:
    url, options = places["url"]
    into = like()

    async def interrupted() -> None:
        async with gpurx.async_safe_open(url, "np", **options) as file:
            server.stalls = True
            task = asyncio.create_task(file.get_tensors(into=into))
            while not server.answering:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(interrupted())
    kept = {name: one.copy() for name, one in into.items()}
    server.stalls = False
    assert soon(lambda: server.open == 0)
    assert all(np.array_equal(one, kept[name]) for name, one in into.items())


def test_places_stay_until_the_load_is_over(places: dict[str, Any], server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpurx import _into

    url, options = places["url"]
    into = like()
    array = weakref.ref(into["embedding"])

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with gpurx.safe_open(url, "np", **options) as file:
        server.stalls = True
        steps = file._tensors_into(into)
        waiting = next(steps)
        # By a second Ctrl-C, too: nobody waits for the end of the operation.
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(_into, "_wait_for_all", interrupted)
            steps.throw(KeyboardInterrupt())
        del into, steps
        gc.collect()
        assert array() is not None
        waiting.operation.wait()
        server.stalls = False
        file.get_tensors(into=like())
        gc.collect()
        assert array() is None and not _into._in_use
