# SPDX-License-Identifier: Apache-2.0
"""Host memory of the program as the place of tensors: `into=`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ._convert import FORMAT_TYPES, is_torch, type_name
from ._native import Operation, Tensor
from ._wait import Steps, results_of

if TYPE_CHECKING:
    from ._files import Entry

_MOST_NAMES = 5


class _Memory(NamedTuple):
    """Contiguous memory of the host that the program may write."""

    address: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    keeps: Any


def _refused(name: str, reason: str) -> ValueError:
    return ValueError(f"into: tensor '{name}': {reason}")


def _of_torch(name: str, one: Any) -> _Memory:
    if one.device.type != "cpu":
        raise _refused(name, f"the tensor is on {one.device}, and `into` takes memory of the host")
    if not one.is_contiguous() or one.is_conj() or one.is_neg():
        raise _refused(name, "the tensor is not contiguous")
    return _Memory(one.data_ptr(), one.numel() * one.element_size(), type_name(one.dtype), tuple(one.shape), one)


def _of_array(name: str, one: Any) -> _Memory:
    if not one.flags.c_contiguous:
        raise _refused(name, "the array is not contiguous and row-major")
    if not one.flags.writeable:
        raise _refused(name, "the array is read-only")
    # A type in the other byte order has the same name.
    dtype = one.dtype.name if one.dtype.isnative else str(one.dtype)
    return _Memory(one.ctypes.data, one.nbytes, dtype, tuple(one.shape), one)


def _of_own(name: str, one: Tensor) -> _Memory:
    if one.device != "cpu" or one.readonly:
        raise _refused(name, f"{one!r} is no host memory that may be written")
    return _Memory(one.data_ptr, one.nbytes, one.dtype, one.shape, one)


def _of_buffer(name: str, one: Any) -> _Memory:
    view = memoryview(one)
    if view.readonly:
        raise _refused(name, "the buffer is read-only")
    if not view.c_contiguous:
        raise _refused(name, "the buffer is not contiguous")
    if not view.nbytes:
        return _Memory(0, 0, "uint8", (0,), view)
    keeps = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
    return _Memory(ctypes.addressof(keeps), view.nbytes, "uint8", (view.nbytes,), keeps)


def _memory_of(name: str, one: Any) -> _Memory:
    """Return the memory of a tensor of torch or gpurx, an array of numpy, another CPU array with DLPack, or a buffer."""
    if isinstance(one, Tensor):
        return _of_own(name, one)
    if is_torch(one):
        return _of_torch(name, one)
    if all(hasattr(one, attribute) for attribute in ("dtype", "shape", "ctypes", "flags")):
        return _of_array(name, one)
    if hasattr(one, "__dlpack__"):
        import numpy as np

        try:
            return _of_array(name, np.from_dlpack(one))
        except (BufferError, RuntimeError, TypeError) as error:
            raise _refused(name, f"numpy cannot take its memory by DLPack: {error}") from None
    try:
        return _of_buffer(name, one)
    except TypeError:
        raise TypeError(
            f"into: tensor '{name}': a {type(one).__name__} is no tensor of torch, no array and no writable buffer"
        ) from None


def _checked(entry: Entry, one: Any) -> _Memory:
    there = _memory_of(entry.name, one)
    dtype = FORMAT_TYPES.get(entry.dtype, entry.dtype)
    if (there.dtype, there.shape) not in ((dtype, entry.shape), ("uint8", (entry.nbytes,))):
        wanted = f"{dtype} {list(entry.shape)}, or {entry.nbytes} bytes"
        raise _refused(entry.name, f"the file has {wanted}, and the place has {there.dtype} {list(there.shape)}")
    return there


def places_in(into: Mapping[str, Any], entries: Iterable[Entry], where: str) -> dict[str, _Memory]:
    """Return the place of each tensor. Raises ValueError or TypeError with the name of a tensor without a fit place."""
    wanted = {entry.name: entry for entry in entries}
    if lacks := [name for name in wanted if name not in into]:
        raise ValueError(f"into lacks {_named(lacks)}, which {where} has")
    if more := [name for name in into if name not in wanted]:
        raise ValueError(f"{where} lacks {_named(more)}, which `into` has")
    return {name: _checked(entry, into[name]) for name, entry in wanted.items()}


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(f"'{name}'" for name in names[:_MOST_NAMES]) + more


# Operations that may still write there. An interrupted call leaves its own for the next one.
_in_use: dict[Operation, Any] = {}


def filled(starts: Sequence[Callable[[], Operation]], tell: Callable[[], object] | None, keeps: Any) -> Steps[None]:
    """Start operations that write to the memory of `keeps`, and wait for them. It stays until they are over."""
    started: list[Operation] = []

    def noted(start: Callable[[], Operation]) -> Operation:
        started.append(start())
        _in_use[started[-1]] = keeps
        return started[-1]

    try:
        yield from results_of([partial(noted, one) for one in starts], len(starts), tell)
    finally:
        _wait_for_all(started)
        for one in list(_in_use):
            if one.is_over():
                _in_use.pop(one, None)


def _wait_for_all(operations: list[Operation]) -> None:
    """Wait in the calling thread: they are over or cancelled, so it is soon."""
    for one in operations:
        one.wait()
