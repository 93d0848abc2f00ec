# SPDX-License-Identifier: Apache-2.0
"""async_safe_open: what safe_open does, while the event loop goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import soon
from ranges import Server, running

import gpurx
from gpurx._reading import Model

RANDOM = np.random.default_rng(16)
TENSORS = {name: RANDOM.standard_normal((300, 200)) for name in "abcdef"}


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files["m"] = safetensors.numpy.save(TENSORS)
    with running(one):
        yield one


@pytest.fixture(params=["path", "url"])
def place(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> str:
    (tmp_path / "m").write_bytes(server.files["m"])
    return str(tmp_path / "m") if request.param == "path" else server.url("m")


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(what, 60))


def same(one: Any, name: str) -> bool:
    return np.array_equal(one, TENSORS[name])


def test_it_gives_what_safe_open_gives(place: str, session: gpurx.Session) -> None:
    async def look() -> None:
        async with gpurx.async_safe_open(place, "np", session=session, chunk_size=1 << 16) as file:
            with gpurx.safe_open(place, "np", session=session) as other:
                assert file.keys() == other.keys() and file.offset_keys() == other.offset_keys()
                assert (len(file), file.nbytes, file.metadata()) == (len(other), other.nbytes, other.metadata())
            assert same(await file.get_tensor("b"), "b") and "b" in file
            part = file.get_slice("c")
            assert part.get_shape() == [300, 200]
            assert np.array_equal(await part[3:9, ::50], TENSORS["c"][3:9, ::50])
            assert all(same(one, name) for name, one in (await file.get_tensors()).items())
            arrived = [name async for name, one in file if same(one, name)]
            assert arrived == file.offset_keys()
            with pytest.raises(gpurx.Error, match="tensor 'absent'"):
                await file.get_tensor("absent")
        with pytest.raises(ValueError, match="closed"):
            await file.get_tensor("b")

    run(look())


def test_models_in_several_files(tmp_path: Path) -> None:
    for name, one in TENSORS.items():
        safetensors.numpy.save_file({name: one}, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    async def look() -> None:
        file = await gpurx.async_safe_open(tmp_path, "np")
        assert [name async for name, one in file if same(one, name)] == list(TENSORS)
        file.close()
        async with await gpurx.async_safe_open([tmp_path / "a.safetensors"], "np") as file:
            assert same(await file.get_tensor("a"), "a")
        (tmp_path / "b.safetensors").unlink()
        with pytest.raises(gpurx.Error, match="No such file"):
            await gpurx.async_safe_open(tmp_path, "np")

    run(look())


def test_many_at_once_and_what_was_fetched_before(place: str, session: gpurx.Session) -> None:
    async def look() -> None:
        async with gpurx.async_safe_open(place, "np", session=session, chunk_size=1 << 16) as file:
            for prefetch in ([], list("abc"), list("fedcba")):
                file.prefetch(prefetch)
                got = await asyncio.gather(*map(file.get_tensor, TENSORS))
                assert all(map(same, got, TENSORS))

    run(look())


def test_the_event_loop_goes_on(server: Server, session: gpurx.Session) -> None:
    async def look() -> None:
        async with gpurx.async_safe_open(server.url("m"), "np", session=session, chunk_size=4096) as file:
            server.stalls = True
            asked = len(server.ranges)
            waits = asyncio.create_task(file.get_tensor("f"))
            while len(server.ranges) == asked:  # this loop is what goes on
                await asyncio.sleep(0.01)
            assert not waits.done()
            server.stalls = False
            waits.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waits
            assert same(await file.get_tensor("f"), "f")

    run(look())


def test_who_gives_up_leaves_to_others_what_was_fetched_before(server: Server, session: gpurx.Session) -> None:
    async def look() -> None:
        async with gpurx.async_safe_open(server.url("m"), "np", session=session) as file:
            file.prefetch(list("abc"))
            first, second = (asyncio.create_task(file.get_tensor(name)) for name in "ab")
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert same(await second, "b")
            requests = server.requests
            assert same(await file.get_tensor("a"), "a") and same(await file.get_tensor("c"), "c")
            assert server.requests == requests

    run(look())


def test_progress_and_a_limit(place: str, session: gpurx.Session) -> None:
    told: list[tuple[int, int]] = []

    async def look() -> None:
        limit = 2 * TENSORS["a"].nbytes
        async with gpurx.async_safe_open(
            place, "np", session=session, memory_limit=limit, progress=lambda *so_far: told.append(so_far)
        ) as file:
            assert [name async for name, one in file if same(one, name)] == list(TENSORS)
            with pytest.raises(gpurx.Error, match="memory_limit"):
                await file.get_tensors()
            assert told == sorted(told) and told[-1] == (file.nbytes, file.nbytes)

    run(look())


def test_a_loop_that_is_left_ends_what_it_has_asked_for(
    server: Server, session: gpurx.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    start = Model._start
    for name in ("_FIRST", "_MOST"):  # the second comes once the first has arrived
        monkeypatch.setattr(f"gpurx._reading.{name}", 1)

    def noted(self: Model, group: Any, can_wait: bool = False) -> Any:
        server.stalls = bool(started)
        started.append(start(self, group, can_wait))
        return started[-1]

    monkeypatch.setattr(Model, "_start", noted)

    async def look() -> None:
        async with gpurx.async_safe_open(server.url("m"), "np", session=session, chunk_size=4096) as file:
            arriving = file.__aiter__()
            assert (await anext(arriving))[0] == "a"
            await arriving.aclose()
            assert len(started) == 2 and soon(started[1].is_over)

    run(look())


def test_what_was_not_opened_says_so(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(3)}, tmp_path / "one.safetensors")
    file = gpurx.async_safe_open(tmp_path / "one.safetensors", "np")

    async def loop() -> None:
        async for _ in file:
            pass

    for use in (file.keys, file.offset_keys, file.metadata, lambda: len(file), lambda: "a" in file, lambda: run(loop())):
        with pytest.raises(ValueError, match="is not open: .*await"):
            use()

    async def close() -> None:
        async with file:
            assert file.keys() == ["a"]
        with pytest.raises(ValueError, match="is closed"):
            await loop()

    run(close())


def test_who_is_cancelled_while_it_opens_leaves_nothing(server: Server) -> None:
    server.stalls = True
    opened: list[gpurx.Session] = []

    async def look() -> None:
        file = gpurx.async_safe_open(server.url("m"), "np", transport="copy", size=1 << 20)
        task = asyncio.ensure_future(file._open())
        while not server.requests:
            await asyncio.sleep(0.01)
        assert file._files.session
        opened.append(file._files.session)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(look())
    assert opened[0].closed and server.stalls
