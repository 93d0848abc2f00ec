# SPDX-License-Identifier: Apache-2.0
"""What all tests of the Python package use; and the closing lines that tests/run.sh counts."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import cuda  # noqa: E402
import gpurx  # noqa: E402
from gpurx import _wait  # noqa: E402
from gpurx._native import tensor_of_bytes  # noqa: E402


@pytest.fixture
def gpu() -> Iterator[cuda.Driver]:
    """A GPU, or the fake driver's."""
    try:
        driver = cuda.Driver()
    except OSError as error:
        pytest.skip(f"no CUDA driver: {error}")
    yield driver
    driver.let_go()


@pytest.fixture
def fake_gpu(gpu: cuda.Driver) -> Iterator[cuda.Driver]:
    if not gpu.is_fake:
        pytest.skip("needs the fake CUDA driver, which can be told to stand still")
    # The library's threads give memory back: what the test before this one had may just be going.
    kept = kept_by_gpus()
    assert soon(lambda: gpu.mappings() == kept), f"{gpu.mappings() - kept} pieces of memory are left of an earlier test"
    yield gpu
    gpu.reset()


@functools.cache
def kept_by_gpus() -> int:
    """A GPU that has gathered keeps its kernels' tables till the process ends. So that none begins to in a test, all do here."""
    places = ("gpu:0", "gpu:1")
    for place in places:
        tensor_of_bytes(bytes(4096), "uint8", [4096], place).__dlpack__(stream=-1, copy=True)
    return len(places)


@pytest.fixture
def stream() -> Iterator[Callable[..., gpurx.TensorStream]]:
    """Makes streams on loopback, and closes them."""
    made: list[gpurx.TensorStream] = []

    def make(**options: Any) -> gpurx.TensorStream:
        options.setdefault("start_timeout", 60.0)
        made.append(gpurx.TensorStream("127.0.0.1:0", transport="copy", size=8 << 20, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def address_of(stream: gpurx.TensorStream) -> str:
    host, port = stream.addresses()[0]
    return f"{host}:{port}"


def program(name: str) -> str:
    """The path of a sample, which run.sh has built."""
    path = Path(__file__).parents[2] / "build" / "test" / "samples" / name / name
    if not path.exists():
        pytest.skip(f"{name} is not built")
    return str(path)


def soon(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Waits for what another thread does. The limit ends what hangs."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def is_waiting(thread: int | None) -> bool:
    """Whether it waits for the library, in a call that has no event loop."""
    frame = sys._current_frames().get(thread or 0)
    while frame and frame.f_code is not _wait._wait_for.__code__:
        frame = frame.f_back
    return frame is not None


def once_waiting(does: Callable[[], object]) -> threading.Thread:
    """Does it in another thread, once this one waits for the library."""
    waits = threading.get_ident()

    def run() -> None:
        # Between the two looks the one that waits can go on to where it does so without the interpreter's lock.
        if soon(lambda: is_waiting(waits)) and soon(lambda: is_waiting(waits)):
            does()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """As tests/runner/tally.py reads it."""
    stats = terminalreporter.stats
    failed = stats.get("failed", []) + stats.get("error", [])
    skipped = stats.get("skipped", [])
    terminalreporter.ensure_newline()
    for report in failed:
        terminalreporter.write_line(f"FAIL {report.nodeid}")
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"SKIP {report.nodeid}: {reason.removeprefix('Skipped: ')}")
    terminalreporter.write_line(f"{len(stats.get('passed', []))} passed, {len(failed)} failed, {len(skipped)} skipped")
