# SPDX-License-Identifier: Apache-2.0
"""gpurx.dcp: torch's own checkpoints, loaded from a server, equal to what torch's own reader makes of them."""

from __future__ import annotations

import io
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import soon
from ranges import Server
from torch.distributed.checkpoint.api import CheckpointException

import gpurx
import gpurx.dcp

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))
from crc import crc32c  # noqa: E402

Serve = Callable[[Path], Server]


def state(seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    made = {
        f"layer.{i}.{name}": torch.randn(shape, generator=random).to(dtype)
        for i in range(3)
        for name, shape, dtype in (
            ("weight", (129, 67), torch.float32),
            ("half", (1000,), torch.bfloat16),
            ("small", (3,), torch.float64),
            ("scalar", (), torch.float16),
            ("empty", (0, 5), torch.float32),
        )
    }
    numbers = torch.randint(0, 100, (40, 50), generator=random)
    return {
        "model": made,
        "bytes": torch.randint(0, 2, (17,), generator=random).bool(),
        "transposed": numbers.T,
        "part": numbers[3:9, 2:7],
        "shared": (numbers[:5], numbers[5:]),
        "step": 1000 + seed,
        "name": f"run {seed}",
        "optimizer": {"lr": 0.1 * seed, "betas": [0.9, 0.95]},
    }


def leaves(of: Any) -> list[Any]:
    if isinstance(of, dict):
        return [leaf for key in sorted(of) for leaf in leaves(of[key])]
    return [leaf for one in of for leaf in leaves(one)] if isinstance(of, (list, tuple)) else [of]


def equal(one: Any, other: Any) -> bool:
    pairs = zip(leaves(one), leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("memory_limit", [1, 10_000, 512 << 20])
def test_all_that_was_saved_is_loaded(serve: Serve, tmp_path: Path, memory_limit: int) -> None:
    dcp.save(state(1), storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=2), no_dist=True)
    server = serve(tmp_path)
    loaded = state(2)
    reader = gpurx.dcp.StorageReader(server.url(""), memory_limit=memory_limit, transport="copy", size=4 << 20)
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert equal(loaded, state(1)) and not equal(loaded, state(2))
    by_torch = state(3)
    dcp.load(by_torch, checkpoint_id=tmp_path, no_dist=True)
    assert equal(loaded, by_torch)


def test_from_s3(bucket: Callable[[Path], str], tmp_path: Path) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path, no_dist=True)
    loaded = state(2)
    dcp.load(loaded, storage_reader=gpurx.dcp.StorageReader(bucket(tmp_path), transport="copy"), no_dist=True)
    assert equal(loaded, state(1))


@pytest.mark.parametrize("memory_limit", [10_000, 512 << 20])
def test_what_is_damaged_is_named(serve: Serve, tmp_path: Path, memory_limit: int) -> None:
    dcp.save(state(1), storage_writer=dcp.FileSystemWriter(tmp_path, thread_count=2), no_dist=True)
    server = serve(tmp_path)

    def load(into: dict[str, Any], **options: Any) -> None:
        reader = gpurx.dcp.StorageReader(server.url(""), memory_limit=memory_limit, transport="copy", **options)
        dcp.load(into, storage_reader=reader, no_dist=True)

    server.checksums = {name: crc32c(data) for name, data in server.files.items()}
    loaded = state(2)
    load(loaded)
    assert equal(loaded, state(1))
    for name in sorted(server.files):
        server.checksums[name] ^= 1
        with pytest.raises((CheckpointException, gpurx.Error), match=f"/{re.escape(name)}.*CRC32C is"):
            load(state(2))
        load(state(2), checksum="none")
        server.checksums[name] ^= 1
    # Of what is read in part nothing is compared.
    server.checksums = dict.fromkeys(server.files, 0)
    del server.checksums[".metadata"]
    load({"bytes": state(2)["bytes"]})


