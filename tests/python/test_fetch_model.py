# SPDX-License-Identifier: Apache-2.0
"""gpurx.fetch_model: what is not weights comes to disk, and the directory then is the model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from test_hub import COMMIT, OTHER, SHARDS, Hub, hub, identity, model  # noqa: F401  # fixtures
from test_hub import check as check_hub
from test_s3 import bucket  # noqa: F401  # a fixture

import gpurx
import gpurx.numpy

SIDE = {"config.json": b'{"a": 1}', "tokenizer/vocab.txt": b"a\nb\n", "tokenizer.model": bytes(range(256)), "empty": b""}
WEIGHTS = {"x": np.arange(5.0), "y": np.eye(3)}


def put(bucket: Any, prefix: str, files: dict[str, bytes] = SIDE) -> str:  # noqa: F811
    for name, data in files.items():
        bucket.put_object(Key=prefix + name, Body=data)
    for name, one in WEIGHTS.items():
        bucket.put_object(Key=f"{prefix}model-{name}.safetensors", Body=safetensors.numpy.save({name: one}))
    for name in ("pytorch_model.bin", "onnx/model.onnx", "model.safetensors.index.json.bak/"):
        bucket.put_object(Key=prefix + name, Body=b"")
    return f"s3://models/{prefix}"


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def check(directory: Path, url: str, files: dict[str, bytes] = SIDE) -> None:
    """The files, and the weights by their name."""
    found = files_in(directory)
    record = json.loads(found.pop("gpurx.json"))
    assert found == files and record["weights"] == url and "gpurx.json" not in record["files"]
    loaded = gpurx.numpy.load_file(directory, transport="copy")
    assert loaded.keys() == WEIGHTS.keys() and all(np.array_equal(loaded[name], one) for name, one in WEIGHTS.items())


def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from now on."""
    names: list[str] = []
    read_url = gpurx._native.read_url

    def noted(session: Any, url: str, *rest: Any) -> Any:
        names.append(url.rpartition("/")[2])
        return read_url(session, url, *rest)

    monkeypatch.setattr("gpurx._native.read_url", noted)
    return names


def test_a_prefix_of_s3(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    url = put(bucket, "whole/")
    names = read(monkeypatch)
    assert gpurx.fetch_model(url, tmp_path / "m", transport="copy") == str(tmp_path / "m")
    check(tmp_path / "m", url)
    assert sorted(names) == sorted(os.path.basename(name) for name in SIDE)
    # Nothing has changed: nothing is asked for but the list, and nothing is written.
    names.clear()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "m").rglob("*")}
    gpurx.fetch_model(url, tmp_path / "m", transport="copy")
    assert names == [] and before == {path: path.stat().st_mtime_ns for path in (tmp_path / "m").rglob("*")}
    # Of the same size, with another ETag; gone from the bucket; damaged and gone on the disk.
    bucket.put_object(Key="whole/config.json", Body=b'{"a": 2}')
    bucket.Object("whole/empty").delete()
    (tmp_path / "m/tokenizer.model").write_bytes(b"half")
    (tmp_path / "m/tokenizer/vocab.txt").unlink()
    (tmp_path / "m/mine").write_bytes(b"not of the model")
    gpurx.fetch_model(url, tmp_path / "m", transport="copy")
    assert sorted(names) == ["config.json", "tokenizer.model", "vocab.txt"]
    now = SIDE | {"config.json": b'{"a": 2}', "mine": b"not of the model"}
    del now["empty"]
    check(tmp_path / "m", url, now)


def test_a_directory(tmp_path: Path) -> None:
    there = tmp_path / "there"
    for name, data in (SIDE | {"gpurx.json": b'{"weights": "s3://elsewhere/"}'}).items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)
    with pytest.raises(gpurx.Error, match="no .safetensors file"):
        gpurx.fetch_model(there, tmp_path / "m")
    assert not (tmp_path / "m").exists()
    for name, one in WEIGHTS.items():
        safetensors.numpy.save_file({name: one}, there / f"model-{name}.safetensors")
    gpurx.fetch_model(there, tmp_path / "m")
    check(tmp_path / "m", f"{there}/")
    # Weights that are there are those of the model.
    safetensors.numpy.save_file({"z": np.zeros(1)}, tmp_path / "m/model.safetensors")
    assert gpurx.numpy.load_file(tmp_path / "m").keys() == {"z"}


