# SPDX-License-Identifier: Apache-2.0
"""save_file: safetensors to S3 or to this machine."""

from __future__ import annotations

import ctypes
import json
import math
import os
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from ._arguments import text
from ._convert import FORMAT_TYPES, is_torch, type_name
from ._locations import Location
from ._native import Tensor, bytes_of
from ._options import Options
from ._sender import row_major
from ._writing import PART_SIZE, Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

_NAMES = {name: of for of, name in FORMAT_TYPES.items()}


class Array(NamedTuple):
    """A tensor to write."""

    name: str
    array: Any
    dtype: str  # as the format spells it
    shape: tuple[int, ...]
    nbytes: int

    def order(self) -> tuple[int, str]:
        """Return the place in the file: wide elements first, so that all are aligned."""
        return -(self.nbytes // max(1, math.prod(self.shape))), self.name

    def write(self, to: IO[bytes]) -> None:
        array = bytes_of(self.array).numpy() if isinstance(self.array, Tensor) else self.array
        here, address, nbytes = row_major(array)
        if nbytes:
            to.write((ctypes.c_char * nbytes).from_address(address))
        del here


def save_file(
    url: Location,
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    *,
    part_size: int = PART_SIZE,
    **options: Unpack[Options],
) -> None:
    """Write tensors as a safetensors file to S3 or to this machine.

        gpurx.save_file("s3://models/llama/model.safetensors", model.state_dict(), {"format": "pt"})

    * url: an s3:// URL, a path or a file URL.
    * tensors: by name: tensors of torch or gpurx, on the host or a GPU, arrays of numpy, or others that numpy.asarray() takes.
      One that is not on the host, or not contiguous, is copied first, and each alone.
    * metadata: texts for the header of the file.
    * part_size: bytes of a request to S3. `flows` of them are under way beside each other. S3 takes at least 5 MiB, and at
      most 10,000 parts of a file.
    * options: see gpurx.Options. Writing uses those of S3, with the first endpoint_url, flows, timeout and attempts.

    The file appears with all of its bytes, or not at all. S3 compares the CRC32C of each part and of the whole, and gives it
    to readers; a failed part is sent again. Writing to S3 needs boto3. Without `credentials`, boto3 looks for them.

    Raises gpurx.Error if S3 refuses, OSError of this machine, and TypeError or ValueError for what the format cannot hold,
    before a byte is written.
    """
    arrays = sorted((array_of(text("name", name), one) for name, one in tensors.items()), key=Array.order)
    header = header_of(arrays, metadata)
    with Writer(options, part_size).create(os.fspath(url)) as file:
        file.write(header)
        for one in arrays:
            one.write(file)


def array_of(name: str, one: Any) -> Array:
    if not is_torch(one) and not isinstance(one, Tensor) and not hasattr(one, "ctypes"):
        import numpy as np

        one = np.asarray(one)
    known = isinstance(one, Tensor) or is_torch(one) or one.dtype.isnative
    found = _NAMES.get(type_name(one.dtype)) if known else None
    if found is None:
        raise TypeError(f"tensor '{name}': safetensors has no elements of type {one.dtype}; it has {', '.join(_NAMES)}")
    nbytes = one.numel() * one.element_size() if is_torch(one) else one.nbytes
    return Array(name, one, found, tuple(one.shape), nbytes)


def header_of(arrays: list[Array], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = {text("metadata", key): text("metadata", value) for key, value in metadata.items()}
    at = 0
    for one in arrays:
        if one.name == "__metadata__":
            raise ValueError("no tensor can have the name '__metadata__'")
        header[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, at + one.nbytes]}
        at += one.nbytes
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    return len(data).to_bytes(8, "little") + data
