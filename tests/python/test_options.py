# SPDX-License-Identifier: Apache-2.0
"""Who asks a server, and whom it trusts: the same keywords for every function that takes a URL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running
from tls import make_identity, openssl
from tls import serving as serving_tls

import gpurx
import gpurx.numpy

TENSORS = {"a": np.arange(40.0).reshape(8, 5), "b": np.arange(9)}
FILE = safetensors.numpy.save(TENSORS)

Load = Callable[..., dict[str, Any]]


def by_safe_open(url: str, **options: Any) -> dict[str, Any]:
    with gpurx.safe_open(url, "np", **options) as file:
        return dict(iter(file))


def in_a_loop(url: str, **options: Any) -> dict[str, Any]:
    return asyncio.run(gpurx.load_safetensors_async(url, **options))


EACH = pytest.mark.parametrize("load", [gpurx.load_safetensors, in_a_loop, by_safe_open, gpurx.numpy.load_file])


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    directory = tmp_path_factory.mktemp("tls")
    return {name: make_identity(directory, name) for name in ("server", "client")}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["m"] = one.files["models/m"] = FILE
    with running(one):
        yield one


@pytest.fixture(autouse=True)
def nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "credentials").write_text(
        "[work]\naws_access_key_id = written-id\naws_secret_access_key = written/secret+key\n"
    )


def check(loaded: dict[str, Any]) -> None:
    assert loaded.keys() == TENSORS.keys()
    assert all(np.array_equal(np.asarray(one), TENSORS[name]) for name, one in loaded.items())


@EACH
def test_headers_and_a_token(load: Load, server: Server, session: gpurx.Session) -> None:
    check(load(server.url("m"), session=session, headers={"X-Model": "llama"}, bearer="hf_secret"))
    assert server.asked and all(
        (one["x-model"], one["authorization"]) == ("llama", "Bearer hf_secret") for one in server.asked
    )


@EACH
def test_who_is_slower_than_min_speed_is_given_up(load: Load, server: Server, session: gpurx.Session) -> None:
    server.files["m"] = safetensors.numpy.save(TENSORS, {"long": "x" * 2000})
    check(load(server.url("m"), session=session))
    undisturbed = server.requests

    # A machine that stands still looks like a server that is silent, or slow, and so like another end: some tries.
    def is_not_given_up() -> bool:
        server.requests = 0
        check(load(server.url("m"), session=session, timeout=0.3, min_speed=100, attempts=1000))
        return server.requests == undisturbed

    def is_too_slow() -> bool:
        with pytest.raises(gpurx.Error) as met:
            load(server.url("m"), session=session, timeout=0.3, min_speed=50_000, attempts=1)
        assert met.value.code is gpurx.IngestErrorCode.GAVE_UP
        return "bytes came in 300 ms (timeout): less than 50000 bytes a second (min_speed)" in str(met.value)

    server.pace = 4000
    assert any(is_not_given_up() for _ in range(20))
    server.pace = 1000
    assert any(is_too_slow() for _ in range(20))


@EACH
def test_an_authority_of_ones_own(load: Load, identities: Any, session: gpurx.Session, tmp_path: Path) -> None:
    certificate, _ = identities["server"]
    (tmp_path / "own.pem").write_bytes(certificate.read_bytes())
    openssl("rehash", tmp_path)
    with serving_tls(identities["server"]) as one:
        one.files["m"] = FILE
        with pytest.raises(gpurx.Error) as met:
            load(one.url("m"), session=session, attempts=1)
        assert met.value.code is gpurx.IngestErrorCode.TLS_FAILURE
        assert "Python's ca" in str(met.value)
        for ca in (certificate, str(certificate), tmp_path):
            check(load(one.url("m"), session=session, ca=ca))


def test_a_server_that_wants_to_know_who_asks(identities: Any, session: gpurx.Session, tmp_path: Path) -> None:
    ca, (cert, key) = identities["server"][0], identities["client"]
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    with serving_tls(identities["server"], asks_for=cert) as one:
        one.files["m"] = FILE
        with pytest.raises(gpurx.Error) as met:
            by_safe_open(one.url("m"), session=session, ca=ca, attempts=1)
        assert met.value.code is gpurx.IngestErrorCode.TLS_FAILURE
        check(by_safe_open(one.url("m"), session=session, ca=ca, cert=cert, key=key))
        check(by_safe_open(one.url("m"), session=session, ca=ca, cert=both))


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A server that makes sure of signatures: its http and https URLs, and its certificate."""
    path = tmp_path_factory.mktemp("strict") / "m"
    path.write_bytes(FILE)
    program = Path(__file__).parents[1] / "ingest" / "strict_s3.py"
    with subprocess.Popen([sys.executable, program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield json.loads(process.stdout.readline())
        process.communicate()


@EACH
def test_s3_with_a_profile_over_https(load: Load, strict: list[str], session: gpurx.Session) -> None:
    _, endpoint, ca = strict
    check(load("s3://models/any", session=session, endpoint_url=endpoint, ca=ca, profile="work"))
    with pytest.raises(gpurx.Forbidden):  # the environment's
        load("s3://models/any", session=session, endpoint_url=endpoint, ca=ca)
    with pytest.raises(gpurx.Error, match="no profile \"none\"") as met:
        load("s3://models/any", session=session, endpoint_url=endpoint, ca=ca, profile="none")
    assert met.value.code is gpurx.IngestErrorCode.NO_CREDENTIALS


@EACH
def test_s3_anonymously(load: Load, strict: list[str], session: gpurx.Session) -> None:
    check(load("s3://public/any", session=session, endpoint_url=strict[0], anonymous=True))
    with pytest.raises(gpurx.Forbidden):
        load("s3://models/any", session=session, endpoint_url=strict[0], anonymous=True)


def test_s3_in_a_region(server: Server, session: gpurx.Session) -> None:
    endpoint = server.url("").rstrip("/")
    with gpurx.safe_open("s3://models/m", "np", session=session, endpoint_url=endpoint, region="eu-north-1") as file:
        assert np.array_equal(file.get_tensor("b"), TENSORS["b"])
    assert all("/eu-north-1/s3/aws4_request" in one["authorization"] for one in server.asked if "authorization" in one)
    assert any("authorization" in one for one in server.asked)


@EACH
@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"headers": {"X-Key": "secret\r\nHost: x"}}, ValueError, 'header "X-Key"'),
        ({"headers": {"Range": "secret"}}, ValueError, 'header "Range"'),
        ({"headers": [("X-Key", "secret")]}, TypeError, "mapping of str to str"),
        ({"headers": {"X-Key": b"secret"}}, TypeError, "mapping of str to str"),
        ({"bearer": "secret\n"}, ValueError, "the bearer token"),
        ({"bearer": b"secret"}, TypeError, "bearer must be a str, not bytes"),
        ({"key": __file__}, ValueError, "a key for TLS"),
        ({"cert": __file__, "key": "-----BEGIN PRIVATE KEY-----\nsecret"}, ValueError, "key is the path of a file"),
        ({"ca": "/absent"}, ValueError, "ca: there is no '/absent'"),
        ({"cert": 5}, TypeError, "cert must be a path, not int"),
        ({"endpoint_url": "storage:9000"}, gpurx.Error, "storage:9000"),
        ({"endpoint_url": ["http://storage:9000", "storage:9001"]}, gpurx.Error, "storage:9001"),
        ({"endpoint_url": 5}, TypeError, "endpoint_url must be a str or a sequence of str"),
        ({"region": "Frankfurt am Main"}, gpurx.Error, "us-east-1"),
        ({"anonymous": "no"}, TypeError, "anonymous must be a bool"),
        ({"addressing_style": "sideways"}, ValueError, "'auto', 'path' or 'virtual'"),
        ({"deadline": -1}, ValueError, "deadline is a number of seconds"),
        ({"token": "secret"}, TypeError, "'token'.*bearer"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anybody_is_asked(
    load: Load, options: dict[str, Any], kind: type[Exception], says: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: Any) -> None:
        raise AssertionError("a session was opened")

    monkeypatch.setattr("gpurx._options.Settings.open_session", no_session)
    with pytest.raises(kind, match=says) as met:
        load(server.url("m"), **options)
    assert "secret" not in str(met.value) + repr(met.value) and server.requests == 0


def test_secrets_are_in_no_repr_and_no_message(server: Server, session: gpurx.Session) -> None:
    secrets = {"headers": {"X-Key": "secret"}, "bearer": "secret"}
    with gpurx.safe_open(server.url("m"), "np", session=session, **secrets) as file:
        assert "secret" not in repr(file) + repr(file._files._settings) + repr(file._files._settings.http)
    assert not [name for name in dir(file._files._settings.http) if name in ("headers", "bearer")]
    server.refuses = (403, "no")
    with pytest.raises(gpurx.Forbidden) as met:
        gpurx.safe_open(server.url("m"), "np", session=session, **secrets)
    assert "secret" not in str(met.value) + repr(met.value) + repr(vars(met.value))
