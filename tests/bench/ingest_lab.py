# SPDX-License-Identifier: Apache-2.0
"""The part of `./run bench ingest` over devmem: ingest_guest.py in the lab, with a clock that counts instructions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ingest_figures import MIB, BySize
from ingest_servers import nginx_program

ROOT = Path(__file__).resolve().parents[2]
LAB_SIZES = (8 * MIB, 24 * MIB)


def run_in_lab(build: Path, rounds: int, kernel: str) -> dict[str, BySize]:
    """Of each contender, the instructions of each round."""
    script = Path(__file__).resolve().parent / "ingest_guest.py"
    command = [str(ROOT / "run"), "lab", "--kernel", kernel, "--exact", "--timeout", "900", "--", "python3",
               str(script), str(build), str(rounds), *map(str, LAB_SIZES)]
    print(f"ingest: {rounds} rounds in the lab", file=sys.stderr, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False,
                          env=dict(os.environ, GPURX_TEST_NGINX=nginx_program()))
    if done.returncode != 0:
        sys.exit(f"ingest: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    samples: dict[str, BySize] = {}
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            sample = json.loads(line)
            samples.setdefault(sample["name"], {}).setdefault(sample["size"], []).append(sample["cpu"] * 1e9)
    return samples
