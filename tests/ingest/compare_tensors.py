#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what gpurx-fetch has loaded with what the package safetensors reads, bit by bit:

    compare_tensors.py FILE REPORT BLOCK

REPORT is the output of gpurx-fetch --safetensors --json --output BLOCK. By the Python of tests/python/environment.sh.
"""

import json
import sys

import numpy as np
from safetensors import safe_open


def main() -> None:
    path, report, block = sys.argv[1:]
    with open(report, encoding="utf-8") as text:
        loaded = {tensor["name"]: tensor for tensor in json.load(text)["tensors"]}
    landed = np.memmap(block, dtype=np.uint8, mode="r")
    compared = 0
    with safe_open(path, framework="np") as file:
        if sorted(file.keys()) != sorted(loaded):
            sys.exit(f"other tensors: {sorted(set(file.keys()) ^ set(loaded))}")
        for name in file.keys():
            expected = file.get_tensor(name)
            found = loaded[name]
            here = landed[found["offset"]:found["offset"] + found["bytes"]].view(expected.dtype).reshape(found["shape"])
            if here.shape != expected.shape or here.tobytes() != expected.tobytes():
                sys.exit(f"{name} is {here.shape} {here.ravel()[:4]}, and not {expected.shape} {expected.ravel()[:4]}")
            compared += expected.nbytes
    print(f"{len(loaded)} tensors, {compared} bytes, are what safetensors reads")


if __name__ == "__main__":
    main()
