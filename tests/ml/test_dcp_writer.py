# SPDX-License-Identifier: Apache-2.0
"""gpurx.dcp.StorageWriter: torch and StorageReader read what it writes, and a killed writer leaves no half checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from checkpoints import state as small_state
from s3_store import Refused, Store, identity, store  # noqa: F401  # fixtures
from test_dcp import equal, ranks, state
from torch.distributed.checkpoint.api import CheckpointException

import gpurx
import gpurx.dcp

WHERE = "s3://checkpoints/step-1/"


def loaded(into: dict[str, Any], where: str, store: Store | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"endpoint_url": store.endpoint} if store else {}
    reader = gpurx.dcp.StorageReader(where, transport="copy", size=4 << 20, **options)
    dcp.load(into, storage_reader=reader, no_dist=True)
    return into


@pytest.mark.parametrize("is_single", [True, False])
def test_to_s3_and_back(store: Store, tmp_path: Path, is_single: bool) -> None:
    options: dict[str, Any] = {"part_size": 10_000, "single_file_per_rank": is_single}
    dcp.save(state(1), storage_writer=gpurx.dcp.StorageWriter(WHERE, endpoint_url=store.endpoint, **options), no_dist=True)
    assert "POST uploadId" in store.requests and not store.uploads
    assert equal(loaded(state(2), WHERE, store), state(1))
    for path, data in store.objects.items():  # torch reads the same files
        (tmp_path / path.rpartition("/")[2]).write_bytes(data)
    by_torch = state(3)
    dcp.load(by_torch, checkpoint_id=tmp_path, no_dist=True)
    assert equal(by_torch, state(1))


def test_to_a_directory_and_by_checkpoint_id(tmp_path: Path) -> None:
    where = tmp_path / "new/step"
    dcp.save(state(1), checkpoint_id=where, storage_writer=gpurx.dcp.StorageWriter(), no_dist=True)
    by_torch = state(2)
    dcp.load(by_torch, checkpoint_id=where, no_dist=True)
    assert equal(by_torch, state(1)) and equal(loaded(state(3), str(where)), state(1))
    assert len(os.listdir(where)) == 2


def test_in_the_background(store: Store) -> None:
    done = dcp.async_save(state(1), storage_writer=gpurx.dcp.StorageWriter(WHERE, endpoint_url=store.endpoint), no_dist=True)
    done.result(timeout=120)
    assert equal(loaded(state(2), WHERE, store), state(1))


def test_shards_of_ranks(tmp_path: Path) -> None:
    ranks(2, "save-by-gpurx", str(tmp_path))
    assert len([one for one in os.listdir(tmp_path) if one.endswith(".distcp")]) == 2
    ranks(3, "load", str(tmp_path))


def test_a_later_save_replaces_an_earlier_one(store: Store, tmp_path: Path) -> None:
    store.objects["/checkpoints/step-1/notes.txt"] = b"of the user"
    for where in (WHERE, str(tmp_path)):
        writer = gpurx.dcp.StorageWriter(where, endpoint_url=store.endpoint)
        for seed in (1, 2):
            dcp.save(state(seed), checkpoint_id=where, storage_writer=writer, no_dist=True)
            assert equal(loaded(state(3), where, store), state(seed))
        strict = gpurx.dcp.StorageWriter(where, endpoint_url=store.endpoint, overwrite=False)
        with pytest.raises(CheckpointException, match="overwrite is False"):
            dcp.save(state(4), storage_writer=strict, no_dist=True)
        assert equal(loaded(state(3), where, store), state(2))
    assert len(store.objects) == 3 and len(os.listdir(tmp_path)) == 2  # .metadata, data, and notes


def test_a_refused_save_leaves_the_last_checkpoint(store: Store) -> None:
    writer = gpurx.dcp.StorageWriter(WHERE, endpoint_url=store.endpoint, part_size=10_000)
    dcp.save(state(1), storage_writer=writer, no_dist=True)

    def refuse(what: str, number: int) -> None:
        if what == "POST uploadId":
            raise Refused(403, "AccessDenied")

    store.before = refuse
    with pytest.raises(CheckpointException, match="403 AccessDenied"):
        dcp.save(state(2), storage_writer=writer, no_dist=True)
    assert equal(loaded(state(3), WHERE, store), state(1)) and not store.uploads


class Killed:
    """Saves in processes that are killed."""

    def __init__(self) -> None:
        program = str(Path(__file__).with_name("checkpoints.py"))
        self._saves = subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.victim = 0
        self.is_known = threading.Event()

    def save(self, where: str, endpoint: str, seed: int, events: int = 0) -> bool:
        """Whether it ended by itself."""
        assert self._saves.stdin and self._saves.stdout
        self.is_known.clear()
        print(where, endpoint, seed, events, file=self._saves.stdin, flush=True)
        self.victim = int(self._saves.stdout.readline())
        self.is_known.set()
        status = int(self._saves.stdout.readline())
        assert status in (0, signal.SIGKILL), status
        return status == 0

    def kill(self) -> None:
        assert self.is_known.wait(60)
        os.kill(self.victim, signal.SIGKILL)

    def end(self) -> None:
        self._saves.communicate(timeout=60)


@pytest.fixture
def killed() -> Iterator[Killed]:
    one = Killed()
    yield one
    one.end()


def seed_in(where: str, store: Store | None) -> int:
    """The save that a reader finds, whole; 0: none."""
    options: dict[str, Any] = {"endpoint_url": store.endpoint} if store else {}
    try:
        gpurx.dcp.StorageReader(where, transport="copy", **options).read_metadata()
    except gpurx.NotFound:
        return 0
    found = loaded(small_state(99), where, store)
    assert equal(found, small_state(found["step"]))
    return int(found["step"])


def test_a_writer_that_is_killed_at_50_moments_leaves_no_half_checkpoint_in_s3(store: Store, killed: Killed) -> None:
    """Before and after requests: of a save into an empty directory, and of one over a checkpoint."""
    killed.save("s3://checkpoints/undisturbed/", store.endpoint, 1)
    first, saved = len(store.requests), dict(store.objects)
    killed.save("s3://checkpoints/undisturbed/", store.endpoint, 2)
    requests = len(store.requests) - first
    assert requests >= 25, store.requests[first:]
    found: dict[bool, list[int]] = {False: [], True: []}
    for moment in range(50):
        where, is_over = f"s3://checkpoints/{moment}/", moment % 2 == 1
        if is_over:
            store.objects |= {path.replace("undisturbed", str(moment)): data for path, data in saved.items()}
        at = len(store.requests) + moment // 2 * (requests - 1) // 24
        kills = lambda what, number, at=at: number == at and killed.kill()  # noqa: E731
        store.before, store.after = (kills, lambda *_: None) if moment // 2 % 2 else (lambda *_: None, kills)
        ended = killed.save(where, store.endpoint, 2)
        store.before = store.after = lambda *_: None
        assert not ended or len(store.requests) <= at, moment
        found[is_over].append(seed_in(where, store))
    assert set(found[False]) == {0, 2} and set(found[True]) == {1, 2}, found
    # The next save removes what a killed one has left.
    left = len(store.objects)
    killed.save("s3://checkpoints/10/", store.endpoint, 3)
    assert seed_in("s3://checkpoints/10/", store) == 3 and len(store.objects) <= left + 9
    assert not [path for path, _ in store.uploads.values() if path.startswith("/checkpoints/10/")]


def test_a_writer_that_is_killed_leaves_no_half_checkpoint_on_disk(tmp_path: Path, killed: Killed) -> None:
    found = {0: set[int](), 1: set[int]()}
    for before in found:
        events, is_whole = 0, False
        while not is_whole:
            events += 3 if events < 30 else 1
            where = tmp_path / f"{before}-{events}"
            if before:
                killed.save(str(where), "-", before)
            is_whole = killed.save(str(where), "-", 2, events)
            found[before].add(seed_in(str(where), None))
        assert events > 20
        killed.save(str(tmp_path / f"{before}-9"), "-", 3)
        names = os.listdir(tmp_path / f"{before}-9")
        assert seed_in(str(tmp_path / f"{before}-9"), None) == 3 and not [one for one in names if one.startswith(".gpurx-")]
    assert found == {0: {0, 2}, 1: {1, 2}}
