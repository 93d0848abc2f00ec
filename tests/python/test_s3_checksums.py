# SPDX-License-Identifier: Apache-2.0
"""What a server of S3 says of whole objects is compared with what has come of them, whoever reads them."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from cuda import Driver

import gpurx
import gpurx.numpy
from gpurx import _native
from gpurx._options import settings_of
from gpurx._wait import wait

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))
from crc import crc32c, crc64nvme  # noqa: E402

RANDOM = np.random.default_rng(4)


def tensors_of(shard: int) -> dict[str, Any]:
    return {
        f"{shard}.{name}": RANDOM.standard_normal(shape).astype(np.float32)
        for name, shape in {"big": (300, 200), "norm": (40,), "number": (), "wide": (7, 4000)}.items()
    }


# By the kind of checksum that the server says, right or wrong.
SHARDS = {
    f"{kind}-{number}.safetensors": tensors_of(number)
    for number, kind in enumerate(["crc64", "wrong-crc64", "crc64", "crc32", "wrong-crc32"])
}
RIGHT, WRONG, LAST, RIGHT_32, WRONG_32 = SHARDS
INDEX, WRONG_INDEX = (f"{kind}.safetensors.index.json" for kind in ("crc64", "wrong-crc64"))
FILES = {name: safetensors.numpy.save(tensors) for name, tensors in SHARDS.items()}
FILES |= dict.fromkeys((INDEX, WRONG_INDEX), json.dumps({"weight_map": dict.fromkeys(SHARDS[RIGHT], RIGHT)}).encode())


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its endpoint."""
    directory = tmp_path_factory.mktemp("s3")
    for name, data in FILES.items():
        (directory / name).write_bytes(data)
    program = Path(__file__).parents[1] / "ingest" / "strict_s3.py"
    command = [sys.executable, program, directory / RIGHT, "127.0.0.1", *(directory / name for name in FILES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        endpoint: str = json.loads(process.stdout.readline())[0]
        yield endpoint
        process.communicate()


@pytest.fixture
def options(s3: str) -> Iterator[dict[str, Any]]:
    with gpurx.Session(transport="copy", size=8 << 20) as session:
        yield {"endpoint_url": s3, "anonymous": True, "session": session, "chunk_size": 20_000}


def own_session() -> dict[str, Any]:
    """For what does not take that of the options."""
    return {"session": None, "transport": "copy", "size": 8 << 20}


def url(name: str) -> str:
    return f"s3://public/shards/{name}"


def check(loaded: Mapping[str, Any], *shards: str) -> None:
    expected = {name: one for shard in shards for name, one in SHARDS[shard].items()}
    assert loaded.keys() == expected.keys()
    for name, one in loaded.items():
        # Not every torch knows this numpy.
        assert np.array_equal(one.tolist() if hasattr(one, "tolist") else np.asarray(one), expected[name]), name


def refused(load: Callable[[], object], name: str = WRONG) -> None:
    """The error names the file, what it is and what it should be."""
    with pytest.raises(gpurx.Error) as met:
        load()
    assert (met.value.category, met.value.code) == ("gpurx.ingest", gpurx.IngestErrorCode.WRONG_CHECKSUM)
    assert met.value.url and met.value.url.endswith(f"/public/shards/{name}")
    crc = crc32c(FILES[name]) if "crc32" in name else crc64nvme(FILES[name])
    digits = 8 if "crc32" in name else 16
    assert f"is {crc:0{digits}x}, the server announced {crc ^ 1:0{digits}x}" in str(met.value)


def by_iterating(place: Any, **options: Any) -> dict[str, Any]:
    with gpurx.safe_open(place, "np", **options) as file:
        return dict(iter(file))


def by_name(place: Any, **options: Any) -> dict[str, Any]:
    with gpurx.safe_open(place, "np", **options) as file:
        return {name: file.get_tensor(name) for name in file.keys()}


def by_slices(place: Any, **options: Any) -> dict[str, Any]:
    with gpurx.safe_open(place, "np", **options) as file:
        file.prefetch([(name, ...) for name in file.offset_keys()])
        return {name: file.get_slice(name)[...] for name in file.keys()}


def in_a_loop(place: Any, **options: Any) -> dict[str, Any]:
    async def load() -> dict[str, Any]:
        async with gpurx.async_safe_open(place, "np", **options) as file:
            return {name: one async for name, one in file}

    return asyncio.run(load())


def as_weights(place: Any, **options: Any) -> Mapping[str, Any]:
    return gpurx.load_safetensors(place, **options)


LOADS = [by_iterating, by_name, by_slices, in_a_loop, gpurx.numpy.load_file, as_weights]
EACH = pytest.mark.parametrize("load", LOADS)


@EACH
def test_all_of_a_file(load: Callable[..., Any], options: dict[str, Any]) -> None:
    check(load(url(RIGHT), **options), RIGHT)
    check(load(url(RIGHT_32), **options), RIGHT_32)
    refused(lambda: load(url(WRONG), **options))
    refused(lambda: load(url(WRONG_32), **options), WRONG_32)
    check(load(url(WRONG), checksum="none", **options), WRONG)
    check(load(url(WRONG_32), checksum="none", **options), WRONG_32)
    with pytest.raises(ValueError, match="'none', 'automatic' or 'always'"):
        load(url(RIGHT), checksum="perhaps", **options)


@pytest.mark.parametrize("load", LOADS[:-1])
def test_of_a_model_in_several_files_the_one_is_named(load: Callable[..., Any], options: dict[str, Any]) -> None:
    check(load([url(RIGHT), url(LAST), url(RIGHT_32)], **options), RIGHT, LAST, RIGHT_32)
    refused(lambda: load([url(RIGHT), url(WRONG), url(LAST)], **options))
    refused(lambda: load([url(RIGHT), url(RIGHT_32), url(WRONG_32)], **options), WRONG_32)
    check(load([url(RIGHT), url(WRONG), url(LAST)], checksum="none", **options), RIGHT, WRONG, LAST)


def test_iterating_gives_what_it_has_before_the_end_of_the_file(options: dict[str, Any]) -> None:
    given = []
    with gpurx.safe_open([url(RIGHT), url(WRONG), url(LAST)], "np", memory_limit=600_000, **options) as file:

        def iterate() -> None:
            for name, _ in file:
                given.append(name)

        refused(iterate)
        names = file.offset_keys()
        assert given == names[: len(SHARDS[RIGHT]) + 3] and names[len(given)] == "1.wide"
        # It is opened anew, and compared anew.
        refused(iterate)


def test_each_time_that_a_file_is_read(options: dict[str, Any]) -> None:
    for place in (url(WRONG), [url(WRONG), url(LAST)]):
        with gpurx.safe_open(place, "np", **options) as file:
            # Of these nobody says a checksum.
            assert np.array_equal(file.get_slice("1.big")[5:9, 3], SHARDS[WRONG]["1.big"][5:9, 3])
            assert np.array_equal(file.get_tensor("1.wide"), SHARDS[WRONG]["1.wide"])
            for _ in range(2):
                refused(lambda: list(file))
                refused(file.get_tensors)
    with gpurx.safe_open(url(RIGHT), "np", **options) as file:
        file.get_slice("0.big")[7:9]
        for _ in range(2):
            check(dict(iter(file)), RIGHT)
            check(file.get_tensors(), RIGHT)
            check({name: file.get_tensor(name) for name in file.keys()}, RIGHT)


def test_some_of_a_file_is_compared_with_nothing(options: dict[str, Any]) -> None:
    weights = gpurx.load_safetensors(url(WRONG), names=["1.norm", "1.big"], **options)
    assert weights.keys() == {"1.norm", "1.big"}
    with gpurx.safe_open(url(WRONG), "np", **options) as file:
        for name in ("1.norm", "1.big", "1.number"):
            assert np.array_equal(file.get_tensor(name), SHARDS[WRONG][name])
        assert np.array_equal(file.get_slice("1.wide")[1:], SHARDS[WRONG]["1.wide"][1:])


def test_an_index(options: dict[str, Any]) -> None:
    check(gpurx.numpy.load_file(url(INDEX), **options), RIGHT)
    refused(lambda: gpurx.safe_open(url(WRONG_INDEX), "np", **options), WRONG_INDEX)
    check(gpurx.numpy.load_file(url(WRONG_INDEX), checksum="none", **options), RIGHT)


def test_on_a_gpu(options: dict[str, Any], gpu: Driver) -> None:
    """It sums up CRC32C, and no CRC-64/NVME."""
    options |= own_session()
    with gpurx.safe_open([url(WRONG), url(RIGHT_32)], "gpurx", "cuda:0", **options) as file:
        loaded = {name: one.numpy() for name, one in file}
    check(loaded, WRONG, RIGHT_32)
    with gpurx.safe_open(url(WRONG_32), "gpurx", "cuda:0", **options) as file:
        refused(lambda: dict(iter(file)), WRONG_32)
        refused(file.get_tensors, WRONG_32)
        assert np.array_equal(file.get_tensor("4.wide").numpy(), SHARDS[WRONG_32]["4.wide"])


@pytest.mark.parametrize("device", ["host", "cuda:0"])
def test_ranges_of_an_object(device: str, options: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """What gpurx.dcp reads by."""
    if device != "host":
        request.getfixturevalue("gpu")
    del options["session"]
    wrong = WRONG if device == "host" else WRONG_32
    with gpurx.Session(device, transport="copy", size=8 << 20) as session:
        for name in RIGHT, wrong:
            one = _native.OpenObject(session, url(name), device, settings_of(device, options).http)
            size = len(FILES[name])
            parts = [[(0, 100), (5000, 20_000)], [(100, 4900)], [(30_000, size - 30_000), (25_000, 5_000)]]
            for ranges in parts[:2]:
                assert [part.numpy().tobytes() for part in wait(one.fetch(ranges))] == [
                    FILES[name][offset : offset + count] for offset, count in ranges
                ]
            if name == wrong:
                refused(lambda: wait(one.fetch(parts[2])), wrong)
            else:
                wait(one.fetch(parts[2]))
            del one


# ---- what needs torch ----


def torch() -> Any:
    return pytest.importorskip("torch")


def test_as_torchs(options: dict[str, Any]) -> None:
    torch()
    import gpurx.torch

    check(gpurx.torch.load_file(url(RIGHT), **options), RIGHT)
    refused(lambda: gpurx.torch.load_file([url(RIGHT), url(WRONG)], **options))


def test_by_a_rank_that_reads_all_of_it(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist = torch().distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        import gpurx.distributed

        def load(name: str, **more: Any) -> dict[str, Any]:
            plan = dict.fromkeys(SHARDS[name], ...)
            loaded: dict[str, Any] = gpurx.distributed.load([url(name), url(LAST)], plan, memory_limit=300_000, **options, **more)
            return loaded

        check(load(RIGHT), RIGHT)
        refused(lambda: load(WRONG))
        check(load(WRONG, checksum="none"), WRONG)

        def each(name: str, **more: Any) -> dict[str, Any]:
            return dict(gpurx.distributed.tensors(url(name), **options, **more))

        check(each(RIGHT), RIGHT)
        refused(lambda: each(WRONG))
        check(each(WRONG, checksum="none"), WRONG)
    finally:
        dist.destroy_process_group()


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """gpurx.vllm's, with as much of vLLM as it needs."""
    torch()
    modules = {
        "vllm": {},
        "vllm.config": {"LoadConfig": object, "ModelConfig": object},
        "vllm.distributed": {"parallel_state": types.SimpleNamespace(model_parallel_is_initialized=lambda: False)},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {"BaseModelLoader": type("Base", (), {"__init__": lambda *_: None})},
    }
    for name, has in modules.items():
        made = types.ModuleType(name)
        made.__dict__.update(has)
        monkeypatch.setitem(sys.modules, name, made)
    monkeypatch.delitem(sys.modules, "gpurx.vllm", raising=False)
    yield importlib.import_module("gpurx.vllm").Loader
    sys.modules.pop("gpurx.vllm", None)


def test_by_vllms_loader(loader: Any, options: dict[str, Any]) -> None:
    class Parts(torch().nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = torch().nn.Parameter(torch().zeros(1))

        def load_weights(self, weights: Any) -> None:
            self.loaded = {name: one.clone() for name, one in weights}

    def load(place: Any, **more: Any) -> dict[str, Any]:
        keywords = {name: one for name, one in (options | own_session()).items() if name != "session"}
        config = types.SimpleNamespace(model_loader_extra_config={"url": place, **keywords, **more})
        parts = Parts()
        loader(config).load_weights(parts, types.SimpleNamespace(model="m", model_weights=""))
        return parts.loaded

    check(load(url(RIGHT)), RIGHT)
    refused(lambda: load(url(WRONG)))
    check(load(url(WRONG), checksum="none"), WRONG)
