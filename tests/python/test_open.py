# SPDX-License-Identifier: Apache-2.0
"""safe_open: what the safetensors package reads of a file on disk, of a file on a server and of one on disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from capsules import Taken
from conftest import once_waiting, soon
from cuda import Driver
from ranges import Server, running
from test_weights import DTYPES
from tls import make_identity
from tls import serving as serving_tls

import gpurx
import gpurx.numpy
from gpurx._native import bytes_of
from gpurx._locations import is_beside
from gpurx._slices import part_of

RANDOM = np.random.default_rng(15)
SHAPES: list[tuple[int, ...]] = [(), (1,), (8,), (0,), (3, 8), (0, 8), (8, 0, 2), (2, 1, 8), (2, 3, 4, 8), (1, 1, 1, 1, 2, 16)]


def bits_of(name: str) -> int:
    return int(name.split("_")[0].lstrip("BUIFCOL") or 8)


def zoo() -> bytes:
    """Every element type in every shape that has whole bytes of it."""
    header: dict[str, Any] = {"__metadata__": {"made": "for a test"}}
    data = b""
    for dtype in DTYPES:
        for shape in SHAPES:
            if (bits := bits_of(dtype) * math.prod(shape)) % 8 == 0:
                more = RANDOM.bytes(bits // 8)
                more = bytes(one & 1 for one in more) if dtype == "BOOL" else more
                header[f"{dtype} {shape}"] = {
                    "dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(more)]
                }  # fmt: skip
                data += more
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.fixture(scope="module")
def serving() -> Iterator[Server]:
    one = Server()
    with running(one):
        yield one


@pytest.fixture
def server(serving: Server) -> Server:
    serving.files.clear()
    serving.ranges.clear()
    serving.requests, serving.stalls, serving.refuses = 0, False, None
    return serving


@pytest.fixture(scope="module")
def session() -> Iterator[gpurx.Session]:
    with gpurx.Session(transport="copy", size=8 << 20) as one:
        yield one


class Model:
    """The same file on disk and on a server."""

    def __init__(self, data: bytes, server: Server, session: gpurx.Session, directory: Path, name: str = "m.safetensors") -> None:
        self.path = directory / name
        self.path.write_bytes(data)
        server.files[name] = data
        self.url = server.url(name)
        self.session = session

    def open(self, where: str, framework: str = "np", **options: Any) -> gpurx.safe_open:
        return gpurx.safe_open(self.path if where == "path" else self.url, framework, session=self.session, **options)


BOTH = pytest.mark.parametrize("where", ["path", "url"])


@BOTH
def test_the_zoo_as_safetensors_reads_it(where: str, server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    model = Model(zoo(), server, session, tmp_path)
    expected = dict(safetensors.deserialize(model.path.read_bytes()))
    with model.open(where, "gpurx") as ours, safetensors.safe_open(model.path, "np") as theirs:
        assert ours.keys() == theirs.keys()
        # Those without bytes lie where the next one does, and it has them in any order.
        in_order = [[name for name in file.offset_keys() if expected[name]["data"]] for file in (ours, theirs)]
        assert in_order[0] == in_order[1]
        assert ours.metadata() == theirs.metadata() == {"made": "for a test"}
        assert len(ours) == len(expected) > 150 and "F32 ()" in ours and "absent" not in ours
        for name, tensor in ours:
            dtype, wanted = name.split()[0], expected[name]
            assert (tensor.dtype, list(tensor.shape)) == (DTYPES[dtype], wanted["shape"]), name
            assert bytes_of(tensor).numpy().tobytes() == bytes(wanted["data"]), name
            part = ours.get_slice(name)
            assert part.get_dtype() == dtype and part.get_shape() == wanted["shape"]
        for name in ours.keys():
            assert ours.get_tensor(name).nbytes == len(expected[name]["data"])


def file_of(header: str | bytes | dict[str, Any], data: int = 0, size: int | None = None) -> bytes:
    """With so many bytes of tensors; `size` is what it says of its header's."""
    text = json.dumps(header) if isinstance(header, dict) else header
    text = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(text) if size is None else size) + text + bytes(range(data))


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def header_of(*entries: dict[str, Any]) -> dict[str, Any]:
    return {f"t{number}": one for number, one in enumerate(entries)}


