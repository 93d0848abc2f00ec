# SPDX-License-Identifier: Apache-2.0
"""A replica that takes its weights from running ones, and serves them to the next:

    replica.py 10.77.0.1:9100 s3://models/llama/model.safetensors                                   # the first, from storage
    replica.py 10.77.0.2:9100 http://10.77.0.1:9100/model.safetensors                               # from the first
    replica.py 10.77.0.3:9100 http://10.77.0.1:9100/model.safetensors http://10.77.0.2:9100/model.safetensors   # from both

It prints the URL that it serves, and serves until its standard input ends.
"""

from __future__ import annotations

import sys

import gpurx


def main() -> None:
    address, source, *others = sys.argv[1:]
    weights = gpurx.load_safetensors(source, device="cpu", mirrors=others)  # "cuda:0": into memory of the GPU
    with gpurx.ModelServer(weights, address, metadata=weights.metadata) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
