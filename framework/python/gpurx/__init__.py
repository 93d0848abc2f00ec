# SPDX-License-Identifier: Apache-2.0
"""Receive TCP straight into GPU memory, as tensors.

    for batch in gpurx.TensorStream("10.77.0.1:9000", memory="gpu:0", batch_size=64):
        loss = step(torch.from_dlpack(batch.x))

    weights = gpurx.load_safetensors("http://10.77.0.2/model.safetensors", device="cuda:0")

* TensorStream receives batches from other processes; TensorSender sends them.
* load_safetensors() loads a file; safe_open() loads models, single tensors and slices. Both have an async form.
* save_file() writes a file of tensors to S3 or to this machine.
* ModelServer serves the tensors of this process to other ones.
* fetch_model() fetches the files of a model that are not weights.
* list_files() lists the files of a directory: on disk, of S3, or of Hugging Face's hub.
* Options lists the keywords of every function that takes a URL.
* Session owns the memory and queues of a NIC. Streams and loads open one if they are given none.
* Error is raised for failures of the library, the network, the kernel and CUDA.
* gpurx.torch, gpurx.numpy, gpurx.jax, gpurx.distributed, gpurx.dcp, gpurx.ray, gpurx.vllm and gpurx.dlio are plug-ins.
  `import gpurx` imports none of them.

Receiving runs in threads of the library and needs no GIL. A process that was forked from one that uses gpurx cannot
receive.
"""

import atexit
import importlib.metadata

from ._error import Error, Forbidden, NotFound
from ._files import list_files
from ._model import fetch_model
from ._native import ErrorCode, IngestErrorCode, Tensor, local_gpu
from ._native import stop as _stop
from ._open import async_safe_open, safe_open
from ._options import Options
from ._ranks import rank_addresses
from ._save import save_file
from ._sender import TensorSender
from ._serve import ModelServer
from ._session import Session
from ._stream import Batch, TensorStream
from ._stream import close_all as _close_all
from ._weights import Weights, load_safetensors, load_safetensors_async

__all__ = [
    "Batch",
    "Error",
    "ErrorCode",
    "Forbidden",
    "IngestErrorCode",
    "ModelServer",
    "NotFound",
    "Options",
    "Session",
    "Tensor",
    "TensorSender",
    "TensorStream",
    "Weights",
    "async_safe_open",
    "fetch_model",
    "list_files",
    "load_safetensors",
    "load_safetensors_async",
    "local_gpu",
    "rank_addresses",
    "safe_open",
    "save_file",
]

try:
    __version__ = importlib.metadata.version("gpurx")
except importlib.metadata.PackageNotFoundError:  # its directory was copied without the metadata of the installation
    __version__ = "unknown"

# atexit runs the last handler first: streams end, then their threads.
atexit.register(_stop)
atexit.register(_close_all)
