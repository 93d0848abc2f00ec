#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prepare rows on all workers of Ray, and send them to the ranks of a training job: prepare.py --help"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import ray

import gpurx.ray

FEATURES = 32


def decode(rows: dict[str, Any]) -> dict[str, Any]:
    """Stand for reading and augmenting: return the features and the target of each row."""
    x = np.stack([np.random.default_rng(int(one)).standard_normal(FEATURES, dtype=np.float32) for one in rows["id"]])
    return {"id": rows["id"], "x": x, "y": x @ np.linspace(-1, 1, FEATURES, dtype=np.float32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", nargs="+", required=True, metavar="HOST:PORT", help="where the ranks listen, in their order")
    parser.add_argument("--sources", type=int, default=16, help="write tasks, as many as the ranks have been told")
    parser.add_argument("--rows", type=int, default=20_000)
    wanted = parser.parse_args()
    dataset = ray.data.range(wanted.rows).random_shuffle(seed=1).repartition(wanted.sources).map_batches(decode)
    dataset.write_datasink(gpurx.ray.TensorSink(wanted.to, sources=wanted.sources, rows_per_frame=256))


if __name__ == "__main__":
    main()
