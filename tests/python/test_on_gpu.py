# SPDX-License-Identifier: Apache-2.0
"""What torch, cupy and jax get of gpurx in a GPU's memory. Needs a GPU, as they have no use for the fake driver, and of them
what is installed. Behind tests that fork: all three have threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import address_of, soon
from cuda import Driver
from ranges import Server, running

import gpurx

MIB = 1 << 20
COPY = {"transport": "copy", "size": 32 * MIB}
RANDOM = np.random.default_rng(16)
NUMPYS = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64".split()
# Of sizes that leave the ends of the next one at any address.
SHAPES: list[tuple[int, ...]] = [(), (5,), (0, 3), (3, 4, 5), (33, 1001)]


@pytest.fixture(autouse=True)
def real_gpu(gpu: Driver) -> None:
    if gpu.is_fake:
        pytest.skip("needs a GPU: torch, cupy and jax have no use for the fake driver")


def framework(name: str) -> Any:
    return pytest.importorskip(name, reason=f"{name} is not installed", exc_type=ImportError)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    with running(one):
        yield one


def arrays() -> dict[str, Any]:
    return {
        f"{dtype} {shape}": RANDOM.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)
        for dtype in NUMPYS
        for shape in SHAPES
    }


def served(server: Server, tensors: dict[str, Any], directory: Path) -> str:
    path = directory / "m.safetensors"
    framework("safetensors.numpy").save_file(tensors, path)
    server.files["m"] = path.read_bytes()
    return server.url("m")


def test_torch_has_every_type_there(server: Server, tmp_path: Path) -> None:
    torch = framework("torch")
    save = framework("safetensors.torch").save_file
    import gpurx.torch

    tensors = {
        f"{dtype} {shape}": torch.randint(0, 2, shape).to(getattr(torch, dtype))
        for dtype in [*NUMPYS, "bfloat16", "complex64", "float8_e4m3fn", "float8_e5m2"]
        for shape in SHAPES
    }
    save(tensors, tmp_path / "m.safetensors")
    server.files["m"] = (tmp_path / "m.safetensors").read_bytes()
    for place in (server.url("m"), tmp_path / "m.safetensors"):
        loaded = gpurx.torch.load_file(place, device="cuda:0", **COPY)
        assert loaded.keys() == tensors.keys()
        for name, one in tensors.items():
            got = loaded[name]
            assert (str(got.device), got.dtype, got.shape) == ("cuda:0", one.dtype, one.shape), name
            assert torch.equal(got.cpu().reshape(-1).view(torch.uint8), one.reshape(-1).view(torch.uint8)), name


def test_rows_and_columns(server: Server, tmp_path: Path) -> None:
    torch = framework("torch")
    tensors = {"m": np.arange(300 * 200, dtype=np.float32).reshape(300, 200)}
    with gpurx.safe_open(served(server, tensors, tmp_path), "pt", "cuda:0", **COPY) as file:
        part = file.get_slice("m")
        for piece in (np.s_[10:20], np.s_[:, 3:7], np.s_[250:, 100:], np.s_[17]):
            got = part[piece]
            assert got.device.type == "cuda" and torch.equal(got.cpu(), torch.from_numpy(tensors["m"][piece].copy()))


def test_work_on_the_programs_stream_sees_the_bytes(server: Server, tmp_path: Path) -> None:
    torch = framework("torch")
    tensors = {f"{i:03}": RANDOM.integers(0, 1000, 64 * 1024 + i).astype(np.int64) for i in range(100)}
    url = served(server, tensors, tmp_path)
    own = torch.cuda.Stream()
    with gpurx.safe_open(url, "pt", "cuda:0", **COPY) as file, torch.cuda.stream(own):
        for name, one in file:
            assert int(one.sum()) == int(tensors[name].sum()), name


def test_a_graph_is_captured_while_weights_arrive(server: Server, tmp_path: Path) -> None:
    """A capture of torch's forbids, in all threads, calls of CUDA that could not be part of it; one ends it."""
    torch = framework("torch")
    tensors = {f"{i:03}": RANDOM.integers(0, 1000, 64 * 1024 + i).astype(np.int64) for i in range(64)}
    url = served(server, tensors, tmp_path)
    failures: list[BaseException] = []
    rounds, is_over = [0], threading.Event()

    def load() -> None:
        try:
            while not is_over.is_set():
                weights = gpurx.load_safetensors(url, "cuda:0", **COPY)
                assert np.array_equal(weights["063"].numpy(), tensors["063"])
                rounds[0] += 1
        except BaseException as error:  # for the thread that waits
            failures.append(error)

    x = torch.ones(1 << 16, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        (x * 2 + 1).sum()
    side.synchronize()
    thread = threading.Thread(target=load)
    thread.start()
    captures = 0
    try:
        while (captures < 20 or rounds[0] < 3) and not failures and captures < 5000:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x
                for _ in range(50):
                    y = y * 2 - 1
            graph.replay()
            torch.cuda.synchronize()
            assert bool((y == 1).all())
            captures += 1
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]
    assert rounds[0] >= 3


