# SPDX-License-Identifier: Apache-2.0
"""gs:// URLs, from a server that checks who asks, and google.auth, in whose place a module of these tests stands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from test_credentials import Google

import gpurx
import gpurx.numpy

TENSORS = {name: np.arange(1000.0) + number for number, name in enumerate("abc")}
HMAC = {"AccessKeyId": "GOOG1EXAMPLE", "SecretAccessKey": "hmac/secret+key"}


@contextmanager
def serving(name: str, directory: Path) -> Iterator[str]:
    """A server of ingest/, strict_gcs.py or strict_azure.py, for objects below the directory."""
    program = Path(__file__).parents[1] / "ingest" / name
    with subprocess.Popen([sys.executable, program, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        yield server.stdout.readline().strip()
        server.stdin.close()


def stand_for_google_auth(patch: pytest.MonkeyPatch, found: Any) -> list[Any]:
    """Return the scopes of each call of its default()."""
    scopes: list[Any] = []
    auth, package = ModuleType("google.auth"), ModuleType("google")
    errors = ModuleType("google.auth.exceptions")
    errors.DefaultCredentialsError = LookupError  # type: ignore[attr-defined]

    def default(**given: Any) -> tuple[Any, None]:
        scopes.append(given["scopes"])
        if found is None:
            raise LookupError
        return found, None

    auth.default, auth.exceptions, package.auth = default, errors, auth  # type: ignore[attr-defined]
    for name, module in {"google": package, "google.auth": auth, "google.auth.exceptions": errors}.items():
        patch.setitem(sys.modules, name, module)
    return scopes


@pytest.fixture(scope="module", autouse=True)
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("gcs")
    for name in ("llama/model.safetensors", "wrong/model.safetensors"):
        (directory / name).parent.mkdir()
        (directory / name).write_bytes(safetensors.numpy.save(TENSORS))
    (directory / "llama/config.json").write_text("{}")
    with serving("strict_gcs.py", directory) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", url)
        stand_for_google_auth(patch, None)
        yield url


def test_each_identity(tmp_path: Path) -> None:
    given: list[Any] = [
        {"bearer": "secret"},
        {"credentials": Google()},
        {"credentials": lambda: {"Authorization": "Bearer secret"}},
        {"credentials": lambda: HMAC},
    ]
    for options in given:
        loaded = gpurx.numpy.load_file("gs://models/llama/", **options)
        assert all(np.array_equal(one, TENSORS[name]) for name, one in loaded.items()) and loaded.keys() == TENSORS.keys()
        assert gpurx.list_files("gs://models/llama/", **options) == ["config.json", "model.safetensors"]
    directory = gpurx.fetch_model("gs://models/llama/", tmp_path / "llama", bearer="secret")
    assert (Path(directory) / "config.json").read_text() == "{}"
    with gpurx.safe_open(directory, "np", bearer="secret") as file:
        assert file.keys() == sorted(TENSORS)


def test_public_buckets_and_refusals() -> None:
    assert gpurx.numpy.load_file("gs://public/llama/").keys() == TENSORS.keys()
    for bearer, words in (("", "storage.objects.get"), ("other", "get a new one")):
        with pytest.raises(gpurx.Forbidden, match=words):
            gpurx.load_safetensors("gs://models/llama/model.safetensors", bearer=bearer)
    with pytest.raises(gpurx.NotFound):
        gpurx.load_safetensors("gs://public/none")
    with pytest.raises(gpurx.Error) as met:
        gpurx.load_safetensors("gs://public/wrong/model.safetensors")
    assert met.value.code is gpurx.IngestErrorCode.WRONG_CHECKSUM


def test_google_auth_is_asked_by_itself_and_explain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_for_google_auth(monkeypatch, Google())
    with gpurx.Session(transport="copy", size=8 << 20) as session:
        with gpurx.safe_open("gs://models/llama/", "np", session=session) as file:
            assert file.keys() == sorted(TENSORS)
        assert asked == [["https://www.googleapis.com/auth/devstorage.read_only"]]
        assert "\ngs: google.auth supplies the credentials (Google)" in session.explain()
        gpurx.load_safetensors("gs://public/llama/model.safetensors", session=session, anonymous=True)
        assert len(asked) == 1
        with pytest.raises(gpurx.Forbidden):
            gpurx.load_safetensors("gs://models/llama/model.safetensors", session=session, anonymous=True)
