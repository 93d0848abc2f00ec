# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files, with tensors that few programs write."""

import json
import random
import struct
from dataclasses import dataclass


@dataclass
class Tensor:
    name: str
    dtype: str
    shape: list[int]
    data: bytes


def tensor(name: str, dtype: str, size: int, shape: list[int]) -> Tensor:
    """Of any bytes; `size` is that of an element."""
    count = 1
    for extent in shape:
        count *= extent
    return Tensor(name, dtype, shape, random.Random(name).randbytes(count * size))


# Odd sizes, so that those behind have to be moved to be aligned.
ODD_TENSORS = [
    tensor("byte", "U8", 1, [1]),
    tensor("matrix", "F32", 4, [2, 3]),
    tensor("scalar", "F64", 8, []),
    tensor("nothing", "F16", 2, [0, 7]),
    tensor("flags", "BOOL", 1, [17]),
    tensor("brain", "BF16", 2, [3, 5, 7]),
    tensor("eight", "F8_E4M3", 1, [33]),
    tensor("large", "I64", 8, [25, 1000]),
    tensor("ключ \"quoted\" \U0001f511", "I16", 2, [3]),
    tensor("last", "U8", 1, [100_001]),
]


def write_safetensors(tensors: list[Tensor]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"made by": "a test"}}
    at = 0
    for each in tensors:
        header[each.name] = {"dtype": each.dtype, "shape": each.shape, "data_offsets": [at, at + len(each.data)]}
        at += len(each.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(each.data for each in tensors)
