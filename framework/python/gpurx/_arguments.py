# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, checked before the extension sees them: its own errors would name its signatures."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

from ._native import Session as NativeSession

if TYPE_CHECKING:
    import torch

# Memory for tensors.
Device = Union[str, SupportsIndex, "torch.device", None]


def _no(name: str, kind: str, value: Any) -> TypeError:
    return TypeError(f"{name} must be {kind}, not {type(value).__name__}")


def whole(name: str, value: Any, bits: int = 64) -> int:
    """Return the value as an int of at most this many bits, without a sign."""
    if not isinstance(value, SupportsIndex):
        raise _no(name, "an int", value)
    if not 0 <= (number := value.__index__()) < 1 << bits:
        raise ValueError(f"{name} must be at least 0 and less than 2**{bits}, not {number}")
    return number


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _no(name, "a bool", value)
    return value


def seconds(name: str, value: Any) -> float:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise _no(name, "a number of seconds", value)
    return float(value)


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _no(name, "a str", value)
    return value


def path(name: str, value: Any) -> str:
    found = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(found, str):
        raise _no(name, "a path", value)
    return found


def session_of(value: Any) -> Any:
    """Return the session, or None."""
    if value is not None and not isinstance(value, NativeSession):
        raise _no("session", "a gpurx.Session", value)
    return value