def test_from_a_mirror(serve: Serve, tmp_path: Path) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path, no_dist=True)
    whole, lacks = serve(tmp_path), serve(tmp_path)
    for name in [one for one in lacks.files if one.endswith(".distcp")]:
        del lacks.files[name]
    loaded = state(2)
    reader = gpurx.dcp.StorageReader(lacks.url(""), mirrors=[whole.url("")], transport="copy")
    dcp.load(loaded, storage_reader=reader, no_dist=True)
    assert equal(loaded, state(1))


def test_from_a_hub_whose_branch_moves(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path, no_dist=True)
    server = serve(tmp_path)
    commit, later = "a" * 40, "b" * 40
    for name, data in list(server.files.items()):
        server.files[f"org/model/resolve/{commit}/{name}"] = data
        server.redirects[f"org/model/resolve/main/{name}"] = f"/org/model/resolve/{later}/{name}"
    server.redirects["org/model/resolve/main/.metadata"] = f"/org/model/resolve/{commit}/.metadata"
    monkeypatch.setenv("HF_ENDPOINT", server.url(""))
    for where in ("hf://org/model", server.url("org/model/resolve/main/")):
        loaded = state(2)
        dcp.load(loaded, storage_reader=gpurx.dcp.StorageReader(where, transport="copy"), no_dist=True)
        assert equal(loaded, state(1)), where


def test_from_a_path_and_by_checkpoint_id(serve: Serve, tmp_path: Path) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path, no_dist=True)
    for where in (str(tmp_path), tmp_path, serve(tmp_path).url("")[:-1]):
        loaded = state(2)
        dcp.load(loaded, checkpoint_id=where, storage_reader=gpurx.dcp.StorageReader(transport="copy"), no_dist=True)
        assert equal(loaded, state(1)), where


def test_files_are_read_beside_each_other(serve: Serve, tmp_path: Path) -> None:
    saved = {name: torch.arange(1 << 16) + i for i, name in enumerate("abcdef")}
    dcp.save(saved, storage_writer=dcp.FileSystemWriter(tmp_path, single_file_per_rank=False), no_dist=True)
    server = serve(tmp_path)
    wanted = {name: torch.zeros_like(one) for name, one in saved.items()}
    reader = gpurx.dcp.StorageReader(server.url(""), transport="copy", flows=4)
    metadata = reader.read_metadata()
    server.stalls = True
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(wanted, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    loads = threading.Thread(target=lambda: reader.read_data(planner.create_local_plan(), planner).wait())
    loads.start()
    beside = soon(lambda: server.most_paths == 2)
    server.stalls = False
    loads.join()
    assert beside and equal(wanted, saved)
    assert server.most_answering <= 4


@pytest.mark.parametrize("device", [0, "cuda:0", torch.device("cuda", 0)])
def test_a_device_is_a_number_too(tmp_path: Path, device: Any) -> None:
    """No GPU is here, and the reader must not take the host instead."""
    dcp.save({"a": torch.zeros(10)}, checkpoint_id=tmp_path, no_dist=True)
    if torch.cuda.is_available():
        pytest.skip("a GPU is here")
    with pytest.raises(CheckpointException, match="(?i)cuda|gpu"):
        dcp.load({"a": torch.zeros(10)}, storage_reader=gpurx.dcp.StorageReader(tmp_path, device=device), no_dist=True)


def ranks(count: int, *arguments: str) -> None:
    program = str(Path(__file__).with_name("shards.py"))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), program]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr


def test_shards_are_loaded_by_another_number_of_ranks(serve: Serve, tmp_path: Path) -> None:
    ranks(2, "save", str(tmp_path))
    server = serve(tmp_path)
    assert len([name for name in server.files if name.endswith(".distcp")]) == 2
    ranks(3, "load", server.url(""))


def test_only_what_the_plan_needs_is_read_and_each_piece_once(serve: Serve, tmp_path: Path) -> None:
    saved = {name: torch.arange(1 << 20) + i for i, name in enumerate("abcdefgh")}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)
    server = serve(tmp_path)
    wanted = {"f": torch.zeros(1 << 20, dtype=torch.int64)}
    dcp.load(wanted, storage_reader=gpurx.dcp.StorageReader(server.url(""), transport="copy"), no_dist=True)
    assert torch.equal(wanted["f"], saved["f"])
    size = next(len(data) for name, data in server.files.items() if name.endswith(".distcp"))
    read = sum(last + 1 - first for first, last in server.ranges)
    assert read < size / 2, (read, size)


