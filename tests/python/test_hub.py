# SPDX-License-Identifier: Apache-2.0
"""A model of Hugging Face's hub, in several files: its index, behind a redirect of its own, and shards that other hosts serve to
whom a signed URL leads there. The token is for the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server
from test_options import EACH, Load, by_safe_open
from tls import make_identity, serving

import gpurx
import gpurx.numpy

TENSORS = {f"{shard}.{name}": np.arange(1000.0) + shard for shard in range(6) for name in "ab"}
SHARDS = [f"model-{shard + 1:05}-of-00006.safetensors" for shard in range(6)]
INDEX = "model.safetensors.index.json"
RESOLVE = "org/model/resolve/main/"
CACHED = "api/resolve-cache/models/org/model/1234/"


class Hub(NamedTuple):
    itself: Server
    storage: Server
    ca: Path
    session: gpurx.Session

    def url(self, name: str) -> str:
        return self.itself.url(RESOLVE + name)

    def check_who_was_told(self) -> None:
        assert self.itself.asked and all(one.get("authorization") == "Bearer hf_secret" for one in self.itself.asked)
        assert self.storage.asked and not [one for one in self.storage.asked if "hf_secret" in str(one) or "authorization" in one]


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_identity(tmp_path_factory.mktemp("hub"), "server")


@pytest.fixture
def hub(identity: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_ENDPOINT", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    with serving(identity) as itself, serving(identity) as storage, gpurx.Session(transport="copy", size=8 << 20) as session:
        itself.wants = "Bearer hf_secret"
        weight_map = {name: SHARDS[int(name[0])] for name in TENSORS}
        itself.files[CACHED + INDEX] = json.dumps({"weight_map": weight_map}).encode()
        itself.redirects[RESOLVE + INDEX] = "/" + CACHED + INDEX
        for number, shard in enumerate(SHARDS):
            signed = f"xet/{number}?Signature=abc~&Expires=1"
            storage.files[signed] = safetensors.numpy.save({x: one for x, one in TENSORS.items() if int(x[0]) == number})
            itself.redirects[RESOLVE + shard] = storage.url(signed).replace("127.0.0.1", "localhost")
        yield Hub(itself, storage, identity[0], session)


def check(loaded: dict[str, Any], names: Any = TENSORS) -> None:
    assert sorted(loaded) == sorted(names)
    assert all(np.array_equal(np.asarray(one), TENSORS[name]) for name, one in loaded.items())


@pytest.mark.parametrize("load", [by_safe_open, gpurx.numpy.load_file])
@pytest.mark.parametrize("by", ["environment", "bearer"])
def test_a_model_of_the_hub(load: Load, by: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    token = {"bearer": "hf_secret"} if by == "bearer" else {}
    if by == "environment":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("HF_ENDPOINT", hub.itself.url("").rstrip("/"))
    check(load(hub.url(INDEX), session=hub.session, ca=hub.ca, **token))
    assert {RESOLVE + name for name in [INDEX, *SHARDS]} | {CACHED + INDEX} == set(hub.itself.paths)
    hub.check_who_was_told()


@EACH
def test_one_file_of_it(load: Load, hub: Hub) -> None:
    check(load(hub.url(SHARDS[2]), session=hub.session, ca=hub.ca, bearer="hf_secret"), ("2.a", "2.b"))
    hub.check_who_was_told()


def test_a_plan_for_it(hub: Hub) -> None:
    with gpurx.safe_open(hub.url(INDEX), "np", session=hub.session, ca=hub.ca, bearer="hf_secret", flows=2) as file:
        file.prefetch([("4.a", np.s_[10:20]), "1.b"])
        assert np.array_equal(file.get_slice("4.a")[10:20], TENSORS["4.a"][10:20])
        check({"1.b": file.get_tensor("1.b")}, ["1.b"])
    hub.check_who_was_told()


def test_without_a_token(hub: Hub) -> None:
    with pytest.raises(gpurx.Forbidden) as met:
        gpurx.safe_open(hub.url(INDEX), "np", session=hub.session, ca=hub.ca)
    assert met.value.status == 401 and not hub.storage.requests
