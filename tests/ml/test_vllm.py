# SPDX-License-Identifier: Apache-2.0
"""gpurx.vllm: vLLM's own engine goes on with the same tokens, and the same probabilities, whoever loads the weights."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import Serve
from tls import make_identity

import gpurx

Identity = tuple[Path, Path]


def save_model(directory: Path, shard: str, size: int = 128, spread: float = 0.4) -> Path:
    """A language model of two layers, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=4 * size, hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=spread,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size=shard)
    return directory


def without_weights(model: Path, directory: Path) -> str:
    """Its configuration alone."""
    directory.mkdir()
    shutil.copy(model / "config.json", directory)
    return str(directory)


def engine(model: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as engines leave much behind."""
    cores = itertools.cycle(sorted(os.sched_getaffinity(0)))
    threads = "|".join(str(next(cores)) for _ in range(options.get("tensor_parallel_size", 1)))
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": threads, "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("generate.py")), json.dumps({"model": model} | options)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)


def generate(model: str, **options: Any) -> list[dict[str, Any]]:
    """What the engine says."""
    done = engine(model, **options)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    found = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    answers: list[dict[str, Any]] = json.loads(found.removeprefix("found "))
    return answers


def load(name: str, **extra: Any) -> dict[str, Any]:
    """What the loader itself, without an engine, gives to a model that is there."""
    import torch
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Parameter(torch.zeros(1))
            self.loaded: dict[str, torch.Tensor] = {}

        def load_weights(self, weights: Any) -> None:
            self.loaded = {name: one.clone() for name, one in weights}

    class Named:
        def __init__(self, model: str) -> None:
            self.model, self.model_weights, self.revision = model, "", None

    load_general_plugins()
    loader = get_model_loader(LoadConfig(load_format="gpurx", model_loader_extra_config={"transport": "copy"} | extra))
    loader.download_model(Named(name))
    into = Parts()
    loader.load_weights(into, Named(name))
    return into.loaded


def check(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    import torch

    assert sorted(loaded) == sorted(expected)
    assert all(torch.equal(loaded[name], one) for name, one in expected.items())


@pytest.fixture(scope="module")
def identities(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    """Certificates that vouch for themselves, and their keys."""
    directory = tmp_path_factory.mktemp("tls")
    return {name: make_identity(directory, name) for name in ("server", "stranger")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "200KB")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[dict[str, Any]]:
    """By vLLM's own loader, from the directory."""
    answers = generate(str(model))
    assert len({token for one in answers for token in one["tokens"]}) > 8  # a model that can be told from another
    return answers


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_same_as_by_the_default_loader(
    scheme: str, serve: Serve, identities: dict[str, Identity], model: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    server = serve(model, identities["server"] if scheme == "https" else None)
    assert server.url("").startswith(f"{scheme}://")
    assert len([name for name in server.files if name.endswith(".safetensors")]) > 3
    where = {"url": server.url(""), "transport": "copy", "flows": 2}
    if scheme == "https":
        where["ca"] = str(identities["server"][0])
    answers = generate(without_weights(model, tmp_path / "c"), load_format="gpurx", model_loader_extra_config=where)
    assert answers == expected
    assert sum(last + 1 - first for first, last in server.ranges) >= sum(
        len(data) for name, data in server.files.items() if name.endswith(".safetensors")
    )


def test_a_server_that_nobody_trusts_gives_no_weights(
    serve: Serve, identities: dict[str, Identity], model: Path, tmp_path: Path
) -> None:
    server = serve(model, identities["server"])
    index = server.url("model.safetensors.index.json")
    stranger = {"url": server.url(""), "transport": "copy", "ca": str(identities["stranger"][0])}
    for trusted in (stranger, {"url": server.url("")}):
        with pytest.raises(gpurx.Error, match="certificate") as met:
            load("a-name", **trusted)
        assert (met.value.code, met.value.url) == (gpurx.IngestErrorCode.TLS_FAILURE, index)
    # What a user of the engine sees.
    done = engine(without_weights(model, tmp_path / "c"), load_format="gpurx", model_loader_extra_config=stranger)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said[-6000:]
    assert any("gpurx" in line and "certificate" in line and index in line for line in said.splitlines()), said[-6000:]
    assert server.requests == 0


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A model beside which the beginnings of its three files are small, and its answers by vLLM's own loader."""
    model = save_model(tmp_path_factory.mktemp("large"), "30MB", size=768, spread=0.15)
    assert len([*model.glob("*.safetensors")]) == 3
    return model, generate(str(model))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_read_the_model_once_and_answer_the_same(
    ranks: int, serve: Serve, large: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    model, expected = large
    server = serve(model)
    where = {"url": server.url(""), "transport": "copy"}
    answers = generate(
        without_weights(model, tmp_path / "c"), load_format="gpurx", model_loader_extra_config=where, tensor_parallel_size=ranks
    )
    # Ranks add in another order than one.
    for one, other in zip(answers, expected, strict=True):
        assert one["tokens"] == other["tokens"]
        for step, by_one in zip(one["logprobs"], other["logprobs"], strict=True):
            assert step == pytest.approx(by_one, abs=1e-3)
    read = sum(last + 1 - first for first, last in server.ranges)
    size = sum(path.stat().st_size for path in model.glob("*.safetensors*"))
    assert size <= read <= 1.02 * size


@pytest.fixture(params=["s3", "hf"])
def whole(
    request: pytest.FixtureRequest, serve: Serve, bucket: Callable[[Path], str], model: Path, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Path:  # fmt: skip
    """The directory of fetch_model(), of a model in a bucket or on a hub."""
    if request.param == "s3":
        place = bucket(model)
    else:
        server, commit = serve(model), "0123456789" * 4
        about = {"sha": commit, "siblings": [{"rfilename": name} for name in server.files]}
        server.files = {f"org/model/resolve/{commit}/{name}": data for name, data in server.files.items()}
        for revision in ("main", commit):
            server.files[f"api/models/org/model/revision/{revision}"] = json.dumps(about).encode()
        monkeypatch.setenv("HF_ENDPOINT", server.url("").rstrip("/"))
        place = "hf://org/model"
    directory = Path(gpurx.fetch_model(place, tmp_path / "whole", transport="copy"))
    assert {path.name for path in directory.iterdir()} == {"config.json", "generation_config.json", "gpurx.json"}
    return directory


def test_vllm_starts_from_the_url_alone(whole: Path, expected: list[dict[str, Any]]) -> None:
    answers = generate(str(whole), load_format="gpurx", model_loader_extra_config={"transport": "copy"})
    assert answers == expected


def test_transformers_starts_from_the_url_alone(whole: Path, model: Path) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(whole)
    with gpurx.safe_open(whole, "pt", transport="copy") as file:
        file.prefetch(file.keys())
        weights = {name: file.get_slice(name) for name in file.keys()}
        made = getattr(transformers, config.architectures[0]).from_pretrained(None, config=config, state_dict=weights)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    with torch.no_grad():
        expected = transformers.AutoModelForCausalLM.from_pretrained(model)(tokens).logits
        assert torch.equal(made(tokens).logits, expected)


def test_one_file_into_a_model_that_is_there(
    serve: Serve, bucket: Callable[[Path], str], identities: dict[str, Identity], tmp_path: Path
) -> None:
    """The loader itself: files without an index, and what it refuses."""
    from safetensors.torch import load_file

    model = save_model(tmp_path / "model", "10MB")
    assert [path.name for path in model.glob("*.safetensors")] == ["model.safetensors"]
    server, secure = serve(model), serve(model, identities["server"])
    expected = load_file(model / "model.safetensors")
    for where in (server.url("model.safetensors"), server.url(""), bucket(model)):
        check(load("a-name", url=where), expected)
        check(load(where), expected)
    for where in (secure.url("model.safetensors"), secure.url("")):
        check(load(where, ca=identities["server"][0]), expected)
    check(load(str(model)), expected)
    with pytest.raises(ValueError, match="set the location of the weights with model_loader_extra_config"):
        load("a-name")
    with pytest.raises(ValueError, match=r"has \['concurrency'\]; it may have url, memory_limit"):
        load("a-name", url=server.url(""), concurrency=2)
