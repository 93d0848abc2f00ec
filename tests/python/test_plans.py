# SPDX-License-Identifier: Apache-2.0
"""prefetch() of models in many files: one budget of connections, and who goes first."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from conftest import soon
from ranges import Server, running

import gpurx

RANDOM = np.random.default_rng(17)
FLOWS = 4
CHUNK = 8 << 10
SHARDS = [f"model-{number:05}.safetensors" for number in range(16)]
# Of 64 KiB each: an operation on a shard can use more connections than there are.
TENSORS = {f"{number}.{name}": RANDOM.standard_normal((64, 128)) for number in range(16) for name in "ab"}
INDEX = "model.safetensors.index.json"


def shard_of(name: str) -> str:
    return SHARDS[int(name.split(".")[0])]


FILES = {INDEX: json.dumps({"weight_map": {name: shard_of(name) for name in TENSORS}}).encode()} | {
    shard: safetensors.numpy.save({name: one for name, one in TENSORS.items() if shard_of(name) == shard}) for shard in SHARDS
}


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    one.files = FILES.copy()
    with running(one):
        yield one
        one.stalls = False


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=16 << 20, max_flows=64) as one:
        yield one


def opened(server: Server, session: gpurx.Session, **options: Any) -> gpurx.safe_open:
    file = gpurx.safe_open(server.url(INDEX), "np", session=session, flows=FLOWS, chunk_size=CHUNK, **options)
    # A file is left once its header is there, and the server may see that late. From here on all answers are awaited whole.
    assert soon(lambda: server.open == 0)
    server.forget()
    return file


def all_are_used(server: Server) -> bool:
    """Each connection has an answer under way. Whether more had, server.most_answering says in the end."""
    return soon(lambda: len(server.answering) >= FLOWS) and server.open == FLOWS


def asked(server: Server) -> list[str]:
    """In the order in which they were asked for first."""
    return list(dict.fromkeys(server.paths))


def check(file: gpurx.safe_open, names: Any = TENSORS) -> None:
    for name in names:
        assert np.array_equal(file.get_tensor(name), TENSORS[name]), name


def test_all_files_share_the_connections(server: Server, session: gpurx.Session) -> None:
    with opened(server, session) as file:
        server.stalls = True
        file.prefetch(reversed(file.keys()))
        assert all_are_used(server) and asked(server) == SHARDS[:1]
        server.stalls = False
        assert soon(lambda: len(file._fetched_before) == len(TENSORS) and asked(server) == SHARDS)
        check(file)
        assert asked(server) == SHARDS
        assert (server.most_answering, server.most_paths) == (FLOWS, 1)


def test_small_ones_come_beside_each_other(server: Server, session: gpurx.Session) -> None:
    """Each takes two connections at most, as it is less than a chunk."""
    rows = {name: np.s_[number % 64] for number, name in enumerate(TENSORS)}
    with opened(server, session) as file:
        server.stalls = True
        file.prefetch(rows.items())
        # Answers to both are under way: one is asked for before it is answered.
        assert soon(lambda: sorted(set(server.answering)) == SHARDS[:2]) and sorted(asked(server)) == SHARDS[:2]
        server.stalls = False
        for name, index in rows.items():
            assert np.array_equal(file.get_slice(name)[index], TENSORS[name][index]), name
        assert server.most_answering <= FLOWS and server.most_paths == 2


def into_arrays(file: gpurx.safe_open) -> Any:
    return file.get_tensors(into={name: np.empty_like(one) for name, one in TENSORS.items()})


@pytest.mark.parametrize(
    "load", [gpurx.safe_open.get_tensors, lambda file: dict(iter(file)), into_arrays], ids=["all", "each", "into"]
)
def test_all_of_small_files_come_beside_each_other(load: Any, server: Server, session: gpurx.Session) -> None:
    with gpurx.safe_open(server.url(INDEX), "np", session=session, flows=FLOWS) as file:
        assert soon(lambda: server.open == 0)
        server.forget()
        server.stalls = True
        loaded: dict[str, Any] = {}
        thread = threading.Thread(target=lambda: loaded.update(load(file)))
        thread.start()
        assert soon(lambda: sorted(set(server.answering)) == SHARDS[:2])
        server.stalls = False
        thread.join(60)
        assert all(np.array_equal(loaded[name], one) for name, one in TENSORS.items())
        assert server.most_answering <= FLOWS


def test_names_and_slices_come_file_by_file(server: Server, session: gpurx.Session) -> None:
    with opened(server, session) as file:
        file.prefetch([("9.b", np.s_[:, 5]), "9.a", ("2.a", np.s_[:, 5]), "5.a", "2.b"])
        assert np.array_equal(file.get_slice("2.a")[:, 5], TENSORS["2.a"][:, 5])
        check(file, ("2.b", "5.a", "9.a"))
        assert np.array_equal(file.get_slice("9.b")[:, 5], TENSORS["9.b"][:, 5])
        assert asked(server) == [SHARDS[number] for number in (2, 5, 9)]


def test_what_somebody_waits_for_goes_first(server: Server, session: gpurx.Session) -> None:
    """Of the plan, or not; and among these the first to ask is the first."""

    async def look() -> None:
        place = server.url(INDEX)
        async with gpurx.async_safe_open(place, "np", session=session, flows=FLOWS, chunk_size=CHUNK) as file:
            server.paths.clear()
            server.stalls = True
            file.prefetch(name for name in TENSORS if name not in ("8.b", "12.a"))
            assert soon(lambda: asked(server) == SHARDS[:1])
            wanted = ["14.a", "8.b", "11.a", "12.a"]
            tasks = [asyncio.create_task(file.get_tensor(name)) for name in wanted]
            await asyncio.sleep(0)
            server.stalls = False
            for name, task in zip(wanted, tasks, strict=True):
                assert np.array_equal(await task, TENSORS[name])
            assert asked(server)[:5] == [SHARDS[number] for number in (0, 14, 8, 11, 12)]
            for name in TENSORS:
                assert np.array_equal(await file.get_tensor(name), TENSORS[name])

    asyncio.run(asyncio.wait_for(look(), 60))


def test_who_gives_up_holds_up_nobody(server: Server, session: gpurx.Session) -> None:
    async def look() -> None:
        place = server.url(INDEX)
        async with gpurx.async_safe_open(place, "np", session=session, flows=FLOWS, chunk_size=CHUNK) as file:
            server.stalls = True
            file.prefetch(["0.a", "3.a"])
            # One that has begun, and two that wait.
            tasks = [asyncio.create_task(file.get_tensor(name)) for name in ("1.a", "2.a", "3.b")]
            while len(server.answering) < FLOWS:
                await asyncio.sleep(0.005)
            for task in tasks:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            server.stalls = False
            for name in ("0.a", "1.a", "2.a", "3.a", "3.b"):
                assert np.array_equal(await file.get_tensor(name), TENSORS[name])

    asyncio.run(asyncio.wait_for(look(), 60))


def test_a_file_that_fails_holds_up_no_other(server: Server, session: gpurx.Session) -> None:
    with opened(server, session) as file:
        del server.files[SHARDS[3]]
        server.files[SHARDS[7]] += b"more"
        file.prefetch(file.keys())
        check(file, [name for name in TENSORS if shard_of(name) not in (SHARDS[3], SHARDS[7])])
        with pytest.raises(gpurx.NotFound):
            file.get_tensor("3.a")
        with pytest.raises(gpurx.Error) as met:
            file.get_tensor("7.b")
        assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED
        server.files[SHARDS[3]] = FILES[SHARDS[3]]
        check(file, ["3.a", "3.a", "15.b"])  # also what is no plan's


def test_closing_ends_those_who_wait(server: Server, session: gpurx.Session) -> None:
    with opened(server, session) as file:
        server.stalls = True
        file.prefetch(file.keys())
        assert soon(lambda: asked(server) == SHARDS[:1])
        begun = [one.operation for one in file._fetched_before.values()]
    assert soon(lambda: all(one.is_over() for one in begun))
    assert asked(server) == SHARDS[:1] and soon(lambda: server.open <= FLOWS)
    server.stalls = False
    assert soon(lambda: server.open == 0)


def test_several_threads_share_the_connections(server: Server, session: gpurx.Session) -> None:
    with opened(server, session) as file:
        server.stalls = True
        got: list[bool] = []
        names = [f"{number}.a" for number in range(8)]
        threads = [
            threading.Thread(target=lambda name=name: got.append(np.array_equal(file.get_tensor(name), TENSORS[name])))
            for name in names
        ]
        for thread in threads:
            thread.start()
        assert all_are_used(server) and len(asked(server)) == 1
        server.stalls = False
        for thread in threads:
            thread.join(60)
        assert got == [True] * 8 and server.most_answering == FLOWS


def test_connections_that_are_kept_leave_room_for_other_files(server: Server) -> None:
    with gpurx.safe_open(server.url(INDEX), "np", flows=FLOWS, chunk_size=CHUNK, keep_connections=True, size=16 << 20) as file:
        for name in TENSORS:
            np.testing.assert_array_equal(file.get_tensor(name), TENSORS[name])
            assert soon(lambda: server.open <= FLOWS)
        connections = server.connections
        file.get_tensor("15.b")
        assert server.connections == connections