PAIR = entry("F32", [2], 0, 8)
MALFORMED = {
    "a byte": bytes(1),
    "less than a size": bytes(7),
    "a header of no bytes": file_of(""),
    "a header longer than the file": file_of(header_of(PAIR), 0, 1000),
    "a header longer than any": file_of(header_of(PAIR), 8, 100_000_001),
    "a size that overflows": file_of(header_of(PAIR), 8, 2**64 - 1),
    "a header that is cut": file_of('{"t0": {"dtype"'),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "no JSON": file_of("{t0: 1}"),
    "JSON behind JSON": file_of("{} {}"),
    "JSON of depth": file_of('{"a":' + "[" * 200 + "]" * 200 + "}"),
    "no object": file_of("[]"),
    "a tensor that is none": file_of('{"t0": []}'),
    "metadata that are no text": file_of('{"__metadata__": {"a": 1}}'),
    "a type that is not known": file_of(header_of(entry("F33", [2], 0, 8)), 8),
    "no type": file_of('{"t0": {"shape": [2], "data_offsets": [0, 8]}}', 8),
    "no shape": file_of('{"t0": {"dtype": "F32", "data_offsets": [0, 8]}}', 8),
    "no place": file_of('{"t0": {"dtype": "F32", "shape": [2]}}', 8),
    "a place of one number": file_of('{"t0": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}', 8),
    "a negative extent": file_of(header_of(entry("F32", [-2], 0, 8)), 8),
    "a fraction": file_of(header_of(entry("F32", [2.5], 0, 10)), 10),
    "an extent that overflows": file_of(header_of(entry("F32", [2**64], 0, 8)), 8),
    "a shape that overflows": file_of(header_of(entry("U8", [2**32, 2**32], 0, 0))),
    "bytes that overflow": file_of(header_of(entry("F64", [2**61], 0, 0))),
    "fewer bytes than the shape": file_of(header_of(entry("F32", [3], 0, 8)), 8),
    "more bytes than the shape": file_of(header_of(entry("F32", [1], 0, 8)), 8),
    "a place backwards": file_of(header_of(entry("F32", [2], 8, 0)), 8),
    "half a byte": file_of(header_of(entry("F4", [3], 0, 1)), 1),
    "a gap in front": file_of(header_of(entry("F32", [2], 4, 12)), 12),
    "a gap between": file_of(header_of(PAIR, entry("F32", [2], 12, 20)), 20),
    "a gap at the end": file_of(header_of(PAIR), 9),
    "an end beyond the file": file_of(header_of(PAIR), 7),
    "two that overlap": file_of(header_of(PAIR, entry("F32", [2], 4, 12)), 12),
    "two in one place": file_of(header_of(PAIR, PAIR), 8),
}


def by_safetensors(data: bytes) -> dict[str, Any] | None:
    """None: it refuses it."""
    try:
        found = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {name: (one["dtype"], one["shape"], bytes(one["data"])) for name, one in found}


def by_gpurx(model: Model, where: str) -> dict[str, Any] | None:
    try:
        with model.open(where, "gpurx") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}
            return {name: (parts[name].get_dtype(), parts[name].get_shape(), bytes_of(one).numpy().tobytes()) for name, one in file}
    except gpurx.Error as error:
        assert error.code is gpurx.IngestErrorCode.BAD_SAFETENSORS, error
        return None


@BOTH
@pytest.mark.parametrize("what", MALFORMED)
def test_what_safetensors_refuses_is_refused(
    where: str, what: str, server: Server, session: gpurx.Session, tmp_path: Path
) -> None:
    assert by_safetensors(MALFORMED[what]) is None
    assert by_gpurx(Model(MALFORMED[what], server, session, tmp_path), where) is None


@BOTH
@pytest.mark.parametrize("shape", [[2**64 - 1, 0], [2**63, 0], [0, 2**32, 2**32]])
def test_a_shape_that_no_signed_number_counts_is_refused(
    where: str, shape: list[int], server: Server, session: gpurx.Session, tmp_path: Path
) -> None:
    model = Model(file_of(header_of(entry("U8", shape, 0, 0))), server, session, tmp_path)
    with pytest.raises(gpurx.Error, match="tensor \"t0\".*" + re.escape(str(shape)) + ".*64-bit") as refused:
        model.open(where, "gpurx")
    assert refused.value.code is gpurx.IngestErrorCode.BAD_SAFETENSORS


@BOTH
@pytest.mark.parametrize("header", [{}, "{}   ", '{"__metadata__": {}}', '{"__metadata__": null}', {"__metadata__": {"ä": "\0"}}])
def test_a_file_without_tensors_is_one(
    where: str, header: str | dict[str, Any], server: Server, session: gpurx.Session, tmp_path: Path
) -> None:
    assert by_safetensors(file_of(header)) == {}
    assert by_gpurx(Model(file_of(header), server, session, tmp_path), where) == {}


@pytest.mark.parametrize("header", [' {"t0": %s}', '{"t0": %s, "t0": %s}'])
def test_what_safetensors_takes_and_the_format_forbids(
    header: str, server: Server, session: gpurx.Session, tmp_path: Path
) -> None:
    """A header begins with {, and no name comes twice: a reader that takes the last shows what another does not."""
    data = file_of(header.replace("%s", json.dumps(PAIR)), 8)
    assert by_safetensors(data)
    assert by_gpurx(Model(data, server, session, tmp_path), "path") is None


