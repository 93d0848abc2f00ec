# SPDX-License-Identifier: Apache-2.0
"""What tensor[a:b, …] means, as numpy has it for what is regular: integers, slices with steps forwards, an ellipsis."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

Extent = tuple[int, int, int]  # the first index, how many, each of which


class Part(NamedTuple):
    """Of each dimension what is taken; and the shape of that, without dimensions that an integer chose from."""

    extents: tuple[Extent, ...]
    shape: tuple[int, ...]


def _spread(index: Any, dimensions: int) -> list[Any]:
    """One for each dimension."""
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
        raise ValueError(f"a slice of a file goes forwards, and this one has the step {step}: reverse what was fetched")
    return begin, len(range(begin, end, step)), step


def _of_number(one: Any, size: int, dimension: int) -> Extent:
    if isinstance(one, bool) or not hasattr(one, "__index__"):
        raise TypeError(f"an index has integers, slices and an ellipsis, and no {type(one).__name__}")
    number = operator.index(one)
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for dimension {dimension} of size {size}")
    return number % size, 1, 1


def part_of(shape: Sequence[int], index: Any) -> Part:
    extents: list[Extent] = []
    kept: list[int] = []
    for dimension, (one, size) in enumerate(zip(_spread(index, len(shape)), shape, strict=True)):
        if isinstance(one, slice):
            extents.append(_of_slice(one, size))
            kept.append(extents[-1][1])
        else:
            extents.append(_of_number(one, size, dimension))
    # An empty one begins nowhere.
    return Part(tuple(each if each[1] else (0, 0, 1) for each in extents), tuple(kept))
