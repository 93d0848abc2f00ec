# SPDX-License-Identifier: Apache-2.0
"""Slices of tensors, and the shares of ranks in reading a model. Pure: every rank computes the same.

An index has numpy's meaning, restricted to integers, slices with positive steps, and an ellipsis.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Extent = tuple[int, int, int]  # first index, count, step


class Part(NamedTuple):
    """Extents of each dimension, and the shape of the part, without dimensions that an integer selects from."""

    extents: tuple[Extent, ...]
    shape: tuple[int, ...]


def _spread(index: Any, dimensions: int) -> list[Any]:
    """Return one index for each dimension."""
    given = list(index) if isinstance(index, tuple) else [index]
    dots = [i for i, one in enumerate(given) if one is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index has at most one ellipsis")
    left = dimensions - (len(given) - len(dots))
    if left < 0:
        raise IndexError(f"too many indices: the tensor has {dimensions} dimensions, and {len(given) - len(dots)} are given")
    at = dots[0] if dots else len(given)
    return [*given[:at], *[slice(None)] * left, *given[at + len(dots) :]]


def _of_slice(one: slice, size: int) -> Extent:
    begin, end, step = one.indices(size)
    if step < 0:
        raise ValueError(f"a slice of a file must have a positive step, and this one has {step}: reverse the fetched tensor")
    return begin, len(range(begin, end, step)), step


def _of_number(one: Any, size: int, dimension: int) -> Extent:
    if isinstance(one, bool) or not hasattr(one, "__index__"):
        raise TypeError(f"an index must consist of integers, slices and an ellipsis, not of {type(one).__name__}")
    number = operator.index(one)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for dimension {dimension} of size {size}")
    return number % size, 1, 1


def part_of(shape: Sequence[int], index: Any) -> Part:
    """Return the part that an index selects."""
    extents: list[Extent] = []
    kept: list[int] = []
    for dimension, (one, size) in enumerate(zip(_spread(index, len(shape)), shape, strict=True)):
        if isinstance(one, slice):
            extents.append(_of_slice(one, size))
            kept.append(extents[-1][1])
        else:
            extents.append(_of_number(one, size, dimension))
    # An empty extent has no first index.
    return Part(tuple(each if each[1] else (0, 0, 1) for each in extents), tuple(kept))


# ---- shares of ranks ----

# Pieces that are less than this apart are fetched together, with the bytes between them, as for slices.
_GAP = 64 << 10

Range = tuple[int, int]  # from, up to


class Share(NamedTuple):
    """A box of a tensor that one rank reads for ranks that want parts of it."""

    name: str
    reader: int
    box: tuple[Range, ...]
    takers: tuple[tuple[int, Part], ...]


class Wanted(NamedTuple):
    """A tensor, and the part that each rank wants of it."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    parts: Mapping[int, Part]


def fetched_bytes(shape: Sequence[int], extents: Sequence[Extent], itemsize: int) -> int:
    """Return the bytes to fetch for a part."""
    fetched = stretch = stride = itemsize  # stretch: from the first byte to the last
    for size, (_, count, step) in reversed(list(zip(shape, extents, strict=True))):
        together = (count - 1) * step * stride + stretch
        as_one = fetched == stretch and step * stride - stretch < _GAP
        fetched = together if as_one and count else fetched * count
        stretch = together
        stride *= size
    return fetched


def _box_of(parts: Sequence[Part]) -> tuple[Range, ...]:
    """Return the smallest box that contains all parts."""
    return tuple(
        (min(begin for begin, _, _ in each), max(begin + (count - 1) * step + 1 for begin, count, step in each))
        for each in zip(*(part.extents for part in parts), strict=True)
    )


def shares_of(wanted: Sequence[Wanted], nodes: Mapping[int, str]) -> list[Share]:
    """Return the shares of all ranks of all nodes.

    On a node one rank reads for several if that is less than their separate reads. It is the rank with the least to read so
    far.
    """
    shares: list[Share] = []
    load = dict.fromkeys(nodes, 0)
    for one in wanted:
        for node in dict.fromkeys(nodes.values()):
            takers = [(rank, part) for rank, part in sorted(one.parts.items()) if nodes[rank] == node and 0 not in part.shape]
            for some in _together(one, takers):
                box = _box_of([part for _, part in some])
                reader = min((rank for rank, _ in some), key=lambda rank: load[rank])
                load[reader] += _bytes_of_box(one, box)
                shares.append(Share(one.name, reader, box, tuple(some)))
    return shares


def _together(one: Wanted, takers: list[tuple[int, Part]]) -> list[list[tuple[int, Part]]]:
    if not takers:
        return []
    alone = sum(fetched_bytes(one.shape, part.extents, one.itemsize) for _, part in takers)
    if _bytes_of_box(one, _box_of([part for _, part in takers])) < alone:
        return [takers]
    return [[each] for each in takers]


def _bytes_of_box(one: Wanted, box: tuple[Range, ...]) -> int:
    return fetched_bytes(one.shape, [(begin, end - begin, 1) for begin, end in box], one.itemsize)


def blocks_of(box: tuple[Range, ...], itemsize: int, at_most: int) -> Iterator[tuple[Range, ...]]:
    """Yield the box in blocks of at most `at_most` bytes, cut along its first dimension longer than 1.

    Raises ValueError if the blocks would be larger.
    """
    axis = next((i for i, (begin, end) in enumerate(box) if end - begin > 1), None)
    row = itemsize
    for i, (begin, end) in enumerate(box):
        row *= 1 if i == axis else end - begin
    if row > at_most:
        raise ValueError(f"{row} bytes of it belong together, and there is memory for {at_most}")
    if axis is None:
        yield box
        return
    rows = at_most // row
    begin, end = box[axis]
    for first in range(begin, end, rows):
        yield (*box[:axis], (first, min(first + rows, end)), *box[axis + 1 :])


Index = tuple[slice, ...]


def piece_of(part: Part, block: tuple[Range, ...]) -> tuple[Index, Index] | None:
    """Return the common elements of a block and a part: their indices in the block and in the part. None: there are none."""
    there: list[slice] = []
    here: list[slice] = []
    for (begin, count, step), (first, end) in zip(part.extents, block, strict=True):
        low = max(0, -((begin - first) // step))
        high = min(count, -((begin - end) // step))
        if low >= high:
            return None
        there.append(slice(begin + low * step - first, begin + (high - 1) * step - first + 1, step))
        here.append(slice(low, high))
    return tuple(there), tuple(here)
