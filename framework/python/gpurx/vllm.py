# SPDX-License-Identifier: Apache-2.0
"""Weights of vLLM from a server, straight into memory of the device: load_format "gpurx".

vLLM finds the format through the entry point vllm.general_plugins if both packages are installed.

    LLM("models/llama", load_format="gpurx", model_loader_extra_config={"url": "http://10.77.0.2/models/llama/"})
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from vllm.config import LoadConfig, ModelConfig
from vllm.distributed import parallel_state
from vllm.model_executor.model_loader import BaseModelLoader

from ._locations import local_path
from ._open import safe_open
from ._options import NAMES
from .distributed import tensors

# Keys of model_loader_extra_config beside `url`.
_OPTIONS = ("memory_limit", *NAMES)


class Loader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Load safetensors from the `url` of model_loader_extra_config.

    * `url` is any URL, path or prefix that safe_open() takes.
    * Without `url` the loader uses the name of the model, such as the directory that fetch_model() has written.
    * Other keys are memory_limit and those of gpurx.Options. An unknown key raises ValueError.
    * vLLM finds the configuration and the tokenizer by the name of the model.

    Tensors arrive in batches of some 128 MiB. One process receives them on the device of the model. Several ranks share the
    reads of their machine as gpurx.distributed.tensors() does, and each copies its slices from memory of the host. A wrong
    checksum of a file raises an Error after its last bytes, and the engine does not start.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self._options = dict(load_config.model_loader_extra_config or {})
        self._url = self._options.pop("url", "")
        if unknown := sorted({*self._options} - {*_OPTIONS}):
            known = ", ".join(("url", *_OPTIONS))
            raise ValueError(f"model_loader_extra_config of load_format 'gpurx' has {unknown}; it may have {known}")

    def download_model(self, model_config: ModelConfig) -> None:
        """Open the model, so that a wrong URL or file fails before vLLM makes the model. Stores nothing on disk."""
        safe_open(self._where(model_config), "pt", **self._options).close()

    def load_weights(self, model: Any, model_config: ModelConfig) -> None:
        """Load the weights into the model."""
        where = self._where(model_config)
        if (group := _ranks(model_config)) is not None:
            with closing(tensors(where, group=group, **self._options)) as weights:
                model.load_weights(weights)
            return
        with safe_open(where, "pt", _device_of(model), **self._options) as file:
            model.load_weights(_all_of(file))

    def _where(self, model_config: ModelConfig) -> str:
        where = self._url or model_config.model_weights or model_config.model
        path = local_path(where)
        if path is not None and not os.path.exists(path):
            raise ValueError(
                f"load {where!r} with load_format 'gpurx': it is neither a URL nor a path of this machine; set the location of "
                "the weights with model_loader_extra_config={'url': …}"
            )
        return str(where)


def _all_of(file: safe_open[Any]) -> Iterator[tuple[str, Any]]:
    yield from file


def _ranks(model_config: ModelConfig) -> Any:
    """Return the group of the ranks that load this model, or None if this process is alone."""
    if not parallel_state.model_parallel_is_initialized():
        return None
    # Replicas for data parallelism may load at other times, and only some stages of a pipeline load a draft model.
    have_all = parallel_state.get_dp_group().world_size == 1 and model_config.runner_type != "draft"
    group = parallel_state.get_world_group() if have_all else parallel_state.get_tp_group()
    return group.cpu_group if group.world_size > 1 else None


def _device_of(model: Any) -> str:
    """Return the GPU of the weights, else "cpu". vLLM's weight loaders copy from the host to other devices."""
    device = next(model.parameters()).device
    return str(device) if device.type == "cuda" else "cpu"


def register() -> None:
    """Register the load format. vLLM's entry point; a process may call it several times."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader("gpurx")(Loader)
