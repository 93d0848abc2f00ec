# SPDX-License-Identifier: Apache-2.0
"""ingest_objects.py DIRECTORY COUNT:SIZE...: writes safetensors files, each of COUNT tensors of SIZE bytes of noise, and
prints as JSON by what they are recognised. A program of its own: what a process has in memory counts as its children's.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any


def file_name(count: int) -> str:
    return f"model-{count}"


def count_in(url: str) -> int:
    return int(url.rsplit("-", 1)[1])


def name_of(number: int) -> str:
    return f"model.layers.{number:06}.weight"


def header_of(count: int, size: int) -> bytes:
    tensors = {name_of(number): {"dtype": "U8", "shape": [size], "data_offsets": [number * size, (number + 1) * size]}
               for number in range(count)}
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def tensors_in(file: memoryview) -> dict[str, memoryview]:
    (size,) = struct.unpack("<Q", file[:8])
    data = file[8 + size:]
    return {name: data[slice(*one["data_offsets"])] for name, one in json.loads(bytes(file[8:8 + size])).items()}


def bytes_of(one: Any) -> memoryview:
    """Of a buffer, or a tensor of bytes."""
    return memoryview(one.numpy() if hasattr(one, "numpy") else one).cast("B")


class Digest:
    """Of tensors' names and bytes, in the order of the names."""

    def __init__(self) -> None:
        self._found = hashlib.sha256()

    def add(self, name: str, data: Any) -> None:
        self._found.update(name.encode())
        self._found.update(data)

    def text(self) -> str:
        return self._found.hexdigest()


def digest(tensors: dict[str, Any]) -> str:
    found = Digest()
    for name in sorted(tensors):
        found.add(name, bytes_of(tensors[name]))
    return found.text()


def write(directory: Path, count: int, size: int) -> dict[str, Any]:
    whole, every, every_other = hashlib.sha256(), Digest(), Digest()
    with (directory / file_name(count)).open("wb") as file:
        header = header_of(count, size)
        file.write(header)
        whole.update(header)
        for number in range(count):
            data = os.urandom(size)
            file.write(data)
            whole.update(data)
            every.add(name_of(number), data)
            if number % 2 == 0:
                every_other.add(name_of(number), data)
    return {"name": file_name(count), "bytes": len(header) + count * size, "sha256": whole.hexdigest(),
            "digests": {1: every.text(), 2: every_other.text()}}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    print(json.dumps([write(directory, *map(int, wanted.split(":"))) for wanted in sys.argv[2:]]))


if __name__ == "__main__":
    main()
