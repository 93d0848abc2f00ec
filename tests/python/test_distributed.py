# SPDX-License-Identifier: Apache-2.0
"""gpurx.distributed: ranks with torch.distributed's gloo, on loopback."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import struct
import types
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from conftest import soon
from ranges import Server, running
from test_dtypes import OF_ML_DTYPES, OF_NUMPY, numpy_type

from gpurx._convert import to_torch
from gpurx._native import tensor_of_bytes
from gpurx._peers import Block
from gpurx._slices import Wanted, blocks_of, fetched_bytes, part_of, piece_of, shares_of

RANDOM = np.random.default_rng(3)


@pytest.fixture
def server() -> Iterator[Server]:
    one = Server()
    with running(one):
        yield one


class Rank(NamedTuple):
    process: ForkServerProcess | SpawnProcess
    connection: Connection[Any, Any]


@functools.cache
def forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])  # which takes seconds to import
    return context


def start(
    case: str, ranks: int, url: str, directory: Path, by: ForkServerContext | SpawnContext | None = None
) -> list[Rank]:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    running = []
    context = by or forks()
    for rank in range(ranks):
        ours, theirs = context.Pipe()
        arguments = (theirs, rank, ranks, str(directory / "store"), url, case)
        process = context.Process(target=forked, args=arguments, daemon=True)
        process.start()
        theirs.close()
        running.append(Rank(process, ours))
    return running


def forked(*arguments: Any) -> None:
    importlib.import_module("share_ranks").run(*arguments)


def said(by: Rank) -> Any:
    if not by.connection.poll(120):
        return "nothing in 120 s"
    try:
        return by.connection.recv()
    except EOFError:
        by.process.join()
        return f"exit code {by.process.exitcode}"


def finish(running: list[Rank]) -> list[list[Any]]:
    """Returns what each still says."""
    told: list[list[Any]] = []
    try:
        for one in running:
            told.append([said(one)])
            while not isinstance(told[-1][-1], str):
                told[-1].append(said(one))
    finally:
        for one in running:
            one.process.kill()
            one.process.join()
    assert [lines[-1] for lines in told] == ["ok"] * len(running), "\n".join(lines[-1] for lines in told)
    return told


def wait_for_all(running: list[Rank], says: str) -> None:
    told = [said(one) for one in running]
    assert told == [says] * len(running), "\n".join(told)


def let_go_on(running: list[Rank]) -> None:
    for one in running:
        one.connection.send(None)


TENSORS = {
    "a.column": RANDOM.standard_normal((700, 1200)),
    "b.row": RANDOM.standard_normal((900, 500)).astype(np.float32),
    "c.norm": RANDOM.standard_normal(5000).astype(np.float16),
    "d.whole": RANDOM.integers(0, 100, (50, 60, 7)),
    "e.odd": RANDOM.integers(0, 2, (40, 30)).astype(bool),
    "f.number": np.array(7.5),
    "g.norm": np.zeros(0, np.int32),
    "h.column": RANDOM.standard_normal((1, 300_000)),
}


@pytest.mark.parametrize(("case", "nodes"), [("all_of_it", 1), ("on_two_nodes", 2)])
def test_each_rank_has_its_slices_and_a_node_reads_what_is_shared_once(
    case: str, nodes: int, server: Server, tmp_path: Path
) -> None:
    server.files["m"] = safetensors.numpy.save(TENSORS)
    running = start(case, 3, server.url("m"), tmp_path)
    wait_for_all(running, "go")
    server.ranges.clear()
    let_go_on(running)
    wait_for_all(running, "done")
    read = sum(last + 1 - first for first, last in server.ranges)
    let_go_on(running)
    finish(running)
    headers = 3 * 2 * (256 << 10)
    once = len(server.files["m"])
    assert once * 0.9 < read < once * (1 if nodes == 1 else 1.7) + headers
    assert 3 * once > once * 1.7 + headers  # what it would be without


def full(value: int, rows: int) -> bytes:
    return bytes([value]) * (rows * 4096)


def test_no_rank_has_more_memory_than_was_declared(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of 240 MiB for each of two ranks, by columns."""
    header, data = {}, []
    for name, rows in [("warm.column", 1024)] + [(f"{i}.column", 12288) for i in range(5)]:
        begin = sum(map(len, data))
        data.append(full(int(name.split(".")[0].replace("warm", "1")), rows))
        header[name] = {"dtype": "U8", "shape": [rows, 4096], "data_offsets": [begin, begin + len(data[-1])]}
    text = json.dumps(header).encode()
    server.files["m"] = b"".join([struct.pack("<Q", len(text)), text, *data])
    # In processes of their own: the limit is on the heap as a program has it. Left alone, malloc() raises the size from
    # which it maps memory, and then a heap keeps up to 12 MiB of holes, by the order in which threads come.
    monkeypatch.setenv("GLIBC_TUNABLES", f"glibc.malloc.mmap_threshold={128 << 10}")
    finish(start("under_a_limit", 2, server.url("m"), tmp_path, multiprocessing.get_context("spawn")))


