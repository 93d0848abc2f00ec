# SPDX-License-Identifier: Apache-2.0
"""The fixture of all tests here, a plug-in of pytest's: beside tests/python's conftest, whose name it cannot have."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
import tls
from ranges import Server, running


class Serve(Protocol):
    def __call__(self, directory: Path, identity: tuple[Path, Path] | None = None) -> Server: ...


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves what is in a directory by now: over https where it is given a certificate and its key."""
    with ExitStack() as stack:

        def start(directory: Path, identity: tuple[Path, Path] | None = None) -> Server:
            if identity:
                server = stack.enter_context(tls.serving(identity))
            else:
                server = Server()
                stack.enter_context(running(server))
            server.files = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
            return server

        yield start


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Puts what is in a directory on an S3 server that this process' environment names, and gives its s3:// URL."""
    started: list[subprocess.Popen[str]] = []
    python = f"{os.environ['GPURX_TEST_PYTHON']}/bin/python"
    program = Path(__file__).with_name("bucket.py")

    def start(directory: Path) -> str:
        # By itself: what this process has on its path is for another Python.
        command = [python, "-I", str(program), str(directory), "a prefix/"]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        endpoint = started[-1].stdout.readline().strip()
        assert endpoint, "the S3 server does not serve; what it said is above"
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        return "s3://models/a prefix/"

    yield start
    for one in started:
        one.communicate(timeout=30)
