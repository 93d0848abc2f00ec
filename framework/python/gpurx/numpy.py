# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy arrays. Needs numpy, and ml_dtypes for element types that numpy lacks; `import gpurx` needs neither.

    weights = gpurx.numpy.load_file("http://10.77.0.2/model.safetensors")
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._locations import Locations
from ._open import load_as

if TYPE_CHECKING:
    from numpy.typing import NDArray


def load_file(url: Locations, *, into: Mapping[str, Any] | None = None, **options: Any) -> dict[str, NDArray[Any]]:
    """Load all tensors of a model as numpy arrays, which the program owns.

    `url` and `options` are those of gpurx.safe_open(), and `into` is that of its get_tensors(): arrays to fill. Raises
    gpurx.Error if the load fails.
    """
    return load_as("np", url, "cpu", options, into)
