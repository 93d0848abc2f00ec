# SPDX-License-Identifier: Apache-2.0
"""save_file: what it writes is what safetensors and gpurx read, and appears as a whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
import safetensors.numpy
from conftest import soon
from cuda import Driver
from moto.server import ThreadedMotoServer
from s3_store import Refused, Store, identity, store  # noqa: F401  # fixtures

import gpurx
import gpurx.numpy
from gpurx._native import tensor_of_bytes

RANDOM = np.random.default_rng(1)
TENSORS: dict[str, Any] = {
    "wide": RANDOM.standard_normal((100, 70)),
    "transposed": RANDOM.standard_normal((30, 20), dtype=np.float32).T,
    "half": RANDOM.standard_normal(17).astype(np.float16),
    "bytes": np.arange(3, dtype=np.uint8),
    "flag": np.array(True),
    "nothing": np.zeros((0, 4), np.int32),
}
URL = "s3://models/a directory/model.safetensors"


def same(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert sorted(got) == sorted(expected)
    return all(np.array_equal(got[name], one) and got[name].dtype == one.dtype for name, one in expected.items())


def keys(name: str, **more: Any) -> dict[str, Any]:
    return {"AccessKeyId": name, "SecretAccessKey": "secret of the program", "SessionToken": "token", **more}


def test_credentials_of_the_program_replace_all_others(store: Store) -> None:
    gpurx.save_file(URL, TENSORS, endpoint_url=store.endpoint, credentials=lambda: keys("own"))
    assert store.signers == {"own"}
    with pytest.raises(ValueError, match="writing to S3 needs keys"):
        gpurx.save_file(URL, TENSORS, endpoint_url=store.endpoint, credentials=lambda: {"Authorization": "Bearer one"})
    assert store.signers == {"own"}


def test_credentials_of_the_program_are_renewed(store: Store) -> None:
    """The first keys have ended by the first request."""
    names = iter(["first", "second"])
    ends = iter([1.0, 4e9])
    gpurx.save_file(
        URL, TENSORS, endpoint_url=store.endpoint, credentials=lambda: keys(next(names), Expiration=next(ends))
    )
    assert store.signers == {"second"}


def test_a_file_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "new/model.safetensors"
    gpurx.save_file(path, TENSORS, {"made": "for a test"})
    assert same(safetensors.numpy.load_file(path), TENSORS)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"made": "for a test"}
    with gpurx.safe_open(path, "np") as file:
        assert [file.get_slice(name).get_dtype() for name in file.offset_keys()][:2] == ["F64", "F32"]  # aligned
    gpurx.save_file(f"file://{path}", {})
    assert safetensors.numpy.load_file(path) == {} and os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_tensors_of_gpurx(tmp_path: Path, device: str, request: pytest.FixtureRequest) -> None:
    if device != "host":
        driver: Driver = request.getfixturevalue("gpu")
        assert driver
    one = tensor_of_bytes(bytes(range(24)), "bfloat16", [3, 4], device)
    gpurx.save_file(tmp_path / "a", {"a": one, "scalar": tensor_of_bytes(bytes(8), "float64", [], device)})
    with gpurx.safe_open(tmp_path / "a", "gpurx") as file:
        got = file.get_tensor("a")
        assert (got.dtype, got.shape, got.view("uint8").numpy().tobytes()) == ("bfloat16", (3, 4), bytes(range(24)))
        assert file.get_tensor("scalar").shape == ()


@pytest.mark.parametrize("part_size", [1000, 7, 1 << 20])
def test_to_s3_and_back_with_checksums(store: Store, part_size: int) -> None:
    tensors = TENSORS if part_size > 7 else {"half": TENSORS["half"]}
    gpurx.save_file(URL, tensors, endpoint_url=store.endpoint, part_size=part_size)
    assert same(safetensors.numpy.load(store.objects["/models/a directory/model.safetensors"]), tensors)
    assert same(gpurx.numpy.load_file(URL, endpoint_url=store.endpoint, transport="copy"), tensors)
    assert not store.uploads and ("POST uploadId" in store.requests) == (part_size < 1 << 20)


def test_parts_are_sent_beside_each_other(store: Store) -> None:
    arrived, released = [], threading.Event()

    def wait(what: str, number: int) -> None:
        if what == "PUT partNumber uploadId":
            arrived.append(number)
            released.wait(60)

    store.before = wait
    saves = threading.Thread(target=lambda: gpurx.save_file(URL, TENSORS, endpoint_url=store.endpoint, part_size=1000, flows=3))
    saves.start()
    beside = soon(lambda: len(arrived) == 3)
    released.set()
    saves.join()
    assert beside and same(safetensors.numpy.load(store.objects["/models/a directory/model.safetensors"]), TENSORS)


@pytest.mark.parametrize("failure", ["SlowDown", "BadDigest", "cut"])
def test_a_failed_part_is_sent_again(store: Store, failure: str) -> None:
    failed: list[int] = []

    def fail(what: str, number: int) -> None:
        if what == "PUT partNumber uploadId" and len(failed) < 3:
            failed.append(number)
            if failure == "cut":
                raise ConnectionError
            raise Refused(400 if failure == "BadDigest" else 503, failure)

    store.before = fail
    gpurx.save_file(URL, TENSORS, endpoint_url=store.endpoint, part_size=10_000)
    assert len(failed) == 3 and store.requests.count("POST uploads") == 1
    assert same(safetensors.numpy.load(store.objects["/models/a directory/model.safetensors"]), TENSORS)


@pytest.mark.parametrize("at", ["POST uploads", "PUT partNumber uploadId", "POST uploadId", "PUT"])
def test_a_refusal_leaves_nothing(store: Store, at: str) -> None:
    def refuse(what: str, number: int) -> None:
        if what == at:
            raise Refused(403, "AccessDenied")

    store.before = refuse
    with pytest.raises(gpurx.Forbidden, match=r"write s3://models/a directory/model.*403 AccessDenied") as met:
        gpurx.save_file(URL, TENSORS, endpoint_url=store.endpoint, part_size=1 << 20 if at == "PUT" else 1000)
    assert met.value.status == 403
    assert store.objects == {} and store.uploads == {}


def test_a_tensor_that_fails_leaves_the_old_file(store: Store, tmp_path: Path) -> None:
    class Failing(np.ndarray):  # type: ignore[type-arg]
        def copy(self, order: Any = "C") -> Any:
            raise OSError("the memory fails")

    fails = {**TENSORS, "bad": np.zeros((300, 400)).view(Failing).T}
    for place in (URL, str(tmp_path / "model")):
        gpurx.save_file(place, TENSORS, endpoint_url=store.endpoint)
        with pytest.raises(OSError, match="the memory fails"):
            gpurx.save_file(place, fails, endpoint_url=store.endpoint, part_size=100)
        assert same(gpurx.numpy.load_file(place, endpoint_url=store.endpoint, transport="copy"), TENSORS)
    assert not store.uploads and os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize(
    "url, tensors, text",
    [
        ("http://10.77.0.2/model", {}, "name an s3:// URL or a path"),
        ("s3://models", {}, "is not s3://BUCKET/KEY"),
        ("/tmp/never", {"a": np.array(["text"])}, "tensor 'a': safetensors has no elements of type"),
        ("/tmp/never", {"a": np.zeros(3, ">f4")}, "no elements of type >f4"),
        ("/tmp/never", {"__metadata__": np.zeros(3)}, "no tensor can have the name"),
        ("/tmp/never", {5: np.zeros(3)}, "name must be a str, not int"),
    ],
)
def test_mistakes_are_named_before_a_byte_is_written(url: str, tensors: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        gpurx.save_file(url, tensors)
    assert not Path("/tmp/never").exists()


def test_with_another_server() -> None:
    """It takes no parts of less than 5 MiB, but the last."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        where: dict[str, Any] = {"endpoint_url": f"http://{host}:{port}", "region": "us-east-1"}
        boto3.client("s3", endpoint_url=where["endpoint_url"], region_name="us-east-1").create_bucket(Bucket="models")
        large = {**TENSORS, "large": RANDOM.integers(0, 1 << 60, (1 << 20) + 1)}
        gpurx.save_file(URL, large, part_size=5 << 20, **where)
        # Without the package crc32c, it announces the CRC32 as CRC32C.
        assert same(gpurx.numpy.load_file(URL, transport="copy", checksum="none", **where), large)
    finally:
        server.stop()
