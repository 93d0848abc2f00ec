# SPDX-License-Identifier: Apache-2.0
"""Tensors of every element type that jax has, as jax arrays. Needs jax; `import gpurx` does not.

    weights = gpurx.jax.load_file("http://10.77.0.2/model.safetensors")
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import jax.numpy  # noqa: F401  # for to_jax()
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gpurx.jax needs jax, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
        name="jax",
    ) from None

from ._arguments import Device
from ._convert import to_jax
from ._locations import Locations
from ._native import Tensor
from ._open import load_as


def as_array(one: Tensor) -> jax.Array:
    """Return a jax array. It shares the tensor's memory if jax has the element type and does not narrow it; else it is a
    copy.
    """
    array: jax.Array = to_jax(one)
    return array


def load_file(url: Locations, device: Device = "cpu", **options: Any) -> dict[str, jax.Array]:
    """Load all tensors of a model as jax arrays.

    `url` and `options` are those of gpurx.safe_open(). Raises gpurx.Error if the load fails.
    """
    return load_as("jax", url, device, options)