def changed(data: bytes, header_end: int, random: Random) -> bytes:
    """A byte of it is another, is gone, or is one more; or it ends there. Its header's size is right, mostly."""
    at = random.randrange(header_end)
    size = int.from_bytes(data[:8], "little")
    one = bytes([random.choice(b'{}[]":,0123456789 \\u\n\0\xff-.eE+truenlFBOUI')])
    match random.choice(("another", "gone", "more", "cut") if at >= 8 else ("another", "cut")):
        case "another":
            return data[:at] + one + data[at + 1 :]
        case "gone":
            return struct.pack("<Q", size - 1) + data[8:at] + data[at + 1 :]
        case "more":
            return struct.pack("<Q", size + 1) + data[8:at] + one + data[at:]
    return data[:at]


def test_whatever_is_changed_safetensors_says_the_same(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    good = file_of({"__metadata__": {"a": "b"}} | header_of(PAIR, entry("I16", [0, 5], 8, 8), entry("U8", [5], 8, 13)), 13)
    random, taken = Random(15), 0
    for _ in range(1000):
        data = changed(good, len(good) - 13, random)
        expected = by_safetensors(data)
        assert by_gpurx(Model(data, server, session, tmp_path), "path") == expected, data
        taken += expected is not None
    assert 40 < taken < 500  # names, numbers in texts, blanks: some changes leave a file one


def test_arrays_are_those_of_safetensors(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {
        f"{dtype} {shape}": RANDOM.integers(0, 2, shape).astype(dtype)
        for dtype in "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64".split()
        for shape in SHAPES
    }
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    for loaded in (gpurx.numpy.load_file(model.path), gpurx.numpy.load_file(model.url, session=session)):
        theirs = safetensors.numpy.load_file(model.path)
        assert loaded.keys() == theirs.keys()
        for name, one in loaded.items():
            assert one.dtype == theirs[name].dtype and np.array_equal(one, theirs[name]) and one.shape == theirs[name].shape
    with model.open("path") as file:
        assert file.metadata() is None


def random_index(shape: tuple[int, ...]) -> Any:
    def of(size: int) -> Any:
        kind = RANDOM.integers(0, 8)
        if kind == 0 and size:
            return int(RANDOM.integers(-size, size))
        if kind == 1:
            return slice(None)
        ends = [None if RANDOM.integers(0, 4) == 0 else int(RANDOM.integers(-size - 2, size + 3)) for _ in range(2)]
        return slice(*ends, None if RANDOM.integers(0, 2) else int(RANDOM.integers(1, 4)))

    given = [of(size) for size in shape[: RANDOM.integers(0, len(shape) + 1)]]
    if RANDOM.integers(0, 3) == 0:
        at = int(RANDOM.integers(0, len(given) + 1))
        last = [of(size) for size in shape[len(shape) - len(given) + at :]] if at < len(given) else []
        given = [*given[:at], Ellipsis, *last]
    return given[0] if len(given) == 1 and RANDOM.integers(0, 2) else tuple(given)


@BOTH
def test_slices_are_those_of_numpy(where: str, server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    shapes = [(), (7,), (40, 30), (5, 6, 7), (3, 1, 4, 5), (0, 3), (2, 0, 3), (300, 1, 3)]
    kinds = ["int8", "float32", "complex64"] if where == "path" else ["int16", "float64"]
    tensors = {f"{dtype} {shape}": RANDOM.integers(0, 100, shape).astype(dtype) for dtype in kinds for shape in shapes}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open(where) as file:
        for name, whole in tensors.items():
            part = file.get_slice(name)
            for _ in range(200 if where == "path" else 20):
                index = random_index(whole.shape)
                got, wanted = part[index], whole[index]
                assert got.shape == wanted.shape and got.dtype == wanted.dtype and np.array_equal(got, wanted), (name, index)


def test_slices_that_are_none() -> None:
    for index, kind, words in [
        (np.s_[::-1], ValueError, "positive step"), (np.s_[::0], ValueError, "zero"), (5, IndexError, "out of bounds"),
        (np.s_[0, 0, 0], IndexError, "2 dimensions, and 3"), (np.s_[..., ...], IndexError, "one ellipsis"),
        (None, TypeError, "NoneType"), (True, TypeError, "bool"), ([0, 1], TypeError, "list"), (1.0, TypeError, "float"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=words):
            part_of((2, 3), index)


def test_slices_of_elements_that_are_no_bytes(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F4", "shape": [4, 6], "data_offsets": [0, 12]}}).encode()
    data = RANDOM.bytes(12)
    model = Model(struct.pack("<Q", len(header)) + header + data, server, session, tmp_path)
    with model.open("path", "gpurx") as file:
        part = file.get_slice("x")
        assert part[1:3].view("uint8").numpy().tobytes() == data[3:9]
        assert part[:, 2:4].view("uint8").numpy().tobytes() == data[1::3]
        for index in (np.s_[:, 1:3], np.s_[:, ::2], np.s_[0, 0]):
            with pytest.raises(ValueError, match="at whole bytes"):
                part[index]


def asked_of(server: Server) -> int:
    return sum(last + 1 - first for first, last in server.ranges)


def test_rows_and_columns_are_byte_ranges(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {"front": np.zeros(1 << 20, np.int8), "wide": RANDOM.integers(0, 9, (16, 1 << 18)), "tall": RANDOM.integers(0, 9, (1 << 15, 64))}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open("url", chunk_size=4096) as file:
        assert np.array_equal(file.get_slice("wide")[5, 100:200], tensors["wide"][5, 100:200])
        assert asked_of(server) < 32 << 10  # one chunk to open with, and 800 bytes
        before, requests = asked_of(server), server.requests
        assert np.array_equal(file.get_slice("wide")[:, 7:9], tensors["wide"][:, 7:9])
        assert server.requests - requests == 16 and asked_of(server) - before == 16 * 16
    with model.open("url") as file:
        file.get_tensor("front")
        server.requests = 0
        assert np.array_equal(file.get_slice("tall")[:, 3], tensors["tall"][:, 3])
        assert server.requests <= 4  # not one for each of 32,768 rows


@BOTH
def test_tensors_arrive_one_after_the_other(where: str, server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {f"{i:02}": RANDOM.integers(0, 100, 1 << 17) for i in range(48)}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    done: list[int] = []
    with model.open(where, memory_limit=8 << 20, chunk_size=1 << 20, progress=lambda so_far, _: done.append(so_far)) as file:
        names = []
        for name, one in file:
            if not names:
                assert done[-1] <= 16 << 20 and asked_of(server) <= 24 << 20  # of 48 MiB
            assert np.array_equal(one, tensors[name])
            names.append(name)
        assert names == file.offset_keys() == sorted(tensors)
        assert done == sorted(done) and done[-1] == file.nbytes == 48 << 20


LIMITED = """
import resource, sys
import numpy as np
import gpurx
with gpurx.Session(transport="copy", size=1 << 20) as session, \
        gpurx.safe_open(sys.argv[1], "np", session=session, memory_limit=12 << 20, chunk_size=1 << 20) as file:
    assert file.nbytes == 240 << 20
    file.get_slice("0")[:1]  # all threads have started
    data = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + (24 << 20),) * 2)
    for name, one in file:
        assert one.shape == (2 << 20,) and one[0] == one[-1] == int(name), name
        del one
    try:
        file.get_tensors()
    except gpurx.Error as error:
        assert f"{240 << 20} bytes" in str(error) and "memory_limit" in str(error)
    else:
        raise AssertionError
with gpurx.safe_open(sys.argv[1], "np", transport="copy", size=1 << 20) as file:
    try:
        file.get_tensors()
    except (gpurx.Error, MemoryError) as error:
        print("limited", type(error).__name__)
"""


@BOTH
def test_under_a_tenth_of_the_models_size(where: str, server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {str(i): np.full(2 << 20, i, np.int32) for i in range(30)}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(model.path) if where == "path" else model.url],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "limited" in done.stdout


def test_what_does_not_fit_is_refused_before_it_is_fetched(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    model = Model(safetensors.numpy.save({"a": np.zeros(1000), "b": np.zeros(10)}), server, session, tmp_path)
    with model.open("url", memory_limit=4000) as file:
        requests = server.requests
        for ask in (lambda: file.get_tensor("a"), lambda: file.prefetch(["b", "a"]), lambda: file.get_slice("a")[:501]):
            with pytest.raises(gpurx.Error, match="8000|8080|4008.*memory_limit is 4000") as met:
                ask()
            assert met.value.object == model.url
        assert server.requests == requests
        assert file.get_slice("a")[:500].shape == (500,) and file.get_tensor("b").shape == (10,)
        with pytest.raises(gpurx.Error, match="tensor 'a' has 8000 bytes"):
            list(file)
    with pytest.raises(ValueError, match="memory_limit"):
        model.open("url", memory_limit=0)


def test_all_that_is_held_counts(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    """Several plans, and iterations beside them: the limit is one of all."""
    tensors = {name: np.full(250, number) for number, name in enumerate("abcdef")}  # of 2000 bytes
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open("url", memory_limit=6000) as file:
        file.prefetch(["a", "b"])
        file.prefetch(["a"])  # nothing more
        file.prefetch([("c", np.s_[:125])])
        requests = server.requests
        with pytest.raises(gpurx.Error, match="the plan has 2000 bytes, and of memory_limit, 6000, .* have 5000") as met:
            file.prefetch(["d"])
        assert met.value.object == model.url and server.requests == requests
        with pytest.raises(gpurx.Error, match="tensor 'a' has 2000 bytes, and of memory_limit"):
            list(file)
        assert np.array_equal(file.get_tensor("a"), tensors["a"])
        file.prefetch([("d", np.s_[:])])
        for name in "bd":
            assert np.array_equal(file.get_slice(name)[:] if name == "d" else file.get_tensor(name), tensors[name])
        # Beside 1000 bytes two of them have room.
        for number, (name, one) in enumerate(file):
            assert np.array_equal(one, tensors[name])
            if number == 1:
                with pytest.raises(gpurx.Error, match="the plan has 2000 bytes, and of"):
                    file.prefetch(["f"])
        iteration = iter(file)
        next(iteration)
        iteration.close()  # type: ignore[attr-defined]
        assert np.array_equal(file.get_slice("c")[:125], tensors["c"][:125])
        file.prefetch(["a", "b", "c"])
    assert [len(one) for one in (file._fetched_before, file._results)] == [0, 0]


def test_one_that_was_fetched_before_goes_to_one_thread(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    model = Model(safetensors.numpy.save({"a": np.arange(5000), "b": np.arange(3)}), server, session, tmp_path)
    with model.open("url") as file:

        class Twice(dict[Any, Any]):
            """The other thread is quicker, always."""

            def __contains__(self, key: object) -> bool:
                found = super().__contains__(key)
                if found and threading.current_thread() is threading.main_thread():
                    other = threading.Thread(target=file.get_tensor, args=(key,))
                    other.start()
                    other.join()
                return found

        file._fetched_before = Twice()
        for name in "ab":
            file.prefetch([name])
            assert np.array_equal(file.get_tensor(name), np.arange(5000 if name == "a" else 3))
            got: list[Any] = []
            file.prefetch([name])
            threads = [threading.Thread(target=lambda: got.append(file.get_tensor(name))) for _ in range(8)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
            assert len(got) == 8


def test_a_closed_file_keeps_no_connection(session: gpurx.Session) -> None:
    one = Server()
    one.files["m"] = safetensors.numpy.save({"a": np.arange(5000)}, {"made": "x"})
    with running(one):
        file = gpurx.safe_open(one.url("m"), "np", session=session, keep_connections=True, flows=1)
        file.get_tensor("a")
        assert one.open == 1
        file.close()
        assert soon(lambda: one.open == 0)
    assert file.keys() == ["a"] and file.metadata() == {"made": "x"} and file.nbytes == 40_000
    for ask in (lambda: file.get_tensor("a"), lambda: list(file), lambda: file.prefetch(["a"])):
        with pytest.raises(ValueError, match="closed"):
            ask()


def test_a_deadline_is_one_of_all_files(tmp_path: Path, server: Server, session: gpurx.Session) -> None:
    for number in range(4):
        server.files[f"{number}"] = safetensors.numpy.save({f"{number}": np.arange(10)})
    server.files["m.json"] = json.dumps({"weight_map": {f"{number}": f"{number}" for number in range(4)}}).encode()
    with gpurx.safe_open(server.url("m.json"), "np", session=session, deadline=120) as file:
        assert file.get_tensor("3")[-1] == 9
    for deadline in (1.0, 5.0, 50.0):  # more for a machine that does not open it in time
        with contextlib.suppress(gpurx.Error):
            file = gpurx.safe_open(server.url("m.json"), "np", session=session, deadline=deadline)
            break
    with file:
        time.sleep(deadline)
        with pytest.raises(gpurx.Error) as met:
            file.get_tensor("0")
    assert met.value.code is gpurx.IngestErrorCode.GAVE_UP
    server.stalls = True
    with pytest.raises(gpurx.Error) as met:
        gpurx.numpy.load_file(server.url("m.json"), session=session, deadline=0.5)
    assert met.value.code is gpurx.IngestErrorCode.GAVE_UP and server.stalls


def test_what_lies_beside_an_index() -> None:
    for name in ("a", "a/b.distcp", "..a", "a..b", "__0_0.distcp"):
        assert is_beside(name), name
    for other in ("", "/a", "../a", "a/../../b", "a/..", "http://h/a", "a\\b", "a\0", 5, None):
        assert not is_beside(other), other


def test_what_was_fetched_before_is_not_fetched_again(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {name: RANDOM.standard_normal((100, 100)) for name in "abcd"}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open("url", chunk_size=4096) as file:
        file.prefetch(["d", "a", ("b", np.s_[:, 3]), ("b", np.s_[5])])
        file.prefetch(["a"])
        assert np.array_equal(file.get_tensor("a"), tensors["a"])
        assert np.array_equal(file.get_slice("b")[:, 3], tensors["b"][:, 3])
        assert np.array_equal(file.get_slice("b")[5], tensors["b"][5])
        requests = server.requests
        assert np.array_equal(file.get_tensor("d"), tensors["d"])
        assert server.requests == requests
        assert np.array_equal(file.get_tensor("d"), tensors["d"])  # once is once
        assert server.requests > requests
        file.prefetch(["c"])
    with pytest.raises(ValueError, match="is closed"):
        file.get_tensor("c")


def test_a_slice_of_a_whole_tensor_is_the_tensor(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {name: RANDOM.standard_normal((100, 100)) for name in "ab"}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open("url", chunk_size=4096) as file:
        for plan, take in (
            (["a", "b"], lambda name: file.get_slice(name)[...]),
            ([("a", ...), ("b", np.s_[:, 0:])], file.get_tensor),
        ):
            file.prefetch(plan)
            assert np.array_equal(take("a"), tensors["a"])  # both arrive together
            requests = server.requests
            assert np.array_equal(take("b"), tensors["b"])
            assert server.requests == requests


@pytest.mark.parametrize("tensors", [{}, {"a": np.arange(8)}], ids=["empty", "not empty"])
def test_a_closed_file_gives_nothing(
    tensors: dict[str, Any], server: Server, session: gpurx.Session, tmp_path: Path
) -> None:
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open("path") as file:
        parts = [file.get_slice(name) for name in tensors]
    for use in (lambda: list(file), file.get_tensors, lambda: file.prefetch([]), *(lambda one=one: one[:] for one in parts)):
        with pytest.raises(ValueError, match="is closed"):
            use()
    assert file.keys() == list(tensors)


@BOTH
def test_what_it_gives_is_the_programs_own(where: str, server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {"a": np.arange(1 << 20), "b": np.arange(10)}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    with model.open(where) as file:
        one, other = file.get_tensor("a"), file.get_tensor("a")
        one[:] = 0
        part = file.get_slice("a")[5:]
        assert np.array_equal(other, tensors["a"]) and np.array_equal(part, tensors["a"][5:])
        part[:] = 7
        assert not one.any()
    assert np.array_equal(other, tensors["a"])


def test_several_threads(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {str(i): RANDOM.standard_normal((50, 50)) for i in range(20)}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    wrong: list[str] = []
    with model.open("url", chunk_size=4096) as file:

        def look(first: int) -> None:
            for name in [str((first + i) % 20) for i in range(20)]:
                if not np.array_equal(file.get_tensor(name), tensors[name]):
                    wrong.append(name)

        threads = [threading.Thread(target=look, args=(5 * i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_it_goes_on_after_control_c(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    tensors = {"a": RANDOM.standard_normal(1 << 17), "b": np.arange(3)}
    model = Model(safetensors.numpy.save(tensors), server, session, tmp_path)
    main = threading.main_thread().ident
    assert main
    with model.open("url", chunk_size=4096) as file:
        server.stalls = True
        once_waiting(lambda: signal.pthread_kill(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            file.get_tensor("a")
        server.stalls = False
        assert np.array_equal(file.get_tensor("a"), tensors["a"])


def test_progress_may_end_it(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    model = Model(safetensors.numpy.save({"a": np.zeros(1 << 17)}), server, session, tmp_path)

    def enough(done: int, total: int) -> None:
        assert done < 8192 and total == 1 << 20
        raise StopAsyncIteration("enough")

    with model.open("url", chunk_size=4096, progress=enough) as file:
        server.stalls = True
        with pytest.raises(StopAsyncIteration, match="enough"):
            file.get_tensor("a")


def test_another_file_than_the_one_that_was_opened(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    models = [Model(safetensors.numpy.save({x: np.arange(9)}), server, session, tmp_path, f"{x}.safetensors") for x in "ab"]
    with gpurx.safe_open([one.url for one in models], "np", session=session) as file:
        assert np.array_equal(file.get_tensor("a"), np.arange(9))
        server.files["b.safetensors"] += b"more"
        with pytest.raises(gpurx.Error) as met:
            file.get_tensor("b")
        assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED and "b.safetensors" in str(met.value)
    with gpurx.safe_open(models[0].path, "np") as file:
        os.truncate(models[0].path, 100)
        with pytest.raises(gpurx.Error, match="shortened the file") as met:
            file.get_tensor("a")
        assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED and met.value.object == str(models[0].path)


def test_a_header_that_was_read_otherwise(server: Server, session: gpurx.Session, tmp_path: Path) -> None:
    """Of one of several files, which is read again: what the checksum is of."""
    models = [Model(safetensors.numpy.save({x: np.arange(9)}), server, session, tmp_path, f"{x}.safetensors") for x in "ab"]
    places = [one.url for one in models]
    right = server.files["b.safetensors"]
    server.files["b.safetensors"] = right.replace(b'"b"', b'"c"')
    server.checksums["b.safetensors"] = 0  # there is one; nothing comes as far as that
    with gpurx.safe_open(places, "np", session=session) as file:
        server.files["b.safetensors"] = right
        with pytest.raises(gpurx.Error, match="header") as met:
            file.get_tensor("c")
        assert met.value.code is gpurx.IngestErrorCode.OBJECT_CHANGED and met.value.url == places[1]


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "bad").write_bytes(b"x" * 100)
    (tmp_path / "short").write_bytes(b"x")
    for name, words in [("absent", "No such file"), ("fifo", "only regular files"), ("bad", "header"), ("short", "header")]:
        with pytest.raises(gpurx.Error, match=words) as met:
            gpurx.safe_open(tmp_path / name, "np")
        assert str(tmp_path / name) in str(met.value) or name in ("bad", "short")
    with pytest.raises(gpurx.Error, match="no .safetensors file"):
        gpurx.safe_open(tmp_path, "np")
    with pytest.raises(ValueError, match="another machine"):
        gpurx.safe_open("file://elsewhere/model", "np")
    with pytest.raises(ValueError, match="framework='tensorflow' is none that safe_open knows: take 'pt' for torch.*'gpurx'"):
        gpurx.safe_open(tmp_path / "bad", "tensorflow")
    with pytest.raises(ValueError, match="at least one"):
        gpurx.safe_open([], "np")


def test_a_file_url(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.arange(3)}, tmp_path / "a b%.safetensors")
    with gpurx.safe_open((tmp_path / "a b%.safetensors").as_uri(), "np") as file:
        assert np.array_equal(file.get_tensor("a"), np.arange(3))
        with pytest.raises(gpurx.Error, match="tensor 'z'") as met:
            file.get_tensor("z")
        assert met.value.object == "tensor 'z'"


# ---- models in several files ----

INDEX = "model.safetensors.index.json"


class Sharded:
    def __init__(self, server: Server, directory: Path, shards: dict[str, dict[str, Any]]) -> None:
        self.server, self.directory = server, directory
        self.weight_map: dict[str, str] = {}
        for name, tensors in shards.items():
            self.write(name, safetensors.numpy.save(tensors, {"shard": name}))
            self.weight_map.update(dict.fromkeys(tensors, name))
        self.write_index()

    def write(self, name: str, data: bytes) -> None:
        (self.directory / name).write_bytes(data)
        self.server.files["model/" + name] = data

    def write_index(self, text: bytes | None = None) -> None:
        self.write(INDEX, text or json.dumps({"metadata": {"total_size": 1}, "weight_map": self.weight_map}).encode())

    def places(self) -> list[Any]:
        return [self.directory, self.directory / INDEX, self.server.url("model/" + INDEX)]


@pytest.fixture
def shards(server: Server, tmp_path: Path) -> Sharded:
    tensors = [{f"{i}.{j}": RANDOM.standard_normal((20, i + 1)) for j in range(4)} for i in range(6)]
    return Sharded(server, tmp_path, {f"model-{i + 1:05}-of-00006.safetensors": one for i, one in enumerate(tensors)})


def test_a_model_in_several_files(shards: Sharded, session: gpurx.Session) -> None:
    expected = {}
    for name in dict.fromkeys(shards.weight_map.values()):
        expected |= safetensors.numpy.load_file(shards.directory / name)
    lists = [[shards.directory / name for name in dict.fromkeys(shards.weight_map.values())]]
    lists.append([shards.server.url("model/" + one.name) for one in lists[0]])
    for place in [*shards.places(), *lists]:
        with gpurx.safe_open(place, "np", session=session, memory_limit=4096, flows=2) as file:
            assert file.offset_keys() == list(expected) and file.metadata() == {"shard": "model-00001-of-00006.safetensors"}
            got = {name: one for name, one in file}
        assert got.keys() == expected.keys()
        assert all(np.array_equal(one, expected[name]) for name, one in got.items())
        assert gpurx.numpy.load_file(place, session=session).keys() == expected.keys()
    (shards.directory / INDEX).unlink()
    assert gpurx.numpy.load_file(shards.directory).keys() == expected.keys()


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_shards_that_do_not_fit_their_index(kind: int, shards: Sharded, session: gpurx.Session) -> None:
    first, second = list(dict.fromkeys(shards.weight_map.values()))[:2]

    def refused(words: str) -> None:
        with pytest.raises(gpurx.Error, match=words) as met:
            gpurx.safe_open(shards.places()[kind], "np", session=session)
        assert "index" not in words or met.value.code is gpurx.IngestErrorCode.BAD_SAFETENSORS

    shards.weight_map["more"] = first
    shards.write_index()
    refused(f"tensor 'more' is missing: the index has it in .*{first}")
    del shards.weight_map["more"]
    shards.weight_map["0.1"] = second
    shards.write_index()
    refused(f"the index has tensor '0.1' in .*{second}, and it is in .*{first}")
    del shards.weight_map["0.1"]
    shards.write_index()
    with gpurx.safe_open(shards.places()[kind], "np", session=session) as model:
        assert "0.1" in model.keys()
    shards.weight_map["0.1"] = first
    shards.write_index()
    shards.write(second, safetensors.numpy.save({"0.1": np.zeros(3)}))
    refused(f"tensor '0.1' is in two files, .*{first} and .*{second}")
    del shards.server.files["model/" + second]
    (shards.directory / second).unlink()
    refused(second)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "no index"),
        (b"[]", "weight_map"),
        (b'{"weight_map": {"a": 1}}', "weight_map"),
        (b'{"weight_map": {}}', "no tensors"),
        (b'{"weight_map": {"a": "x", "a": "y"}}', "'a' comes twice"),
        (b"[" * 100_000, "no index"),
        (b"\xff\xfe", "no index"),
        *[(json.dumps({"weight_map": {"a": name}}).encode(), "not a name in its directory")
          for name in ("../x", "/etc/passwd", "http://elsewhere/x", "a/../../x", "", "a\\b", "a\0")],
    ],
)  # fmt: skip
def test_an_index_that_is_none(text: bytes, words: str, shards: Sharded, session: gpurx.Session) -> None:
    shards.write_index(text)
    for place in shards.places():
        with pytest.raises(gpurx.Error, match=words) as met:
            gpurx.safe_open(place, "np", session=session)
        assert met.value.code is gpurx.IngestErrorCode.BAD_SAFETENSORS and INDEX in met.value.object


def test_no_message_has_the_secrets_of_a_url(shards: Sharded, session: gpurx.Session) -> None:
    server = shards.server
    shards.weight_map["more"] = next(iter(shards.weight_map.values()))
    shards.write_index()
    one = safetensors.numpy.save({"a": np.zeros(1000)})
    server.files = {f"{name}?sr=c&sig=hush": data for name, data in server.files.items()} | {"one?sig=hush": one}
    with pytest.raises(gpurx.Error, match="tensor 'more'") as met:
        gpurx.safe_open(server.url(f"model/{INDEX}?sr=c&sig=hush"), "np", session=session)
    told = [str(met.value), met.value.object, met.value.url]
    with gpurx.safe_open(server.url("one?sig=hush"), "np", session=session, memory_limit=10, chunk_size=4096) as file:
        told.append(repr(file))
        for ask in (lambda: file.get_tensor("a"), lambda: file.get_tensor("b")):
            with pytest.raises(gpurx.Error) as met:
                ask()
            told += [str(met.value), met.value.object, met.value.url]
    with pytest.raises(ValueError, match="closed") as closed:
        file.get_tensor("a")
    told += [str(closed.value), repr(gpurx.load_safetensors(server.url("one?sig=hush"), session=session))]
    assert not [one for one in told if "hush" in one] and "sig=..." in told[0]


def test_an_index_with_a_query(shards: Sharded, session: gpurx.Session) -> None:
    """A SAS token of Azure for all files goes on to the shards, and no other query."""
    server = shards.server
    for name in list(server.files):
        server.files[name + "?sr=c&sig=x"] = server.files[name + "?sig=x"] = server.files.pop(name)
    assert len(gpurx.numpy.load_file(server.url(f"model/{INDEX}?sr=c&sig=x"), session=session)) == 24
    with pytest.raises(gpurx.NotFound):
        gpurx.numpy.load_file(server.url(f"model/{INDEX}?sig=x"), session=session)


# ---- other libraries ----


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    run = "import sys, gpurx; print(sorted({'torch', 'jax', 'numpy', 'cupy', 'vllm', 'ray'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@BOTH
def test_into_a_gpu(where: str, gpu: Driver, server: Server, tmp_path: Path) -> None:
    tensors = {"a": RANDOM.standard_normal((1 << 10, 600)), "b": np.arange(9, dtype=np.int16)}
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors.numpy.save(tensors))
    server.files["m"] = path.read_bytes()
    stream = gpu.stream()
    with gpurx.safe_open(path if where == "path" else server.url("m"), "gpurx", 0, transport="copy", size=4 << 20) as file:
        part = file.get_slice("a")
        for one, expected in [
            (file.get_tensor("a"), tensors["a"]), (file.get_tensor("b"), tensors["b"]), (part[3:7], tensors["a"][3:7]),
            (part[:, 5:9], tensors["a"][:, 5:9]), (part[::3, ::2], tensors["a"][::3, ::2]),
        ]:  # fmt: skip
            assert one.device == "cuda:0" and one.shape == expected.shape
            taken = Taken(one.__dlpack__(stream=stream, max_version=(1, 0)))
            assert gpu.read(taken.data, one.nbytes, stream) == expected.tobytes()
            taken.let_go()
            del one


def test_over_https(tmp_path: Path, session: gpurx.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = make_identity(tmp_path, "server")
    tensors = {"a": RANDOM.standard_normal((100, 100)), "b": np.arange(9)}
    with serving_tls(identity) as one:
        one.files["m"] = safetensors.numpy.save(tensors)
        with pytest.raises(gpurx.Error, match="certificate"):
            gpurx.safe_open(one.url("m"), "np", session=session)
        monkeypatch.setenv("SSL_CERT_FILE", str(identity[0]))
        with gpurx.safe_open(one.url("m"), "np", session=session) as file:
            assert np.array_equal(file.get_slice("a")[5:9, ::2], tensors["a"][5:9, ::2])
            assert all(np.array_equal(got, tensors[name]) for name, got in file)
