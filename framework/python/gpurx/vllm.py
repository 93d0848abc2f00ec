# SPDX-License-Identifier: Apache-2.0
"""Loads vLLM's weights from a server, straight into memory of the device: load_format "gpurx". vLLM finds the module if both
packages are installed (entry point vllm.general_plugins).

    LLM("models/llama", load_format="gpurx", model_loader_extra_config={"url": "http://10.77.0.2/models/llama/"})
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from vllm.config import LoadConfig, ModelConfig
from vllm.model_executor.model_loader import BaseModelLoader

from ._error import Forbidden, NotFound
from ._locations import is_prefix, local_path
from ._open import safe_open
from ._options import NAMES

# Beside `url`, what model_loader_extra_config may have.
_OPTIONS = ("memory_limit", *NAMES)


class Loader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Loads safetensors from `url`: everything that safe_open() opens, also S3 prefixes, and the URL of a directory of a server,
    ending in "/", with model.safetensors.index.json or model.safetensors. Default: the model's name. vLLM finds the
    configuration and the tokenizer by the name of the model.

    Tensors arrive in groups of some 128 MiB, on the device of the model. A file whose checksum differs from the server's raises
    Error with its last bytes, so no engine starts with it. Each process receives whole tensors, also with
    tensor_parallel_size above 1: vLLM's own weight loaders take the slices of their rank.
    """

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)
        self._options = dict(load_config.model_loader_extra_config or {})
        self._url = self._options.pop("url", "")
        if unknown := sorted({*self._options} - {*_OPTIONS}):
            known = ", ".join(("url", *_OPTIONS))
            raise ValueError(f"model_loader_extra_config of load_format 'gpurx' has {unknown}; it may have {known}")

    def download_model(self, model_config: ModelConfig) -> None:
        """Opens the files, and reports errors of the URL or the files before a model is made. Keeps nothing on disk."""
        self._open(model_config, "cpu").close()

    def load_weights(self, model: Any, model_config: ModelConfig) -> None:
        with self._open(model_config, _device_of(model)) as file:
            model.load_weights(_all_of(file))

    def _open(self, model_config: ModelConfig, device: str) -> safe_open:
        where = self._url or model_config.model_weights or model_config.model
        path = local_path(where)
        if path is not None and not os.path.exists(path):
            raise ValueError(
                f"load {where!r} with load_format 'gpurx': it is neither a URL nor on this machine; say where the weights are "
                "with model_loader_extra_config={'url': …}"
            )
        if path is not None or is_prefix(where) or not urlsplit(where).path.endswith("/"):
            return safe_open(where, "pt", device, **self._options)
        try:
            return safe_open(_in(where, "model.safetensors.index.json"), "pt", device, **self._options)
        except (NotFound, Forbidden):  # S3 says that of what is not there to who may not list
            return safe_open(_in(where, "model.safetensors"), "pt", device, **self._options)


def _in(directory: str, name: str) -> str:
    """What a query has, such as a token for a whole directory, goes along."""
    parts = urlsplit(directory)
    return parts._replace(path=parts.path + name).geturl()


def _all_of(file: safe_open) -> Iterator[tuple[str, Any]]:
    yield from file


def _device_of(model: Any) -> str:
    """A GPU that the weights are on. To what is elsewhere vLLM's weight loaders copy from the host."""
    device = next(model.parameters()).device
    return str(device) if device.type == "cuda" else "cpu"


def register() -> None:
    """vLLM's entry point. It may be called more than once in a process."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader("gpurx")(Loader)
