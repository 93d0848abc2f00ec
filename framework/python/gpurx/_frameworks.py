# SPDX-License-Identifier: Apache-2.0
"""Tensors as those of other libraries, which are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._native import Tensor

Convert = Callable[[Tensor], Any]


def _as_torch() -> Convert:
    from .torch import as_tensor

    return as_tensor


def _as_numpy() -> Convert:
    import numpy  # noqa: F401  # what numpy() needs

    return lambda one: one.numpy()


def _as_jax() -> Convert:
    from .jax import as_array

    return as_array


def _as_cupy() -> Convert:
    import cupy

    from_dlpack: Convert = cupy.from_dlpack
    return from_dlpack


_FRAMEWORKS: dict[str, Callable[[], Convert]] = {
    "pt": _as_torch,
    "np": _as_numpy,
    "jax": _as_jax,
    "cupy": _as_cupy,
    "gpurx": lambda: lambda one: one,
}
# As safetensors takes them.
_ALIASES = {"torch": "pt", "pytorch": "pt", "numpy": "np", "flax": "jax"}


_LIBRARIES = {"pt": "torch", "np": "numpy", "jax": "jax", "cupy": "cupy"}


def converter(framework: str) -> Convert:
    name = _ALIASES.get(framework, framework)
    if name not in _FRAMEWORKS:
        takes = ", ".join(f"{one!r} for {library}" for one, library in _LIBRARIES.items())
        raise ValueError(
            f"framework={framework!r} is none that safe_open knows: take {takes}, or 'gpurx' for tensors of no library"
        )
    try:
        return _FRAMEWORKS[name]()
    except ModuleNotFoundError as error:
        if error.name != (library := _LIBRARIES[name]):
            raise
        raise ModuleNotFoundError(
            f"framework={framework!r} needs {library}, which cannot be imported here: install it, or take another framework, "
            "such as 'gpurx', which needs none",
            name=library,
        ) from None
