# SPDX-License-Identifier: Apache-2.0
"""s3:// URLs: of a file, of an index, and of all that is below a prefix. From moto's server, signed by the library."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import boto3
import numpy as np
import pytest
import safetensors.numpy
from moto.server import ThreadedMotoServer

import gpurx
import gpurx.numpy

TENSORS = [{f"{i}.weight": np.full((i + 1, 5), i), f"{i}.bias": np.arange(i)} for i in range(3)]


@pytest.fixture(scope="module")
def bucket() -> Iterator[Any]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    known = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in known.items():
            patch.setenv(name, value)
        made = boto3.resource("s3", region_name="us-east-1").create_bucket(Bucket="models")
        yield made
    server.stop()


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


def put_model(bucket: Any, prefix: str) -> dict[str, str]:
    weight_map = {}
    for i, tensors in enumerate(TENSORS):
        name = f"shard {i}#.safetensors"
        bucket.put_object(Key=prefix + name, Body=safetensors.numpy.save(tensors))
        weight_map |= dict.fromkeys(tensors, name)
    return weight_map


def check(place: str, session: gpurx.Session, **options: Any) -> None:
    loaded = gpurx.numpy.load_file(place, session=session, **options)
    expected = {name: one for tensors in TENSORS for name, one in tensors.items()}
    assert loaded.keys() == expected.keys()
    assert all(np.array_equal(one, expected[name]) for name, one in loaded.items())


def test_a_prefix(bucket: Any, session: gpurx.Session) -> None:
    put_model(bucket, "plain/")
    bucket.put_object(Key="plain/deeper/more.safetensors", Body=safetensors.numpy.save({"more": np.zeros(3)}))
    bucket.put_object(Key="plain/README.md", Body=b"a model")
    check("s3://models/plain/", session)
    with gpurx.safe_open("s3://models/plain/shard 1#.safetensors", "np", session=session) as file:
        assert np.array_equal(file.get_slice("1.weight")[1], TENSORS[1]["1.weight"][1])
    weights = gpurx.load_safetensors("s3://models/plain/shard 2#.safetensors", session=session)
    assert np.array_equal(weights["2.bias"], np.arange(2))


def test_an_index_below_a_prefix(bucket: Any, session: gpurx.Session) -> None:
    weight_map = put_model(bucket, "a/b c/")
    bucket.put_object(Key="a/b c/other.safetensors", Body=safetensors.numpy.save({"0.weight": np.zeros(3)}))
    index = "a/b c/model.safetensors.index.json"
    bucket.put_object(Key=index, Body=json.dumps({"weight_map": weight_map}).encode())
    for place in ("s3://models/a/b c/", "s3://models/" + index):
        check(place, session)


def test_several_servers_with_the_same_bucket(bucket: Any, session: gpurx.Session) -> None:
    """The first is not there: what is listed and what is loaded comes from the second."""
    put_model(bucket, "nodes/")
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    with nobody:
        dead, alive = f"http://127.0.0.1:{nobody.getsockname()[1]}", os.environ["AWS_ENDPOINT_URL"]
        check("s3://models/nodes/", session, endpoint_url=[dead, alive])
        check("s3://models/nodes/", session, endpoint_url=(alive, dead))
        with pytest.raises(gpurx.Error) as met:
            check("s3://models/nodes/", session, endpoint_url=[dead], attempts=1)
        assert dead.removeprefix("http://") in str(met.value)


def test_what_is_not_there(bucket: Any, session: gpurx.Session) -> None:
    for prefix in ("s3://models/nothing/", "s3://models"):
        with pytest.raises(gpurx.Error, match="no .safetensors file"):
            gpurx.safe_open(prefix, "np", session=session)
    for place in ("s3://models/absent.safetensors", "s3://none-such/x/"):
        with pytest.raises(gpurx.NotFound) as met:
            gpurx.safe_open(place, "np", session=session)
        assert met.value.status == 404
        assert met.value.url.startswith(("http://127.0.0.1:", place))
    with pytest.raises(gpurx.Error) as met:
        gpurx.safe_open("s3://models/x", "np", session=session, profile="absent")
    assert met.value.code is gpurx.IngestErrorCode.NO_CREDENTIALS


def test_by_the_buckets_own_host(bucket: Any, session: gpurx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody here knows that name: the server is asked as a proxy."""
    put_model(bucket, "hosted/")
    monkeypatch.setenv("http_proxy", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setenv("no_proxy", "")
    host = "http://s3.us-east-1.amazonaws.com"
    options = {"endpoint_url": host, "session": session}
    for style, root in {"virtual": host.replace("//", "//models."), "path": host + "/models", "auto": host + "/models"}.items():
        place = "s3://models/hosted/shard 0#.safetensors"
        weights = gpurx.load_safetensors(place, addressing_style=style, **options)  # type: ignore[arg-type]
        assert weights.url == root + "/hosted/shard%200%23.safetensors"
    with pytest.raises(ValueError, match="'auto', 'path' or 'virtual'"):
        gpurx.load_safetensors(place, addressing_style="sideways", session=session)  # type: ignore[arg-type]


def test_all_in_keywords(bucket: Any, session: gpurx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    put_model(bucket, "keywords/")
    endpoint = os.environ["AWS_ENDPOINT_URL"]
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name)
    for one in (bucket, *bucket.objects.filter(Prefix="keywords/")):
        one.Acl().put(ACL="public-read")
    check("s3://models/keywords/", session, endpoint_url=endpoint, anonymous=True)
