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


def converter(framework: str) -> Convert:
    name = _ALIASES.get(framework, framework)
    if name not in _FRAMEWORKS:
        raise ValueError(f"there is no framework {framework!r}: {', '.join(map(repr, _FRAMEWORKS))}")
    return _FRAMEWORKS[name]()


def device_text(device: Any) -> str:
    """Of a name, a number, or a torch.device."""
    return f"cuda:{device}" if isinstance(device, int) else str(device)
