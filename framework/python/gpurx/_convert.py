# SPDX-License-Identifier: Apache-2.0
"""Tensors as those of numpy, torch, jax and cupy, and as tables for notebooks.

Functions import the libraries when they need them: the package needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from . import _native
from ._native import Tensor

Convert = Callable[[Tensor], Any]

# ---- numpy: every element type, with ml_dtypes for those that numpy lacks ----

# Names of the format, of elements with whole bytes.
FORMAT_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz", "C64": "complex64",
}  # fmt: skip

# Types with elements of less than a byte.
_PACKED = {"float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}


def type_name(dtype: Any) -> str:
    """Return a Tensor's name of a type: of a name, a dtype of numpy, ml_dtypes or torch, or a type such as numpy.int16."""
    if isinstance(dtype, str):
        return dtype
    for attribute in ("name", "__name__"):
        if isinstance(name := getattr(dtype, attribute, None), str):
            return name.rstrip("_")
    return str(dtype).removeprefix("torch.")


class _OnHost:
    """Offer a host copy to np.from_dlpack, because some versions of numpy cannot ask for one."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options | {"dl_device": (1, 0)})


def _extension(name: str) -> Any:
    """Return ml_dtypes' dtype of a type, or None."""
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
    """Return the two four-bit elements of each byte, the lower first, in bytes of their own."""
    import numpy as np

    return np.stack([flat & 15, flat >> 4], axis=-1).reshape(-1)


def _elements(flat: Any, name: str, wants_other: bool) -> Any:
    """View the bytes as elements. With `wants_other`, a type that converts to another one suffices."""
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


def to_numpy(tensor: Tensor, dtype: Any = None, copy: bool | None = None) -> Any:
    """Implement Tensor.numpy and Tensor.__array__."""
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


# ---- torch ----


def is_torch(array: Any) -> bool:
    return all(hasattr(array, one) for one in ("data_ptr", "detach", "element_size", "shape"))


# Types that every torch takes through DLPack.
_TORCH_TAKES = {
    "int8", "int16", "int32", "int64", "uint8", "float16", "float32", "float64", "bfloat16", "complex64", "complex128",
}  # fmt: skip
# Others pass as numbers of the same size, and torch views them as their type.
_SAME_SIZE = {"bool": "uint8", "uint16": "int16", "uint32": "int32", "uint64": "int64"}
# Names of torch that differ.
_TORCH_NAMES = {"float4_e2m1fn": "float4_e2m1fn_x2"}


def to_torch(tensor: Tensor) -> Any:
    """Implement gpurx.torch.as_tensor."""
    import torch

    if tensor.dtype in _TORCH_TAKES:
        return torch.from_dlpack(tensor)
    dtype = torch_type(tensor.dtype)
    return torch.from_dlpack(tensor.view(_SAME_SIZE.get(tensor.dtype, "uint8"))).view(dtype)


def torch_type(name: str) -> Any:
    """Return torch's type for a Tensor's name of a type."""
    import torch

    dtype = getattr(torch, _TORCH_NAMES.get(name, name), None)
    if dtype is None:
        raise TypeError(
            f"torch {torch.__version__} has no {name}: take its bits, from_dlpack(tensor.view('uint8')), or a newer torch"
        )
    return dtype


# ---- jax ----

# Types that jax narrows, unless jax_enable_x64 is set.
_WIDE = {"int64", "uint64", "float64", "complex128"}
# Types that jax takes through DLPack.
_JAX_TAKES = {
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64", "bfloat16",
    "complex64", "complex128", "bool",
}  # fmt: skip


def to_jax(tensor: Tensor) -> Any:
    """Implement gpurx.jax.as_array."""
    import jax
    import jax.numpy

    if tensor.nbytes and tensor.dtype in _JAX_TAKES and (jax.config.jax_enable_x64 or tensor.dtype not in _WIDE):
        return jax.dlpack.from_dlpack(tensor)
    array = jax.numpy.asarray(tensor.numpy())
    return array if tensor.device == "cpu" else jax.device_put(array, jax.devices("gpu")[int(tensor.device.partition(":")[2])])


# ---- by a framework's name ----


def _for_torch() -> Convert:
    import torch  # noqa: F401  # for to_torch()

    return to_torch


def _for_numpy() -> Convert:
    import numpy  # noqa: F401  # for to_numpy()

    return to_numpy


def _for_jax() -> Convert:
    import jax
    import jax.numpy  # noqa: F401  # for to_jax()

    return to_jax


def _for_cupy() -> Convert:
    import cupy

    from_dlpack: Convert = cupy.from_dlpack
    return from_dlpack


_FRAMEWORKS: dict[str, Callable[[], Convert]] = {
    "pt": _for_torch,
    "np": _for_numpy,
    "jax": _for_jax,
    "cupy": _for_cupy,
    "gpurx": lambda: lambda tensor: tensor,
}
# Further names that safetensors accepts.
_ALIASES = {"torch": "pt", "pytorch": "pt", "numpy": "np", "flax": "jax"}
_LIBRARIES = {"pt": "torch", "np": "numpy", "jax": "jax", "cupy": "cupy"}


def converter(framework: str) -> Convert:
    """Return the function that converts to a framework. Raises ValueError for an unknown one, ModuleNotFoundError for a
    missing one.
    """
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


# ---- for notebooks ----

_DISPLAYED_ROWS = 100


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if value < 1024:
            break
    return f"{value:.1f} {unit}"


def html_table(title: str, tensors: Mapping[str, Tensor]) -> str:
    """Return a table as HTML, with all names escaped. Shows the first tensors of many."""
    rows = ["<th>name</th><th>dtype</th><th>shape</th><th>size</th><th>device</th>"]
    for name, one in list(tensors.items())[:_DISPLAYED_ROWS]:
        cells = (name, one.dtype, str(one.shape), size_text(one.nbytes), one.device)
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    more = len(tensors) - _DISPLAYED_ROWS
    rest = f"<p>… and {more} more</p>" if more > 0 else ""
    return f"<p>{escape(title)}</p><table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{rest}"
