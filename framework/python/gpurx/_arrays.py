# SPDX-License-Identifier: Apache-2.0
"""Tensors as numpy's arrays: of every element type, with ml_dtypes for those that numpy does not have. Both are imported
where they are used: the package needs neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    from ._native import Tensor

# Elements that are no whole bytes.
_PACKED = {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}


def type_name(dtype: Any) -> str:
    """What a Tensor calls it: a name, or a dtype of numpy, ml_dtypes or torch, or a type such as numpy.int16."""
    if isinstance(dtype, str):
        return dtype
    for attribute in ("name", "__name__"):
        if isinstance(name := getattr(dtype, attribute, None), str):
            return name.rstrip("_")
    return str(dtype).removeprefix("torch.")


class _OnHost:
    """A tensor for np.from_dlpack, which not every numpy can tell that a copy on the host will do."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options | {"dl_device": (1, 0)})


def _extension(name: str) -> Any:
    """numpy's dtype of a type that ml_dtypes adds; None without it."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return getattr(ml_dtypes, name, None)


def _no_type(name: str) -> TypeError:
    ways = [] if name.startswith("float6") else ["install ml_dtypes"]
    if name == "bfloat16":
        ways.append("take numpy('float32')")
    ways.append(f"take the bits with view({'uint16' if name == 'bfloat16' else 'uint8'!r})")
    return TypeError(f"numpy has no {name}: {', or '.join(ways)}")


def _halves(flat: Any) -> Any:
    """Two elements of four bits from each byte, the lower first, in bytes of their own."""
    import numpy as np

    return np.stack([flat & 15, flat >> 4], axis=-1).reshape(-1)


def _elements(flat: Any, name: str, wants_other: bool) -> Any:
    """The bytes as elements, one after the other. If another type is wanted, one that can become it will do."""
    import numpy as np

    if name in _PACKED:
        extension = None if name.startswith("float6") else _extension(name)
        if extension is None:
            raise _no_type(name)
        return _halves(flat).view(extension)
    try:
        return flat.view(np.dtype(name))
    except TypeError:
        pass
    if (extension := _extension(name)) is not None:
        return flat.view(extension)
    if name == "bfloat16" and wants_other:  # the upper half of a float32
        return (flat.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise _no_type(name)


def array_of(tensor: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """As Tensor.numpy and Tensor.__array__ say."""
    import numpy as np

    flat = np.from_dlpack(_OnHost(_native.bytes_of(tensor)))
    elements = _elements(flat, tensor.dtype, dtype is not None)
    result = elements.reshape(tensor.shape)
    if dtype is not None:
        result = result.astype(dtype, copy=False)
    shares = tensor.device == "cpu" and (not tensor.nbytes or np.may_share_memory(result, flat))
    if copy is False and not shares:
        raise ValueError(f"{tensor!r} cannot be such an array without a copy")
    return result.copy() if copy and shares else result