def test_a_model_of_the_hub_is_of_one_commit(model: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    options: dict[str, Any] = {"session": model.session, "ca": model.ca}
    names = read(monkeypatch)
    gpurx.fetch_model("hf://org/model", tmp_path / "m", ca=model.ca, transport="copy")
    record = json.loads((tmp_path / "m/gpurx.json").read_text())
    assert record["weights"] == f"hf://org/model@{COMMIT}/" and names == ["config.json"]
    gpurx.fetch_model("hf://org/model", tmp_path / "m", ca=model.ca, transport="copy")
    assert names == ["config.json"]
    # The branch goes on: the weights are those beside the configuration.
    about = model.itself.files["api/models/org/model/revision/main"]
    model.itself.files[f"api/models/org/model/revision/{COMMIT}"] = about
    model.itself.files["api/models/org/model/revision/main"] = about.replace(COMMIT.encode(), OTHER.encode())
    names.clear()
    check_hub(gpurx.numpy.load_file(tmp_path / "m", **options))
    model.itself.files[f"org/model/resolve/{OTHER}/config.json"] = b"{}"
    gpurx.fetch_model("hf://org/model", tmp_path / "m", ca=model.ca, transport="copy")
    assert names == ["model.safetensors.index.json", "config.json"]
    assert json.loads((tmp_path / "m/gpurx.json").read_text())["weights"] == f"hf://org/model@{OTHER}/"


@pytest.mark.parametrize("name", ["../config.json", "a/../../config.json", "/etc/config.json", "a\\config.json", "x://config.json"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(*_: Any) -> Any:
        yield from ()
        return "s3://models/x/", [("model.safetensors", 1, '"1"'), (name, 1, '"1"')]

    monkeypatch.setattr("gpurx._files.Files.list_all", listed)
    with pytest.raises(gpurx.Error, match="not a name in a directory"):
        gpurx.fetch_model("s3://models/x/", tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_keys_that_lead_elsewhere(bucket: Any, tmp_path: Path) -> None:  # noqa: F811
    url = put(bucket, "evil/", SIDE | {"../out": b"1", "a/../../out": b"1", "/out": b"1"})
    gpurx.fetch_model(url, tmp_path / "deep/m", transport="copy")
    check(tmp_path / "deep/m", url)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"] and not Path("/out").exists()


KILLED = """
import os, signal, sys
import gpurx
def fsync(descriptor):
    if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).startswith(".gpurx-"):
        fsync.count += 1
        if fsync.count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
fsync.count = 0
os.fsync = fsync
gpurx.fetch_model(sys.argv[1], sys.argv[2], transport="copy")
"""


def test_who_is_killed_leaves_nothing_half(bucket: Any, tmp_path: Path) -> None:  # noqa: F811
    url = put(bucket, "killed/")
    killed = subprocess.run([sys.executable, "-c", KILLED, url, str(tmp_path / "m")], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    left = files_in(tmp_path / "m")
    partial = [name for name in left if name.startswith(".gpurx-")]
    assert len(partial) == 1 and len(left) == 2
    assert all(data == SIDE[name] for name, data in left.items() if name not in partial)
    gpurx.fetch_model(url, tmp_path / "m", transport="copy")
    check(tmp_path / "m", url)


def test_a_file_of_another_size_than_listed_is_not_taken(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    url = put(bucket, "changing/")
    list_all = gpurx._files.Files.list_all

    def then_changed(files: Any) -> Any:
        where, listed = yield from list_all(files)
        bucket.put_object(Key="changing/config.json", Body=b"another one")
        return where, listed

    monkeypatch.setattr("gpurx._files.Files.list_all", then_changed)
    with pytest.raises(gpurx.Error, match="its size is not that of the list") as met:
        gpurx.fetch_model(url, tmp_path / "m", transport="copy")
    assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED
    assert "config.json" not in files_in(tmp_path / "m") and "gpurx.json" not in files_in(tmp_path / "m")


def test_a_record_that_names_no_place(tmp_path: Path) -> None:
    for record in (b"{}", b"[]", b"\xff", b'{"weights": 1}', b'{"weights": "http://127.0.0.1/"}', b'{"weights": "elsewhere"}'):
        (tmp_path / "gpurx.json").write_bytes(record)
        with pytest.raises(gpurx.Error, match="gpurx.json names no place of weights"):
            gpurx.safe_open(tmp_path, "np")
