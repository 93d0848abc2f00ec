# SPDX-License-Identifier: Apache-2.0
"""ModelServer: replicas load the weights of running ones, also if one dies meanwhile."""

from __future__ import annotations

import ctypes
import http.client
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cuda import Driver

import gpurx
import gpurx.numpy
from gpurx import _serve
from gpurx._native import tensor_of_bytes

RANDOM = np.random.default_rng(1)
TENSORS: dict[str, Any] = {
    "wide": RANDOM.standard_normal((1000, 70)),
    "transposed": RANDOM.standard_normal((300, 20), dtype=np.float32).T,
    "flag": np.array(True),
    "nothing": np.zeros((0, 4), np.int32),
}
OPTIONS: dict[str, Any] = {"transport": "copy", "size": 4 << 20}


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert sorted(got) == sorted(expected)
    return all(np.array_equal(got[name], one) and got[name].dtype == one.dtype for name, one in expected.items())


@pytest.fixture
def server() -> Iterator[gpurx.ModelServer]:
    with gpurx.ModelServer(TENSORS, "127.0.0.1:0", metadata={"step": "7"}) as one:
        yield one


@pytest.mark.parametrize("chunk_size", [4096, 8 << 20])
def test_what_is_served_is_loaded(server: gpurx.ModelServer, chunk_size: int) -> None:
    assert same(gpurx.numpy.load_file(server.url, chunk_size=chunk_size, **OPTIONS), TENSORS)
    with gpurx.safe_open(server.url, "np", **OPTIONS) as file:
        assert file.metadata() == {"step": "7"}
        assert np.array_equal(file.get_slice("wide")[10:20, 3], TENSORS["wide"][10:20, 3])


def test_weights_are_served_on(server: gpurx.ModelServer) -> None:
    """The file is the same, so all of them are mirrors of each other."""
    weights = gpurx.load_safetensors(server.url, **OPTIONS)
    with gpurx.ModelServer(weights, "127.0.0.1:0", metadata=weights.metadata) as second:
        mirrored = gpurx.numpy.load_file(second.url, mirrors=[server.url], chunk_size=8192, **OPTIONS)
        assert same(mirrored, TENSORS)
        assert gpurx.load_safetensors(second.url, **OPTIONS).etag == weights.etag


def test_tensors_of_torch_are_served() -> None:
    torch = pytest.importorskip("torch")
    one = torch.arange(1000, dtype=torch.float32)
    with gpurx.ModelServer({"a": one[::2]}, "127.0.0.1:0") as server:
        assert np.array_equal(np.from_dlpack(gpurx.load_safetensors(server.url, **OPTIONS)["a"]), np.arange(0, 1000, 2))
    # A GPU's come to the host in pieces.
    address, keeps = _serve._on_gpu(one.view(torch.uint8))(100, 48)
    assert keeps.numel() == 48 and ctypes.string_at(address, 48) == np.arange(25, 37, dtype=np.float32).tobytes()


def test_from_a_gpu(gpu: Driver) -> None:
    pytest.importorskip("torch")
    one = tensor_of_bytes(bytes(range(24)), "bfloat16", [3, 4], "cuda:0")
    if gpu.is_fake:
        pytest.skip("needs a GPU: torch has no use for the fake driver")
    with gpurx.ModelServer({"a": one}, "127.0.0.1:0") as server:
        got = gpurx.load_safetensors(server.url, **OPTIONS)["a"]
        assert got.view("uint8").numpy().tobytes() == bytes(range(24))


def test_a_changed_tensor_is_noticed() -> None:
    changes = {"a": np.zeros(100_000)}
    with gpurx.ModelServer(changes, "127.0.0.1:0") as server:
        changes["a"][500] = 1
        with pytest.raises(gpurx.Error, match="CRC32C") as met:
            gpurx.load_safetensors(server.url, chunk_size=10_000, **OPTIONS)
        assert met.value.code is gpurx.IngestErrorCode.WRONG_CHECKSUM


def test_a_stranger_is_refused() -> None:
    with gpurx.ModelServer(TENSORS, "127.0.0.1:0", bearer="a token") as server:
        assert same(gpurx.numpy.load_file(server.url, bearer="a token", **OPTIONS), TENSORS)
        for bearer in (None, "a tokem", "a token "):
            with pytest.raises(gpurx.Forbidden):
                gpurx.numpy.load_file(server.url, bearer=bearer, **OPTIONS)
        with pytest.raises(gpurx.Forbidden):
            gpurx.numpy.load_file(server.url.replace("model", "other"), **OPTIONS)
    assert "a token" not in repr(server)


