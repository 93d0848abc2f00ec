# SPDX-License-Identifier: Apache-2.0
"""Tensors of every element type of jax as its arrays. Needs jax; the rest of the package does not.

    weights = gpurx.jax.load_file("http://10.77.0.2/model.safetensors")
"""

from __future__ import annotations

from typing import Any

try:
    import jax
    import jax.numpy  # noqa: F401  # what to_jax() needs
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "gpurx.jax needs jax, which cannot be imported here: install it, or use gpurx.safe_open(…, 'gpurx')",
        name="jax",
    ) from None

from ._convert import to_jax
from ._locations import Locations
from ._native import Tensor
from ._open import load_as


def as_array(one: Tensor) -> Any:
    """Returns an array of jax. It shares the tensor's memory if jax has that type and narrows none."""
    return to_jax(one)


def load_file(url: Locations, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    """Loads all tensors as arrays of jax. The options are those of gpurx.safe_open()."""
    return load_as("jax", url, device, options)
