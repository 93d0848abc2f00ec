# SPDX-License-Identifier: Apache-2.0
"""Weights of vLLM from a server, straight into memory of the device: load_format "gpurx".

vLLM finds the format through the entry point vllm.general_plugins if both packages are installed.

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

# Keys of model_loader_extra_config beside `url`.
_OPTIONS = ("memory_limit", *NAMES)


class Loader(BaseModelLoader):  # type: ignore[misc, unused-ignore]
    """Load safetensors from the `url` of model_loader_extra_config.

    * `url` is any URL, path or prefix that safe_open() takes. A URL of a server that ends in "/" is a directory with
      model.safetensors.index.json or model.safetensors.
    * Without `url` the loader uses the name of the model.
    * Other keys are memory_limit and those of gpurx.Options. An unknown key raises ValueError.
    * vLLM finds the configuration and the tokenizer by the name of the model.

    Tensors arrive in batches of some 128 MiB, on the device of the model. A wrong checksum of a file raises an Error after
    its last bytes, and the engine does not start. Each process receives whole tensors, also with tensor_parallel_size above
    1: vLLM's weight loaders cut the slices of their rank.
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
        self._open(model_config, "cpu").close()

    def load_weights(self, model: Any, model_config: ModelConfig) -> None:
        """Load the weights into the model."""
        with self._open(model_config, _device_of(model)) as file:
            model.load_weights(_all_of(file))

    def _open(self, model_config: ModelConfig, device: str) -> safe_open:
        where = self._url or model_config.model_weights or model_config.model
        path = local_path(where)
        if path is not None and not os.path.exists(path):
            raise ValueError(
                f"load {where!r} with load_format 'gpurx': it is neither a URL nor a path of this machine; set the location of "
                "the weights with model_loader_extra_config={'url': …}"
            )
        if path is not None or is_prefix(where) or not urlsplit(where).path.endswith("/"):
            return safe_open(where, "pt", device, **self._options)
        try:
            return safe_open(_in(where, "model.safetensors.index.json"), "pt", device, **self._options)
        except (NotFound, Forbidden):  # S3 answers 403 for missing objects to clients that may not list
            return safe_open(_in(where, "model.safetensors"), "pt", device, **self._options)


def _in(directory: str, name: str) -> str:
    """Return the URL of a file in the directory. The query stays: it may have a token for the whole directory."""
    parts = urlsplit(directory)
    return parts._replace(path=parts.path + name).geturl()


def _all_of(file: safe_open) -> Iterator[tuple[str, Any]]:
    yield from file


def _device_of(model: Any) -> str:
    """Return the GPU of the weights, else "cpu". vLLM's weight loaders copy from the host to other devices."""
    device = next(model.parameters()).device
    return str(device) if device.type == "cuda" else "cpu"


def register() -> None:
    """Register the load format. vLLM's entry point; a process may call it several times."""
    from vllm.model_executor.model_loader import register_model_loader

    register_model_loader("gpurx")(Loader)