@pytest.mark.parametrize(
    "method, path, headers, status, size",
    [
        ("GET", "/model.safetensors", {}, 200, None),
        ("HEAD", "/model.safetensors", {}, 200, None),
        ("GET", "/model.safetensors", {"Range": "bytes=8-"}, 206, -8),
        ("GET", "/model.safetensors", {"Range": "bytes=8-8"}, 206, 1),
        ("GET", "/model.safetensors", {"Range": "bytes=99999999-"}, 416, 0),
        ("GET", "/model.safetensors", {"Range": "bytes=9-8"}, 416, 0),
        ("GET", "/../etc/passwd", {}, 404, 0),
        ("GET", "/model.safetensors", {"Range": "lines=1-2"}, 200, None),
        ("DELETE", "/model.safetensors", {}, 501, None),
    ],
)
def test_answers(
    server: gpurx.ModelServer, method: str, path: str, headers: dict[str, str], status: int, size: int | None
) -> None:
    connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    data = answer.read()
    assert answer.status == status
    if status == 501:
        return
    whole = int(answer.headers["ETag"].strip('"').partition("-")[0], 16) if size is None or size < 0 else 0
    expected = whole + (size or 0)
    assert int(answer.headers["Content-Length"]) == expected and len(data) == (0 if method == "HEAD" else expected)


def test_wrong_addresses_and_tensors() -> None:
    for address in ("127.0.0.1", ":80", "a:b"):
        with pytest.raises(ValueError, match="is not HOST:PORT"):
            gpurx.ModelServer(TENSORS, address)
    with pytest.raises(TypeError, match="tensor 'a': safetensors has no elements"):
        gpurx.ModelServer({"a": np.array(["text"])}, "127.0.0.1:0")
    with gpurx.ModelServer({}, "127.0.0.1:0") as one, pytest.raises(OSError):
        gpurx.ModelServer({}, one.url.split("/")[2])


# ---- replicas in processes of their own ----

REPLICA = Path(__file__).parents[2] / "samples/weights_from_peers/replica.py"

# It serves as the sample does, and dies in the answer that brings it to so many bytes.
DYING = """
import os, signal, sys
import gpurx
from gpurx import _serve

weights = gpurx.load_safetensors(sys.argv[1])
left = int(float(sys.argv[2]) * weights.file_size)
pieces = _serve._Content.pieces


def counted(self, begin, end):
    global left
    for address, size, keeps in pieces(self, begin, end):
        if left < size:
            yield address, left, keeps
            os.kill(os.getpid(), signal.SIGKILL)
        left -= size
        yield address, size, keeps


with_metadata = gpurx.ModelServer(weights, "127.0.0.1:0", metadata=weights.metadata)
_serve._Content.pieces = counted
print(with_metadata.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    started: list[subprocess.Popen[str]] = []

    def run(*command: str) -> tuple[subprocess.Popen[str], str]:
        one = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(one)
        assert one.stdout
        return one, one.stdout.readline().strip()

    yield run
    for one in started:
        one.communicate(timeout=60)


def test_a_replica_that_dies_is_replaced_by_another(start: Callable[..., Any], tmp_path: Path) -> None:
    """Three processes: the second loads from the first, and the third from both while the first dies."""
    large = {f"layer.{i}": RANDOM.standard_normal((1 << 20) + i, dtype=np.float32) for i in range(12)}
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(large, path, {"step": "7"})
    dies, first = start("-c", DYING, str(path), "1.2")  # all bytes for the second, and some for the third
    _, second = start(str(REPLICA), "127.0.0.1:0", first)
    assert dies.poll() is None
    _, third = start(str(REPLICA), "127.0.0.1:0", first, second)
    assert dies.wait(60) < 0
    assert same(gpurx.numpy.load_file(third, **OPTIONS), large)
    assert same(gpurx.numpy.load_file(first, mirrors=[second, third], **OPTIONS), large)  # of the dead one, too


def test_many_replicas_start_from_one(start: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    gpurx.save_file(path, TENSORS)
    _, first = start(str(REPLICA), "127.0.0.1:0", str(path))
    others = [start(str(REPLICA), "127.0.0.1:0", first)[1] for _ in range(3)]
    os.remove(path)
    assert all(same(gpurx.numpy.load_file(url, **OPTIONS), TENSORS) for url in others)
