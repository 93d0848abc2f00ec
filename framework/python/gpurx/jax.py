# SPDX-License-Identifier: Apache-2.0
"""Tensors of every element type that jax has as its arrays. Needs jax, which the rest of the package does not.

    weights = gpurx.jax.load_file("http://10.77.0.2/model.safetensors")
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import jax.numpy
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gpurx.jax needs jax, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
        name="jax",
    ) from None

from ._native import Tensor
from ._open import load_as
from ._places import Places

# Wider than jax has them, unless it is told to: it makes narrower ones of them.
_WIDE = {"int64", "uint64", "float64", "complex128"}
# What jax takes through DLPack.
_AS_THEY_ARE = {
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16",
    "complex64", "complex128", "bool",
}  # fmt: skip


def as_array(one: Tensor) -> Any:
    """An array of jax. It shares the tensor's memory where jax can: where it has that type, and no wish for narrower ones."""
    if one.nbytes and one.dtype in _AS_THEY_ARE and (jax.config.jax_enable_x64 or one.dtype not in _WIDE):
        return jax.dlpack.from_dlpack(one)
    array = jax.numpy.asarray(one.numpy())
    return array if one.device == "cpu" else jax.device_put(array, jax.devices("gpu")[int(one.device.partition(":")[2])])


def load_file(url: Places, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    """All tensors, as arrays of jax. The options are those of gpurx.safe_open()."""
    return load_as("jax", url, device, options)
