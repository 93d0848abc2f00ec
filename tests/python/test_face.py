# SPDX-License-Identifier: Apache-2.0
"""What people see of the package: notebooks, the command line, `async with`, paths."""

from __future__ import annotations

import asyncio
import errno
import importlib.metadata
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from conftest import address_of

import gpurx
import gpurx.numpy
from gpurx._native import tensor_of_bytes

Make = Callable[..., gpurx.TensorStream]


def weights_of(tensors: dict[str, gpurx.Tensor]) -> gpurx.Weights:
    weights = gpurx.Weights(tensors)
    weights.url = "http://127.0.0.1/<model>"
    return weights


def test_weights_are_shown_in_short_and_in_notebooks_as_a_table() -> None:
    weights = weights_of({f"layer<{i}>": tensor_of_bytes(bytes(1 << 20), "uint8", [1024, 1024]) for i in range(3)})
    assert repr(weights) == "<gpurx.Weights: 3 tensors, 3.0 MiB, from http://127.0.0.1/<model>>"
    html = weights._repr_html_()
    assert html.count("<tr>") == 4 and "layer&lt;1&gt;" in html and "&lt;model&gt;" in html and "<model>" not in html
    assert "<td>uint8</td><td>(1024, 1024)</td><td>1.0 MiB</td><td>cpu</td>" in html
    many = weights_of({str(i): tensor_of_bytes(bytes(1), "uint8", [1]) for i in range(1000)})
    assert many._repr_html_().count("<tr>") == 101 and "900 more" in many._repr_html_()
    assert repr(weights_of({})).startswith("<gpurx.Weights: 0 tensors, 0 bytes")


def test_a_batch_in_a_notebook(stream: Make) -> None:
    receives = stream(batch_size=4)
    with gpurx.TensorSender(address_of(receives), source=0) as sender:
        assert repr(sender) == f"<gpurx.TensorSender of source 0 to {address_of(receives)}: 0 frames, 0 acknowledged>"
        sender.send(x=np.zeros((4, 2), np.float32))
        assert "1 frames" in repr(sender)
    assert "closed" in repr(sender)
    html = next(receives)._repr_html_()
    assert "4 rows" in html and "<td>x</td><td>float32</td><td>(4, 2)</td><td>32 bytes</td><td>cpu</td>" in html


def test_async_with_closes_a_stream(stream: Make) -> None:
    async def receive() -> int:
        rows = 0
        async with stream(batch_size=4) as receives:
            with gpurx.TensorSender(address_of(receives)) as sender:
                sender.send(x=np.zeros(8))
            async for batch in receives:
                rows += batch.rows
        assert "closed" in repr(receives) and receives.session.closed
        return rows

    assert asyncio.run(receive()) == 8


def test_a_path_is_taken_where_one_can_be(tmp_path: Path) -> None:
    with gpurx.Session(transport="copy", size=1 << 20, state_directory=tmp_path):
        pass
    safetensors.numpy.save_file({"a": np.arange(3), "b": np.arange(4)}, tmp_path / "model.safetensors")
    weights = gpurx.load_safetensors(tmp_path / "model.safetensors", names=["b"])
    assert np.array_equal(weights["b"], np.arange(4)) and len(weights) == 1
    assert (weights.transport, weights.url) == ("file", str(tmp_path / "model.safetensors"))
    with pytest.raises(gpurx.Error, match="absent.*No such file") as met:
        gpurx.load_safetensors(tmp_path / "absent")
    assert (met.value.category, met.value.code) == ("system", errno.ENOENT)


def open_in_a_loop(place: str) -> None:
    async def load() -> None:
        async with gpurx.async_safe_open(place, "np"):
            pass

    asyncio.run(load())


@pytest.mark.parametrize(
    "load", [gpurx.load_safetensors, gpurx.numpy.load_file, lambda place: gpurx.safe_open(place, "np"), open_in_a_loop]
)
def test_a_file_that_cannot_be_opened_raises_what_open_raises(load: Callable[[str], object], tmp_path: Path) -> None:
    for name in ("absent", "absent.safetensors.index.json", "absent/model"):
        with pytest.raises(FileNotFoundError, match="No such file") as met:
            load(str(tmp_path / name))
        assert isinstance(met.value, gpurx.NotFound)
        assert (met.value.errno, met.value.filename) == (errno.ENOENT, str(tmp_path / name))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        load(str(tmp_path / "file/model"))
    (tmp_path / "model.json").mkdir()
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        gpurx.load_safetensors(tmp_path)


def test_a_file_without_permission_raises_what_open_raises() -> None:
    """Root may read every file, so the process that reads is none."""
    program = """
import os, pickle, sys
import gpurx, gpurx._error
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    gpurx.load_safetensors(sys.argv[1])
except PermissionError as error:
    again = pickle.loads(pickle.dumps(error))
    print(type(again).__name__, again.errno, again.filename, str(again) == str(error))
"""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        place = Path(directory) / "model"
        place.touch(0)
        done = subprocess.run([sys.executable, "-c", program, str(place)], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"Forbidden {errno.EACCES} {place} True\n", done.stderr


def test_files_of_a_directory_are_listed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b", "a b", "sub/c"):
        (tmp_path / name).touch()
    assert gpurx.list_files(tmp_path) == gpurx.list_files(f"file://{tmp_path}/") == ["a b", "b"]
    assert gpurx.list_files(f"{tmp_path}/", recursive=True) == ["a b", "b", "sub/c"]
    with pytest.raises(FileNotFoundError):
        gpurx.list_files(tmp_path / "absent")
    with pytest.raises(NotADirectoryError):
        gpurx.list_files(tmp_path / "b")
    with pytest.raises(gpurx.Error, match="have no list"):
        gpurx.list_files("http://127.0.0.1:1/model/")


def test_the_version() -> None:
    assert gpurx.__version__ == importlib.metadata.version("gpurx")
    done = subprocess.run([sys.executable, "-m", "gpurx", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"gpurx {gpurx.__version__}\n")


def test_which_transport_there_would_be() -> None:
    run = [sys.executable, "-m", "gpurx"]
    done = subprocess.run([*run, "explain"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "copy: in use" in done.stdout
    done = subprocess.run([*run, "explain", "--interface", "eth77"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("error: find interface eth77")
    done = subprocess.run([*run, "explode"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "invalid choice" in done.stderr
