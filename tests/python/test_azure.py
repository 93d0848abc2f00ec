# SPDX-License-Identifier: Apache-2.0
"""az:// URLs, from a server that checks who asks, and azure.identity, in whose place a module of these tests stands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from test_credentials import Azure
from test_gcs import HMAC, serving

import gpurx
import gpurx.numpy

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))
from servers import StrictAzure

TENSORS = {name: np.arange(1000.0) + number for number, name in enumerate("abc")}
TOKEN = {"Authorization": "Bearer secret"}


def stand_for_azure_identity(patch: pytest.MonkeyPatch, found: Any) -> list[Any]:
    """Return the scopes of each call of its get_token()."""
    scopes: list[Any] = []
    package, core = ModuleType("azure"), ModuleType("azure.core")
    identity, errors = ModuleType("azure.identity"), ModuleType("azure.core.exceptions")
    errors.ClientAuthenticationError = LookupError  # type: ignore[attr-defined]

    class DefaultAzureCredential:
        def get_token(self, *asked: str) -> Any:
            scopes.append(asked)
            if found is None:
                raise LookupError("the secret has expired\nTo mend that, visit a page.")
            return found.get_token(*asked)

    identity.DefaultAzureCredential = DefaultAzureCredential  # type: ignore[attr-defined]
    for module in (package, core, identity, errors):
        patch.setitem(sys.modules, module.__name__, module)
    return scopes


@pytest.fixture(scope="module", autouse=True)
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("azure")
    (directory / "llama/original").mkdir(parents=True)
    (directory / "llama/model.safetensors").write_bytes(safetensors.numpy.save(TENSORS))
    (directory / "llama/config.json").write_text("{}")
    (directory / "llama/original/params.json").write_text("{}")
    with serving("strict_azure.py", directory) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZURE_STORAGE_BLOB_ENDPOINT", url)
        stand_for_azure_identity(patch, None)
        yield url


def test_each_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({}, {"bearer": "secret"}),
        ({}, {"credentials": Azure()}),
        ({}, {"credentials": lambda: TOKEN}),
        ({"AZURE_STORAGE_KEY": StrictAzure.KEY}, {}),
        ({"AZURE_STORAGE_SAS_TOKEN": StrictAzure.SAS}, {}),
    ]
    for environment, options in given:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            loaded = gpurx.numpy.load_file("az://account/models/llama/", **options)
            assert all(np.array_equal(one, TENSORS[name]) for name, one in loaded.items()) and loaded.keys() == TENSORS.keys()
            assert gpurx.list_files("az://account/models/llama/", **options) == ["config.json", "model.safetensors"]
            assert gpurx.list_files("az://account/models", recursive=True, **options) == [
                "llama/config.json",
                "llama/model.safetensors",
                "llama/original/params.json",
            ]
    directory = gpurx.fetch_model("az://account/models/llama/", tmp_path / "llama", bearer="secret")
    assert (Path(directory) / "config.json").read_text() == (Path(directory) / "original/params.json").read_text() == "{}"
    with gpurx.safe_open(directory, "np", bearer="secret") as file:
        assert file.keys() == sorted(TENSORS)


def test_public_containers_and_refusals() -> None:
    assert gpurx.numpy.load_file("az://account/public/llama/").keys() == TENSORS.keys()
    for bearer, words in (("", "set AZURE_STORAGE_KEY"), ("other", "get a new one")):
        with pytest.raises(gpurx.Forbidden, match=words):
            gpurx.load_safetensors("az://account/models/llama/model.safetensors", bearer=bearer)
    with pytest.raises(gpurx.NotFound):
        gpurx.load_safetensors("az://account/public/none")
    with pytest.raises(gpurx.Error, match="keys of S3, and Azure needs header fields"):
        gpurx.load_safetensors("az://account/models/llama/model.safetensors", credentials=lambda: HMAC)
    with pytest.raises(ValueError, match="cannot be written: name an s3:// URL"):
        gpurx.save_file("az://account/models/new.safetensors", TENSORS)


def test_credentials_that_the_server_refuses_are_asked_for_once_more() -> None:
    asked: list[None] = []

    def credentials() -> dict[str, str]:
        asked.append(None)
        return TOKEN

    assert gpurx.load_safetensors("az://account/models/expired/once/llama/model.safetensors", credentials=credentials).keys() == TENSORS.keys()
    assert len(asked) == 2
    with pytest.raises(gpurx.Forbidden, match="AuthenticationFailed"):
        gpurx.load_safetensors("az://account/models/expired/llama/model.safetensors", credentials=credentials)
    assert len(asked) == 4


def test_azure_identity_is_asked_by_itself_and_explain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = stand_for_azure_identity(monkeypatch, Azure())
    with gpurx.Session(transport="copy", size=8 << 20) as session:
        with gpurx.safe_open("az://account/models/llama/", "np", session=session) as file:
            assert file.keys() == sorted(TENSORS)
        assert set(asked) == {("https://storage.azure.com/.default",)}
        assert "\naz: azure.identity supplies the credentials (DefaultAzureCredential)" in session.explain()
        count = len(asked)
        gpurx.load_safetensors("az://account/public/llama/model.safetensors", session=session, anonymous=True)
        with pytest.raises(gpurx.Forbidden):
            gpurx.load_safetensors("az://account/models/llama/model.safetensors", session=session, anonymous=True)
        assert len(asked) == count


def test_explain_says_why_azure_identity_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_for_azure_identity(monkeypatch, None)
    with gpurx.Session(transport="copy", size=8 << 20) as session:
        gpurx.load_safetensors("az://account/public/llama/model.safetensors", session=session)
        assert "\naz: azure.identity supplies no credentials, so requests are anonymous: the secret has expired\n" in session.explain() + "\n"
