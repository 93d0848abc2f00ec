# SPDX-License-Identifier: Apache-2.0
"""More URLs of the same: for one file, and for a model in several. For a checkpoint's files: ml/test_dcp.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running

import gpurx
import gpurx.numpy

TENSORS = {f"t{number}": np.arange(number, number + 50_000.0) for number in range(8)}
SHARDS = {f"part-{shard}.safetensors": [f"t{4 * shard + number}" for number in range(4)] for shard in range(2)}
INDEX = "model.safetensors.index.json"
FILES = {
    "m": safetensors.numpy.save(TENSORS),
    f"whole/{INDEX}": json.dumps({"weight_map": {one: file for file, some in SHARDS.items() for one in some}}).encode(),
    **{f"whole/{file}": safetensors.numpy.save({one: TENSORS[one] for one in some}) for file, some in SHARDS.items()},
}


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    first, second = Server(), Server()
    with running(first), running(second):
        first.files = FILES.copy()
        # Elsewhere there, and as a URL has it.
        second.files = {f"a/copy/{name}": data for name, data in FILES.items()}
        yield first, second


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


def loaded(url: str, **options: Any) -> dict[str, Any]:
    with gpurx.safe_open(url, "np", chunk_size=100_000, timeout=60, **options) as file:
        return dict(iter(file))


def check(tensors: dict[str, Any]) -> None:
    assert tensors.keys() == TENSORS.keys()
    assert all(np.array_equal(np.asarray(one), TENSORS[name]) for name, one in tensors.items())


def test_one_file_comes_from_both(servers: tuple[Server, Server], session: gpurx.Session) -> None:
    first, second = servers
    check(loaded(first.url("m"), mirrors=[second.url("a/copy/m")], session=session))
    assert first.ranges and second.ranges


def test_load_safetensors_takes_what_the_first_has_not(servers: tuple[Server, Server], session: gpurx.Session) -> None:
    first, second = servers
    del first.files["m"]
    check(gpurx.load_safetensors(first.url("m"), mirrors=[second.url("a/copy/m")], session=session))
    with pytest.raises(gpurx.NotFound):
        gpurx.load_safetensors(first.url("m"), session=session)


def test_a_model_of_several_files(servers: tuple[Server, Server], session: gpurx.Session) -> None:
    first, second = servers
    for name in SHARDS:
        del first.files[f"whole/{name}"]
    del second.files[f"a/copy/whole/{INDEX}"]
    check(loaded(first.url(f"whole/{INDEX}"), mirrors=[second.url(f"a/copy/whole/{INDEX}")], session=session))


def test_mirrors_that_differ_are_an_error(servers: tuple[Server, Server], session: gpurx.Session) -> None:
    first, second = servers
    second.files["a/copy/m"] += b"\0"
    with pytest.raises(gpurx.Error) as met:
        loaded(first.url("m"), mirrors=[second.url("a/copy/m")], session=session)
    assert met.value.code is gpurx.IngestErrorCode.MIRRORS_DIFFER


def test_mirrors_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(FILES["m"])
    with pytest.raises(TypeError, match="sequence of str"):
        gpurx.load_safetensors("http://127.0.0.1:1/m", mirrors="http://127.0.0.1:2/m")
    with pytest.raises(ValueError, match="name their index"):
        loaded(["http://127.0.0.1:1/a", "http://127.0.0.1:1/b"], mirrors=["http://127.0.0.1:2/m"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a file has no mirrors"):
        loaded(str(path), mirrors=["http://127.0.0.1:2/m"])


@pytest.mark.parametrize("keeps", [False, True])
def test_connections_are_kept_if_that_is_wanted(
    keeps: bool, servers: tuple[Server, Server], session: gpurx.Session
) -> None:
    server = servers[0]
    with gpurx.safe_open(server.url("m"), "np", flows=1, keep_connections=keeps, session=session) as file:
        for name, expected in TENSORS.items():
            assert np.array_equal(file.get_tensor(name), expected)
    assert (server.connections <= 2) == keeps, server.connections


@pytest.mark.parametrize("query", ["", "?sig=x&sr=c"])
def test_a_directory_of_a_server_has_mirrors_of_its_name(
    query: str, servers: tuple[Server, Server], session: gpurx.Session
) -> None:
    first, second = servers
    for server in servers:  # as the query belongs to the directory, all files have it
        server.files |= {f"{name}{query}": data for name, data in server.files.items()}
    first.files = {name: data for name, data in first.files.items() if "part-1" not in name}
    mirrors = [second.url(f"a/copy/whole/{query}")]
    check(loaded(first.url(f"whole/{query}"), mirrors=mirrors, session=session))
    assert first.ranges and second.ranges


def test_a_directory_of_a_server_without_an_index(servers: tuple[Server, Server], session: gpurx.Session) -> None:
    first, _ = servers
    first.files["one/model.safetensors"] = FILES["m"]
    check(loaded(first.url("one/"), session=session))
    assert first.paths == ["one/model.safetensors.index.json"] + ["one/model.safetensors"] * (len(first.paths) - 1)
    first.refuses = (403, "which is not said")
    with pytest.raises(gpurx.Forbidden) as met:
        loaded(first.url("one/"), session=session)
    assert met.value.url == first.url("one/model.safetensors")
