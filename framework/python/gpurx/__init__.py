# SPDX-License-Identifier: Apache-2.0
"""gpurx: receive TCP straight into GPU memory, as tensors.

    for batch in gpurx.TensorStream("10.77.0.1:9000", memory="gpu:0", batch_size=64):
        loss = step(torch.from_dlpack(batch.x))

    weights = gpurx.load_safetensors("http://10.77.0.2/model.safetensors", device="cuda:0")
"""

import atexit
import importlib.metadata

from ._error import Error, Forbidden, NotFound
from ._native import ErrorCode, IngestErrorCode, Session, Tensor, local_gpu
from ._native import stop as _stop
from ._open import async_safe_open, safe_open
from ._options import Options
from ._ranks import rank_addresses
from ._sender import TensorSender
from ._stream import Batch, TensorStream
from ._stream import close_all as _close_all
from ._weights import Weights, load_safetensors, load_safetensors_async

__all__ = [
    "Batch",
    "Error",
    "ErrorCode",
    "Forbidden",
    "IngestErrorCode",
    "NotFound",
    "Options",
    "Session",
    "Tensor",
    "TensorSender",
    "TensorStream",
    "Weights",
    "async_safe_open",
    "load_safetensors",
    "load_safetensors_async",
    "local_gpu",
    "rank_addresses",
    "safe_open",
]

__version__ = importlib.metadata.version("gpurx")

# The last first: streams end, then the threads that they run in.
atexit.register(_stop)
atexit.register(_close_all)