def test_metadata_that_would_run_something_is_refused(serve: Serve, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (print, ("it ran",))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    at = serve(tmp_path).url("").replace("http://", "http://me:password@")
    with pytest.raises(ValueError, match=r"\.metadata: it is no checkpoint's metadata: it has a builtins\.print") as refusal:
        gpurx.dcp.StorageReader(at, transport="copy").read_metadata()
    assert "password" not in str(refusal.value)
    (tmp_path / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(ValueError, match="no checkpoint's metadata"):
        gpurx.dcp.StorageReader(tmp_path).read_metadata()


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/hostname", "a/../../b", "http://elsewhere/x", "", 5])
def test_metadata_leads_nowhere_else(serve: Serve, tmp_path: Path, name: Any) -> None:
    saved = tmp_path / "checkpoint"
    dcp.save({"a": torch.zeros(10)}, checkpoint_id=saved, no_dist=True)
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    for one in metadata.storage_data.values():
        one.relative_path = name
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))
    server = serve(saved)
    for where in (saved, server.url("")):
        server.requests = 0
        with pytest.raises(CheckpointException, match="no file of the checkpoint"):
            reader = gpurx.dcp.StorageReader(where, transport="copy")
            dcp.load({"a": torch.zeros(10)}, storage_reader=reader, no_dist=True)
        assert server.requests <= 1  # .metadata


def test_a_deadline_is_one_of_a_load(serve: Serve, tmp_path: Path) -> None:
    dcp.save(state(1), checkpoint_id=tmp_path, no_dist=True)
    server = serve(tmp_path)
    reader = gpurx.dcp.StorageReader(server.url(""), transport="copy", deadline=300)
    dcp.load(state(2), storage_reader=reader, no_dist=True)
    server.stalls = True
    with pytest.raises(gpurx.Error) as met:
        gpurx.dcp.StorageReader(server.url(""), transport="copy", deadline=0.5).read_metadata()
    assert met.value.code is gpurx.IngestErrorCode.GAVE_UP


def test_what_is_missing_is_named(serve: Serve, tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(10)}, checkpoint_id=tmp_path, no_dist=True)
    server = serve(tmp_path)
    with pytest.raises(gpurx.NotFound, match="nowhere/.metadata"):
        gpurx.dcp.StorageReader(server.url("nowhere"), transport="copy").read_metadata()
    for name in [one for one in server.files if one.endswith(".distcp")]:
        server.files[name] = server.files[name][:100]
    with pytest.raises(CheckpointException, match="__0_0.distcp"):
        reader = gpurx.dcp.StorageReader(server.url(""), transport="copy")
        dcp.load({"a": torch.zeros(10)}, storage_reader=reader, no_dist=True)


def test_a_tensor_of_another_shape_is_no_silent_mistake(serve: Serve, tmp_path: Path) -> None:
    dcp.save({"a": torch.zeros(10)}, checkpoint_id=tmp_path, no_dist=True)
    reader = gpurx.dcp.StorageReader(serve(tmp_path).url(""), transport="copy")
    with pytest.raises(CheckpointException, match="(?i)size|shape"):
        dcp.load({"a": torch.zeros(11)}, storage_reader=reader, no_dist=True)


def test_a_tensor_is_seen_in_what_torch_save_wrote() -> None:
    for one in (torch.arange(12.0).reshape(3, 4).T, torch.tensor(3), torch.zeros(0, 2), torch.randn(5, dtype=torch.complex64)):
        file = io.BytesIO()
        torch.save(one, file)
        data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        assert torch.equal(gpurx.dcp._tensor_in(data), one) and gpurx.dcp._tensor_in(data).dtype == one.dtype
