# SPDX-License-Identifier: Apache-2.0
"""gpurx.vllm: vLLM's own engine goes on with the same tokens, and the same probabilities, whoever loads the weights."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranges import Server

Serve = Callable[[Path], Server]


def save_model(directory: Path, shard: str) -> Path:
    """A language model of two layers, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.4,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory, max_shard_size=shard)
    return directory


def without_weights(model: Path, directory: Path) -> str:
    """Its configuration alone."""
    directory.mkdir()
    shutil.copy(model / "config.json", directory)
    return str(directory)


def generate(model: str, **options: Any) -> list[dict[str, Any]]:
    """What the engine says, in a process of its own, as engines leave much behind."""
    threads = "|".join(str(one) for one in sorted(os.sched_getaffinity(0))[: options.get("tensor_parallel_size", 1)])
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": threads, "VLLM_NO_USAGE_STATS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("generate.py")), json.dumps({"model": model} | options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    found = next(line for line in done.stdout.splitlines() if line.startswith("found "))
    answers: list[dict[str, Any]] = json.loads(found.removeprefix("found "))
    return answers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), "200KB")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[dict[str, Any]]:
    """By vLLM's own loader, from the directory."""
    answers = generate(str(model))
    assert len({token for one in answers for token in one["tokens"]}) > 8  # a model that can be told from another
    return answers


def test_the_same_as_by_the_default_loader(
    serve: Serve, model: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    server = serve(model)
    assert len([name for name in server.files if name.endswith(".safetensors")]) > 3
    where = {"url": server.url(""), "transport": "copy", "flows": 2}
    answers = generate(without_weights(model, tmp_path / "c"), load_format="gpurx", model_loader_extra_config=where)
    assert answers == expected
    assert sum(last + 1 - first for first, last in server.ranges) >= sum(
        len(data) for name, data in server.files.items() if name.endswith(".safetensors")
    )


def test_each_rank_of_two_has_its_slices(
    serve: Serve, model: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks of vLLM on CPUs want a core each")
    where = {"url": serve(model).url("model.safetensors.index.json"), "transport": "copy"}
    answers = generate(
        without_weights(model, tmp_path / "c"), load_format="gpurx", model_loader_extra_config=where, tensor_parallel_size=2
    )
    # Two ranks add in another order than one.
    for one, other in zip(answers, expected, strict=True):
        assert one["tokens"] == other["tokens"]
        for step, by_one in zip(one["logprobs"], other["logprobs"], strict=True):
            assert step == pytest.approx(by_one, abs=1e-4)


def test_one_file_into_a_model_that_is_there(serve: Serve, bucket: Callable[[Path], str], tmp_path: Path) -> None:
    """The loader itself: files without an index, and what it refuses."""
    import torch
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    model = save_model(tmp_path / "model", "10MB")
    assert [path.name for path in model.glob("*.safetensors")] == ["model.safetensors"]
    server = serve(model)

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

    def load(name: str, **extra: Any) -> dict[str, torch.Tensor]:
        loader = get_model_loader(LoadConfig(load_format="gpurx", model_loader_extra_config={"transport": "copy"} | extra))
        loader.download_model(Named(name))
        into = Parts()
        loader.load_weights(into, Named(name))
        return into.loaded

    from safetensors.torch import load_file

    expected = load_file(model / "model.safetensors")
    for where in (server.url("model.safetensors"), server.url(""), bucket(model)):
        loaded = load("a-name", url=where)
        assert sorted(loaded) == sorted(expected)
        assert all(torch.equal(loaded[name], one) for name, one in expected.items())
        assert sorted(load(where)) == sorted(expected)
    assert sorted(load(str(model))) == sorted(expected)
    with pytest.raises(ValueError, match="say where the weights are with model_loader_extra_config"):
        load("a-name")
    with pytest.raises(ValueError, match=r"has \['concurrency'\]; it may have url, memory_limit"):
        load("a-name", url=server.url(""), concurrency=2)
