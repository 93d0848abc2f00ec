# SPDX-License-Identifier: Apache-2.0
"""The commands of samples/README.md that need torch, vLLM or Ray."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).parents[2]


def test_the_commands_of_the_samples_run() -> None:
    command = [sys.executable, str(REPO / "tests/samples/readme_test.py"), "--ml"]
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": str(min(os.sched_getaffinity(0))), "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2400)
    assert done.returncode == 0, done.stdout + done.stderr
    # Ray's and the ranks': every row once.
    assert f"20000 rows, the sum of their numbers {sum(range(20_000))}, " in done.stdout
    assert "grad_fn=<SumBackward0>" in done.stdout
    assert re.search(r"it goes on with \[(\d+, ){7}\d+\]", done.stdout)