def test_a_stream_of_batches(stream: Callable[..., gpurx.TensorStream]) -> None:
    torch = framework("torch")
    from test_stream import sending

    import gpurx.torch

    receives = stream(batch_size=64, memory="gpu:0")
    thread = sending(address_of(receives), 6400)
    own, seen = torch.cuda.Stream(), 0
    with torch.cuda.stream(own):
        for batch in gpurx.torch.StreamDataset(receives):
            assert batch["x"].device.type == batch["y"].device.type == "cuda"
            i = torch.arange(seen, seen + 64, device="cuda")
            assert torch.equal(batch["y"], -i) and torch.equal(batch["x"][:, 1], i.float() + 0.5)
            seen += 64
    thread.join()
    assert seen == 6400


def test_a_model_that_is_dropped_leaves_nothing(server: Server, tmp_path: Path) -> None:
    torch = framework("torch")
    import gpurx.torch

    url = served(server, {"a": RANDOM.integers(0, 255, 64 * MIB, dtype=np.uint8)}, tmp_path)
    one = gpurx.torch.load_file(url, device="cuda:0", **COPY)
    del one
    gc.collect()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(20):
        one = gpurx.torch.load_file(url, device="cuda:0", **COPY)
        assert one["a"].is_cuda
        del one
    gc.collect()
    assert soon(lambda: torch.cuda.mem_get_info()[0] >= before - 80 * MIB), before - torch.cuda.mem_get_info()[0]


def test_tensors_of_a_gpu_are_sent(stream: Callable[..., gpurx.TensorStream]) -> None:
    torch = framework("torch")
    receives = stream(batch_size=4, memory="gpu:0")
    made = torch.arange(24, device="cuda").reshape(6, 4).t()
    with gpurx.TensorSender(address_of(receives)) as sender:
        sender.send(x=made)
    assert torch.equal(torch.from_dlpack(next(receives).x), made)


def test_cupy_has_what_was_sent(server: Server, tmp_path: Path) -> None:
    cupy = framework("cupy")
    tensors = arrays()
    url = served(server, tensors, tmp_path)
    with gpurx.safe_open(url, "cupy", "cuda:0", **COPY) as file:
        for name, one in file:
            assert isinstance(one, cupy.ndarray) and one.dtype == tensors[name].dtype, name
            assert np.array_equal(cupy.asnumpy(one), tensors[name]), name
    with cupy.cuda.Stream(non_blocking=True) as own:
        one = cupy.from_dlpack(gpurx.load_safetensors(url, "cuda:0", **COPY)["float64 (33, 1001)"])
        total = one.sum()
        own.synchronize()
        assert float(total) == tensors["float64 (33, 1001)"].sum()


def test_jax_has_what_was_sent(server: Server, tmp_path: Path) -> None:
    jax = framework("jax")
    if not any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("this jax has no GPU")
    import gpurx.jax

    tensors = arrays()
    url = served(server, tensors, tmp_path)
    jax.config.update("jax_enable_x64", True)
    try:
        loaded = gpurx.jax.load_file(url, device="cuda:0", **COPY)
        assert loaded.keys() == tensors.keys()
        for name, one in loaded.items():
            assert isinstance(one, jax.Array) and one.dtype == tensors[name].dtype, name
            assert next(iter(one.devices())).platform == "gpu", name
            assert np.array_equal(np.asarray(one), tensors[name]), name
    finally:
        jax.config.update("jax_enable_x64", False)
