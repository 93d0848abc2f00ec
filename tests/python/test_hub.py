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
from ranges import Server, running
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
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_ENDPOINT", "NETRC"):
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


COMMIT = "0123456789" * 4
OTHER = "f" * 40
FILES = [INDEX, *SHARDS, "config.json", "onnx/model.onnx"]


@pytest.fixture
def model(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub with its list of files. What is there by a commit is at that commit only; main would lead elsewhere."""
    monkeypatch.setenv("HF_ENDPOINT", hub.itself.url("").rstrip("/"))
    files, redirects = hub.itself.files, hub.itself.redirects
    about = {"sha": COMMIT, "siblings": [{"rfilename": name} for name in FILES]}
    files["api/models/org/model/revision/v1.0"] = files["api/models/org/model/revision/main"] = json.dumps(about).encode()
    for name in [INDEX, *SHARDS]:
        at = f"org/model/resolve/{COMMIT}/{name}"
        redirects[at] = redirects.pop(RESOLVE + name)
        hub.itself.fields[at] = ("X-Repo-Commit", COMMIT)
    files[f"org/model/resolve/{COMMIT}/config.json"] = b"{}"
    return hub


@pytest.mark.parametrize("load", [by_safe_open, gpurx.numpy.load_file])
@pytest.mark.parametrize("place", ["hf://org/model", "hf://org/model@v1.0", f"hf://org/model@{COMMIT}/{INDEX}"])
def test_a_location_of_the_hub(load: Load, place: str, model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    check(load(place, session=model.session, ca=model.ca))
    at_commit = [one for one in model.itself.paths if one.startswith(f"org/model/resolve/{COMMIT}/")]
    others = set(model.itself.paths) - set(at_commit)
    assert {Path(one).name for one in at_commit} == {INDEX, *SHARDS}
    assert others <= {"api/models/org/model/revision/" + place.partition("@")[2], "api/models/org/model/revision/main", CACHED + INDEX}
    model.check_who_was_told()


@pytest.mark.parametrize("variable", ["HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_the_token_of_a_file(variable: str, model: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    below = {"HF_TOKEN_PATH": "", "HF_HOME": "token", "XDG_CACHE_HOME": "huggingface/token", "HOME": ".cache/huggingface/token"}
    file = tmp_path / "home" / below[variable]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("hf_secret\n")
    monkeypatch.setenv(variable, str(tmp_path / "home"))
    assert gpurx.list_files("hf://org/model", ca=model.ca) == sorted(name for name in FILES if "/" not in name)
    check(gpurx.load_safetensors(f"hf://org/model@{COMMIT}/{SHARDS[1]}", session=model.session, ca=model.ca), ("1.a", "1.b"))
    model.check_who_was_told()


def test_a_list_that_leads_elsewhere_takes_no_token_along(model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    path = "api/models/org/model/revision/main"
    model.storage.files["list"] = model.itself.files[path]
    model.itself.redirects[path] = model.storage.url("list")
    assert "onnx/model.onnx" in gpurx.list_files("hf://org/model", recursive=True, ca=model.ca)
    model.check_who_was_told()


def test_a_token_is_not_sent_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    with running(server):
        monkeypatch.setenv("HF_ENDPOINT", server.url(""))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        with pytest.raises(gpurx.NotFound, match="check the names of the model, the revision and the file"):
            gpurx.list_files("hf://org/model")
        with pytest.raises(gpurx.NotFound, match="check the names of the model, the revision and the file"):
            gpurx.load_safetensors("hf://org/model/model.safetensors")
        assert len(server.asked) == 2 and "hf_secret" not in str(server.asked)


@pytest.mark.parametrize(("status", "advice"), [(401, "set HF_TOKEN"), (403, "accept the conditions on the model's page")])
def test_a_gated_model(status: int, advice: str, model: Hub) -> None:
    model.itself.refuses = (status, "gated")
    with pytest.raises(gpurx.Forbidden, match=advice) as met:
        gpurx.safe_open("hf://org/model", "np", session=model.session, ca=model.ca)
    assert met.value.status == status
    with pytest.raises(gpurx.Forbidden, match=advice) as met:
        gpurx.safe_open(model.url(INDEX), "np", session=model.session, ca=model.ca)
    assert met.value.status == status and not model.storage.requests


@pytest.mark.parametrize("names", [INDEX, SHARDS])
def test_a_branch_that_moves(names: str | list[str], model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first answer main is another commit, with the same files."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    for number, name in enumerate([INDEX, *SHARDS]):
        main = model.itself.redirects[RESOLVE + name] = f"/org/model/resolve/{COMMIT if number == 0 else OTHER}/{name}"
        if number:
            model.itself.redirects[main[1:]] = model.itself.redirects[f"org/model/resolve/{COMMIT}/{name}"]
    if names == INDEX:
        check(by_safe_open(model.url(INDEX), session=model.session, ca=model.ca))
        assert not [one for one in model.itself.paths if OTHER in one]
        return
    model.itself.redirects[RESOLVE + SHARDS[2]] = f"/org/model/resolve/{COMMIT}/{SHARDS[2]}"
    with pytest.raises(gpurx.Error, match=f"of commit {COMMIT}|of commit {OTHER}") as met:
        gpurx.safe_open([model.url(name) for name in SHARDS], "np", session=model.session, ca=model.ca)
    assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED and COMMIT in str(met.value) and OTHER in str(met.value)


def test_a_file_stays_at_its_commit(model: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor is fetched after main has become another commit."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    two = SHARDS[3:5]
    model.itself.redirects |= {RESOLVE + name: f"/org/model/resolve/{COMMIT}/{name}" for name in two}
    with gpurx.safe_open([f"hf://org/model/{name}" for name in two], "np", session=model.session, ca=model.ca) as file:
        model.itself.redirects |= {RESOLVE + name: f"/org/model/resolve/{OTHER}/{name}" for name in two}
        check({"3.a": file.get_tensor("3.a")}, ["3.a"])
    assert not [one for one in model.itself.paths if OTHER in one]


def test_without_a_token(hub: Hub) -> None:
    with pytest.raises(gpurx.Forbidden) as met:
        gpurx.safe_open(hub.url(INDEX), "np", session=hub.session, ca=hub.ca)
    assert met.value.status == 401 and not hub.storage.requests
