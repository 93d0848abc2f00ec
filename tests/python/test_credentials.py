# SPDX-License-Identifier: Apache-2.0
"""credentials=: libraries of clouds, functions of the program, and the library that gpurx asks by itself."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import botocore.credentials
import botocore.session
import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running
from test_s3 import bucket as bucket  # a fixture

import gpurx
from gpurx._credentials import NONE, library, supplier_of

WHOLE = safetensors.numpy.save({"a": np.arange(1000.0)})
HOUR = datetime.timedelta(hours=1)
NOW = datetime.datetime.now(datetime.timezone.utc)


class Google:
    """As google.auth has it: no token before refresh(), and an end without a time zone."""

    valid, expiry = True, (NOW + HOUR).replace(tzinfo=None)

    def before_request(self) -> None: ...

    def apply(self, headers: dict[str, str]) -> None:
        headers["authorization"] = "Bearer of-google"


class Azure:
    def get_token(self, *scopes: str) -> Any:
        return SimpleNamespace(token=f"for-{scopes[0]}", expires_on=2_000_000_000)


def keys() -> botocore.credentials.Credentials:
    return botocore.credentials.Credentials("id", "secret", "token")


def test_each_kind_becomes_keys_or_fields() -> None:
    session = botocore.session.Session()
    session.set_credentials("id", "secret", "token")
    end = (NOW + HOUR).timestamp()
    role = {"AccessKeyId": "id", "SecretAccessKey": "secret", "SessionToken": "token", "Expiration": NOW + HOUR}
    field = {"Authorization": "x"}
    fields = list(field.items())
    same: list[tuple[Any, Any]] = [
        (keys(), ("id", "secret", "token", [], None)),
        (session, ("id", "secret", "token", [], None)),
        (boto3.Session("id", "secret", "token", region_name="us-east-1"), ("id", "secret", "token", [], None)),
        (Google(), ("", "", "", [("authorization", "Bearer of-google")], end)),
        (lambda: role, ("id", "secret", "token", [], end)),
        (lambda: role | {"Expiration": (NOW + HOUR).isoformat()}, ("id", "secret", "token", [], end)),
        (lambda: field, ("", "", "", fields, None)),
        (lambda: (field, 7), ("", "", "", fields, 7.0)),
        (lambda: (field, NOW + HOUR), ("", "", "", fields, end)),
        (keys, ("id", "secret", "token", [], None)),
    ]
    for given, expected in same:
        assert supplier_of(given)("s3") == expected
    *_, fields, azure_end = supplier_of(Azure())("https")
    assert dict(fields) == {"Authorization": "Bearer for-https://storage.azure.com/.default", "x-ms-version": "2024-11-04"}
    assert azure_end == 2_000_000_000


def test_credentials_of_botocore_that_it_renews_are_asked_for_again() -> None:
    def refresh() -> dict[str, str]:
        return {"access_key": "id", "secret_key": "secret", "token": "token", "expiry_time": (NOW + HOUR).isoformat()}

    renewed = botocore.credentials.RefreshableCredentials.create_from_metadata(refresh(), refresh, "a test")
    *known, end = supplier_of(renewed)("s3")
    assert known == ["id", "secret", "token", []]
    assert end is not None and time.time() < end < time.time() + 900


def test_a_value_of_another_kind_is_refused() -> None:
    for given in (7, "token", {"Authorization": "x"}):
        with pytest.raises(TypeError, match="credentials must be a session"):
            gpurx.load_safetensors("https://127.0.0.1:9/x", credentials=given)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files = {"model.safetensors": WHOLE}
    with running(one):
        yield one


def sent(server: Server) -> list[str | None]:
    return [headers.get("authorization") for headers in server.asked]


def test_a_function_is_called_once_for_all_connections(server: Server) -> None:
    threads: list[threading.Thread] = []

    def ask() -> dict[str, str]:
        threads.append(threading.current_thread())
        return {"Authorization": "Bearer secret"}

    with gpurx.safe_open(server.url("model.safetensors"), "np", credentials=ask, chunk_size=1000, bearer="other") as file:
        assert np.array_equal(file.get_tensor("a"), np.arange(1000.0))
    assert len(threads) == 1 and threads[0] is not threading.main_thread()
    assert len(sent(server)) > 2 and set(sent(server)) == {"Bearer secret"}


def test_an_exception_of_the_function_is_an_error_of_gpurx(server: Server) -> None:
    def fail() -> dict[str, str]:
        raise LookupError("the vault is sealed")

    cases: list[tuple[Callable[[], Any], str]] = [
        (fail, "LookupError: the vault is sealed"),
        (lambda: None, "must return header fields, keys or other credentials, not NoneType"),
        (lambda: {"Authorization": b"secret"}, "a mapping of str to str"),
        (lambda: {"Authorization": "secret\r\nX: y"}, "one line"),
        (lambda: ({"A": "secret"}, NOW.replace(tzinfo=None)), "a time zone"),
        (lambda: {"AccessKeyId": "id"}, "without a secret key"),
        (lambda: {"AccessKeyId": "id", "SecretAccessKey": "secret"}, "keys of S3"),
        (lambda: {}, "returned none"),
    ]
    for function, words in cases:
        with pytest.raises(gpurx.Error) as met:
            gpurx.load_safetensors(server.url("model.safetensors"), credentials=function)
        assert met.value.code is gpurx.IngestErrorCode.NO_CREDENTIALS
        assert words in str(met.value) and "secret\r" not in str(met.value)
    assert sent(server) == []


def without_own(monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    return os.environ["AWS_ENDPOINT_URL"]


def test_s3_by_each_kind_of_keys(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without_own(monkeypatch)
    bucket.put_object(Key="by/model.safetensors", Body=WHOLE)
    for given in (keys(), boto3.Session("id", "secret", region_name="us-east-1"), keys):
        assert gpurx.load_safetensors("s3://models/by/model.safetensors", credentials=given).keys() == {"a"}
        assert gpurx.list_files("s3://models/by/", credentials=given) == ["model.safetensors"]


def test_botocore_is_asked_if_gpurx_finds_none_and_explain_says_so(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_own(monkeypatch)
    bucket.put_object(Key="by/model.safetensors", Body=WHOLE)
    # A role that is assumed by other keys: botocore asks moto's STS.
    config = tmp_path / "config"
    config.write_text(
        "[profile role]\nregion = us-east-1\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = id\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "role")
    with gpurx.Session(transport="copy", size=8 << 20) as session:
        assert "botocore" not in session.explain()
        assert gpurx.load_safetensors("s3://models/by/model.safetensors", session=session).keys() == {"a"}
        assert "\ns3: botocore supplies the credentials (assume-role)" in session.explain()
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert library("")("s3") == NONE
    with pytest.raises(gpurx.Error, match="role_arn") as met:
        gpurx.load_safetensors("s3://models/by/model.safetensors")
    assert met.value.code is gpurx.IngestErrorCode.NO_CREDENTIALS


def test_moto_takes_a_web_identity(bucket: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    endpoint = without_own(monkeypatch)
    bucket.put_object(Key="by/model.safetensors", Body=WHOLE)
    token = tmp_path / "token"
    token.write_text("web.identity.token")
    for name, value in dict(ROLE_ARN="arn:aws:iam::123456789012:role/r", WEB_IDENTITY_TOKEN_FILE=token, ENDPOINT_URL_STS=endpoint).items():
        monkeypatch.setenv(f"AWS_{name}", str(value))
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    assert gpurx.load_safetensors("s3://models/by/model.safetensors").keys() == {"a"}


def test_python_ends_while_the_function_runs(server: Server) -> None:
    """Python waits for it, so that no thread is cut in the middle of a call."""
    program = """if True:
        import contextlib, gpurx, json, sys, threading, time
        began, ends = threading.Event(), threading.Event()
        def ask():
            began.set()
            assert ends.wait(50)
            for _ in range(20):
                time.sleep(0.01)  # Python would end meanwhile
            print(json.dumps("done"), flush=True)
            return {"Authorization": "x"}
        def load():
            with contextlib.suppress(gpurx.Error):  # the session ends with Python
                gpurx.load_safetensors(sys.argv[1], credentials=ask)
        threading.Thread(target=load, daemon=True).start()
        assert began.wait(50)
        threading._register_atexit(ends.set)
    """
    done = subprocess.run([sys.executable, "-c", program, server.url("model.safetensors")], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr, [json.loads(line) for line in done.stdout.splitlines()]) == (0, "", ["done"])