def test_what_goes_wrong_on_one_rank_is_an_error_on_all(server: Server, tmp_path: Path) -> None:
    server.files["m"] = safetensors.numpy.save({str(i): RANDOM.standard_normal((100, 600)) for i in range(6)})
    finish(start("failing", 3, server.url("m"), tmp_path))


def test_small_files_come_beside_each_other(server: Server, tmp_path: Path) -> None:
    files = {str(i): safetensors.numpy.save({str(i): RANDOM.standard_normal((100, 60))}) for i in range(8)}
    server.files |= files | {"index.json": json.dumps({"weight_map": {name: name for name in files}}).encode()}
    running = start("of_small_files", 1, server.url("index.json"), tmp_path)
    wait_for_all(running, "opened")
    server.stalls = True
    let_go_on(running)
    assert soon(lambda: set(server.answering) == files.keys())
    server.stalls = False
    finish(running)


# ---- whole tensors ----


def save_model(server: Server) -> dict[str, np.ndarray]:
    """Of three files and an index in the directory "model"."""
    def normal(shape: tuple[int, ...]) -> np.ndarray:
        return (RANDOM.standard_normal(shape) * 0.05).astype(np.float32)

    model = {
        "embedding": normal((400, 1536)),
        "up": normal((4096, 1536)),
        "down": normal((1536, 4096)),
        "norm": normal((1536,)),
        "other.empty": np.zeros((0, 3), np.int32),
        "other.number": np.array(7.5),
        "other.flags": RANDOM.integers(0, 2, (40, 31)).astype(bool),
    }
    places = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(model)}
    for file in set(places.values()):
        data = safetensors.numpy.save({name: model[name] for name, place in places.items() if place == file})
        server.files[f"model/{file}"] = data
    server.files["model/model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    return model


def test_a_machine_fetches_whole_tensors_once_and_its_ranks_compute_the_same(server: Server, tmp_path: Path) -> None:
    save_model(server)
    once = sum(map(len, server.files.values()))
    answers = {}
    for ranks in (1, 2, 4):
        (tmp_path / str(ranks)).mkdir()
        running = start("with_whole_tensors", ranks, server.url("model/"), tmp_path / str(ranks))
        wait_for_all(running, "go")
        server.ranges.clear()
        server.paths.clear()
        let_go_on(running)
        wait_for_all(running, "done")
        read = sum(last + 1 - first for first, last in server.ranges)
        let_go_on(running)
        answers[ranks] = [lines[0] for lines in finish(running)]
        # The first rank alone finds the files, once for tensors() and once for load(): no rank has another revision.
        assert [path for path in server.paths if path.endswith(".json")] == ["model/model.safetensors.index.json"] * 2
        assert once * 0.99 < read <= once * 1.02, ranks
    for each in answers.values():
        for order, checksums, logits in each:
            assert sorted(order) == sorted(answers[1][0][0]) and order == each[0][0]
            assert checksums == answers[1][0][1]
            assert np.allclose(logits, answers[1][0][2], rtol=1e-4, atol=1e-3)


def test_a_rank_that_stops_is_an_error_on_its_machine(server: Server, tmp_path: Path) -> None:
    server.files |= {f"{i}": safetensors.numpy.save({str(i): RANDOM.standard_normal(600)}) for i in range(6)}
    places = {str(i): str(i) for i in range(6)}
    server.files["model.safetensors.index.json"] = json.dumps({"weight_map": places}).encode()
    finish(start("stopping", 3, server.url("model.safetensors.index.json"), tmp_path))


def test_a_tensor_in_the_files_of_two_ranks_is_an_error_on_all(server: Server, tmp_path: Path) -> None:
    server.files |= {name: safetensors.numpy.save({"a": RANDOM.standard_normal(600)}) for name in ("one", "two")}
    finish(start("twice", 2, json.dumps([server.url("one"), server.url("two")]), tmp_path))


@pytest.mark.parametrize("shape", [(2, 4), (), (0, 4), (64, 2)])
def test_a_block_has_tensors_of_every_type(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    distributed = importlib.import_module("gpurx.distributed")
    sizes = {name: numpy_type(name).itemsize for name in OF_NUMPY + OF_ML_DTYPES if hasattr(torch, name)}
    if hasattr(torch, "float4_e2m1fn_x2") and shape:
        sizes["float4_e2m1fn"] = 0.5  # type: ignore[assignment]
    random = {name: RANDOM.bytes(int(math.prod(shape) * size)) for name, size in sizes.items()}
    bits = {name: bytes(each & 1 for each in data) if name == "bool" else data for name, data in random.items()}
    made = {name: tensor_of_bytes(data, name, shape) for name, data in bits.items()}
    given: list[Any] = []
    peers = types.SimpleNamespace(are_none=False, give=lambda block: given.append(os.dup(block.descriptor)))
    some = [(types.SimpleNamespace(name=name), one) for name, one in made.items()]
    own = distributed._passed_on(some, [("url", "commit")], peers)
    another = distributed._opened(Block(given[0], os.fstat(given[0]).st_size))
    for commits, tensors in (own, another):
        assert commits == [("url", "commit")]
        for name, one in tensors:
            expected = to_torch(made[name])
            assert one.dtype == expected.dtype and one.shape == expected.shape, name
            seen = one.reshape(-1).view(torch.uint8) if one.numel() else torch.zeros(0)
            assert bytes(seen.tolist()) == bits[name], name
            if one.numel():
                seen.zero_()  # nobody else sees it
    assert len(made) >= 11


# ---- who reads what ----


def wanted(name: str, shape: tuple[int, ...], *indices: object) -> Wanted:
    return Wanted(name, shape, 4, {rank: part_of(shape, index) for rank, index in enumerate(indices)})


def test_what_is_read_once() -> None:
    nodes = dict.fromkeys(range(2), "here")
    norm, up, down = (
        wanted("norm", (1000,), ..., ...),
        wanted("up", (800, 1000), np.s_[:400], np.s_[400:]),
        wanted("down", (800, 1000), np.s_[:, :500], np.s_[:, 500:]),
    )
    shares = shares_of([norm, up, down], nodes)
    assert [(one.name, one.reader, len(one.takers)) for one in shares] == [
        ("norm", 0, 2), ("up", 0, 1), ("up", 1, 1), ("down", 1, 2)
    ]  # fmt: skip
    assert shares[3].box == ((0, 800), (0, 1000)) and shares[2].box == ((400, 800), (0, 1000))
    apart = shares_of([norm, up, down], {0: "here", 1: "there"})
    assert all(len(one.takers) == 1 and one.reader == one.takers[0][0] for one in apart)
    # Columns that are far from each other are fetched one by one.
    wide = wanted("wide", (10, 1 << 20), np.s_[:, :9], np.s_[:, -9:])
    assert [len(one.takers) for one in shares_of([wide], nodes)] == [1, 1]
    assert shares_of([wanted("none", (0, 4), ..., ...)], nodes) == []


@pytest.mark.parametrize(
    ("index", "size"),
    [(np.s_[...], 48_000), (np.s_[3], 480), (np.s_[:, 5], 99 * 480 + 40 + 2 * 0), (np.s_[::2], 49 * 960 + 480), (np.s_[4:4], 0)],
)
def test_what_has_to_be_fetched(index: object, size: int) -> None:
    assert fetched_bytes((100, 12, 10), part_of((100, 12, 10), index).extents, 4) == size


@pytest.mark.parametrize("at_most", [64, 4000, 10**6])
def test_blocks_and_parts_have_each_element_once(at_most: int) -> None:
    whole = np.arange(30 * 20 * 3).reshape(30, 20, 3)
    for index in (np.s_[...], np.s_[7:23:3], np.s_[:, 4:17:2], np.s_[5, ::7, 1], np.s_[29:30]):
        part = part_of(whole.shape, index)
        box = tuple((begin, begin + (count - 1) * step + 1) for begin, count, step in part.extents)
        wider = tuple((max(0, first - 2), min(size, end + 3)) for (first, end), size in zip(box, whole.shape, strict=True))
        if at_most < 240 and index == np.s_[...]:
            at_most = 240
        for around in (box, wider):
            found = np.full([count for _, count, _ in part.extents], -1)
            row = math.prod(end - first for first, end in around[1:]) * 4
            if around[0][1] - around[0][0] > 1 and row > at_most:
                with pytest.raises(ValueError, match="belong together"):
                    list(blocks_of(around, 4, at_most))
                continue
            for block in blocks_of(around, 4, at_most):
                data = whole[tuple(slice(*each) for each in block)]
                assert data.size * 4 <= at_most
                if piece := piece_of(part, block):
                    assert (found[piece[1]] == -1).all()
                    found[piece[1]] = data[piece[0]]
            assert np.array_equal(found.reshape(part.shape), whole[index])
