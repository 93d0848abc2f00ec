# SPDX-License-Identifier: Apache-2.0
"""First contact with the package: tracebacks, messages about arguments, similar names, and progress on a terminal."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from ranges import Server, running

import gpurx
import gpurx.numpy
from gpurx import _progress
from gpurx._progress import Line

PACKAGE = str(Path(gpurx.__file__).parent)
NAMES = ["layer.0.weight", "layer.1.weight", "layer.0.bias", "norm"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({name: np.arange(64) for name in NAMES}, path)
    return str(path)


async def in_a_loop(model: str) -> None:
    async with gpurx.async_safe_open(model, "np") as file:
        await file.get_tensor("absent")


FAILURES: dict[str, Callable[[str], object]] = {
    "get_tensor": lambda model: gpurx.safe_open(model, "np").get_tensor("absent"),
    "get_slice": lambda model: gpurx.safe_open(model, "np").get_slice("absent"),
    "prefetch": lambda model: gpurx.safe_open(model, "np").prefetch(["absent"]),
    "into": lambda model: gpurx.safe_open(model, "np").get_tensors(into={}),
    "names": lambda model: gpurx.load_safetensors(model, names=["absent"]),
    "a missing file": lambda model: gpurx.numpy.load_file(model + "-"),
    "a missing directory": lambda model: gpurx.list_files(model + "-/"),
    "a loop": lambda model: asyncio.run(in_a_loop(model)),
    "an option": lambda model: gpurx.safe_open(model, "np", headers=["a"]),
    "a device": lambda model: gpurx.safe_open(model, "np", "tpu"),
    "a framework": lambda model: gpurx.safe_open(model, "tensorflow"),
    "fetch_model": lambda model: gpurx.fetch_model(model + "-/", model + "-"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_traceback_has_the_call_and_at_most_two_frames_behind_it(failure: str, model: str) -> None:
    with pytest.raises(Exception) as met:
        FAILURES[failure](model)
    frames = [one for one in traceback.extract_tb(met.value.__traceback__) if one.filename.startswith(PACKAGE)]
    assert 1 <= len(frames) <= 3, [one.name for one in frames]  # the public call, and two
    last = traceback.format_exception_only(met.value)[-1]
    assert not last.startswith("gpurx._") and "gpurx._native" not in last, last


def test_errors_have_public_names(model: str) -> None:
    for of in (gpurx.Error, gpurx.NotFound, gpurx.Forbidden):
        assert (of.__module__, of.__qualname__) == ("gpurx", of.__name__)
        assert pickle.loads(pickle.dumps(of)) is of
    with pytest.raises(IsADirectoryError) as met:
        gpurx.load_safetensors(Path(model).parent)
    assert traceback.format_exception_only(met.value)[-1].startswith("gpurx.Error: ")


def test_an_error_of_the_program_keeps_its_frames(model: str) -> None:
    def fails(done: int, total: int) -> None:
        raise ValueError("of the program")

    with pytest.raises(ValueError, match="of the program") as met:
        gpurx.load_safetensors(model, progress=fails)
    assert traceback.extract_tb(met.value.__traceback__)[-1].name == "fails"


def test_similar_names_are_proposed(model: str) -> None:
    with gpurx.safe_open(model, "np") as file:
        for call in (file.get_tensor, file.get_slice, lambda name: gpurx.load_safetensors(model, names=[name])):
            with pytest.raises(KeyError, match=r"has no such tensor; did you mean 'layer\.0\.weight'") as met:
                call("layer.0.weigth")
            assert isinstance(met.value, gpurx.Error)
            again = pickle.loads(pickle.dumps(met.value))
            assert isinstance(again, KeyError) and str(again) == str(met.value)
        with pytest.raises(KeyError, match="no such tensor$"):
            file.get_tensor("quite another")


WRONG: list[tuple[Callable[..., object], dict[str, Any]]] = [
    (gpurx.Session, dict(size="1")), (gpurx.Session, dict(size=-1)), (gpurx.Session, dict(interface=5)),
    (gpurx.Session, dict(transport=None)), (gpurx.Session, dict(allow_zcrx="no")), (gpurx.Session, dict(rx_queues=1 << 32)),
    (gpurx.Session, dict(max_flows=1.5)), (gpurx.Session, dict(rx_page_size=None)), (gpurx.Session, dict(state_directory=5)),
    (gpurx.TensorStream, dict(sources="1")), (gpurx.TensorStream, dict(rank=-1)), (gpurx.TensorStream, dict(batch_size=None)),
    (gpurx.TensorStream, dict(world_size=2.0)), (gpurx.TensorStream, dict(drop_last=1)), (gpurx.TensorStream, dict(queue_depth="")),
    (gpurx.TensorStream, dict(shuffle="")), (gpurx.TensorStream, dict(seed=1 << 64)), (gpurx.TensorStream, dict(order=None)),
    (gpurx.TensorStream, dict(acknowledge=1)), (gpurx.TensorStream, dict(start_timeout="1")), (gpurx.TensorStream, dict(session=1)),
    (gpurx.TensorStream, dict(reconnect_timeout=None)), (gpurx.TensorStream, dict(stall_timeout=[])),
    (gpurx.TensorSender, dict(source="1")), (gpurx.TensorSender, dict(resume=2)), (gpurx.TensorSender, dict(reconnect="")),
    (gpurx.TensorSender, dict(connect_timeout=None)), (gpurx.TensorSender, dict(timeout="1")), (gpurx.TensorSender, dict(window=0.5)),
    *[
        (load, {name: value})
        for load in (gpurx.safe_open, gpurx.load_safetensors)
        for name, value in dict(
            flows="4", chunk_size=None, min_speed=1.5, attempts=-1, keep_connections="yes", timeout="3", deadline=None,
            checksum=1, size="1", interface=1, transport=1, session="1",
        ).items()
    ],
]  # fmt: skip


@pytest.mark.parametrize("call, wrong", WRONG)
def test_a_wrong_argument_is_named(call: Callable[..., object], wrong: dict[str, Any], model: str) -> None:
    """As in Python, and not by a signature of the extension."""
    (name,) = wrong
    place = {gpurx.Session: "host", gpurx.TensorStream: "127.0.0.1:0", gpurx.TensorSender: "127.0.0.1:1"}.get(call, model)  # type: ignore[call-overload]
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be ") as met:
        call(place, **wrong)
    assert "incompatible function arguments" not in str(met.value)


def test_numbers_of_numpy_are_numbers(model: str) -> None:
    with gpurx.safe_open(model, "np", flows=np.int64(2), timeout=np.float32(30), chunk_size=np.uint32(1 << 16)) as file:
        assert file.get_tensor("norm")[3] == 3


# ---- progress ----


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_appears_after_two_seconds_with_rate_and_rest() -> None:
    clock, terminal = Clock(), Terminal()
    line = Line("http://10.77.0.2/llama/model.safetensors", terminal, clock)
    for second in (0, 1, 1.9):
        clock.now = 100 + second
        line(int(second * 1024**2), 10 * 1024**2)
    assert terminal.getvalue() == ""
    clock.now = 104
    line(4 * 1024**2, 10 * 1024**2)
    assert terminal.getvalue() == (
        "\rmodel.safetensors [########            ]  40% 4.0 MiB of 10.0 MiB, 1.0 MiB/s, 0:06 left\x1b[K"
    )
    clock.now = 104.05
    line(4 * 1024**2, 10 * 1024**2)  # too soon for another
    assert terminal.getvalue().count("\r") == 1
    clock.now = 110
    line(10 * 1024**2, 10 * 1024**2)
    line.close()
    assert terminal.getvalue().endswith("100% 10.0 MiB of 10.0 MiB, 1.0 MiB/s, 0:10\x1b[K\n")


def test_a_short_load_draws_nothing() -> None:
    clock, terminal = Clock(), Terminal()
    line = Line("model", terminal, clock)
    line(5, 5)
    line.close()
    assert terminal.getvalue() == ""


LOADS: list[Callable[[str, Any], object]] = [
    lambda url, progress: gpurx.load_safetensors(url, progress=progress, transport="copy"),
    lambda url, progress: gpurx.numpy.load_file(url, progress=progress, transport="copy"),
    lambda url, progress: dict(iter(gpurx.safe_open(url, "np", progress=progress, transport="copy"))),
]


@pytest.mark.parametrize("load", LOADS)
def test_loads_draw_on_a_terminal_only(load: Callable[[str, Any], object], model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No load here takes two seconds, so the line needs none."""
    monkeypatch.setattr(_progress, "_SECONDS", 0.0)

    def drawn(to: io.StringIO, progress: Any = None) -> str:
        monkeypatch.setattr(sys, "stderr", to)
        with running(server := Server()):
            server.files["model.safetensors"] = Path(model).read_bytes()
            load(server.url("model.safetensors"), progress)
        return to.getvalue()

    assert "model.safetensors [####################] 100%" in drawn(Terminal())
    assert drawn(io.StringIO()) == "" and drawn(Terminal(), False) == ""
    assert drawn(Terminal(), lambda done, total: None) == ""
    monkeypatch.setenv("GPURX_PROGRESS", "0")
    assert drawn(Terminal()) == ""


def test_a_process_without_stderr_loads(model: str) -> None:
    program = "import sys, gpurx; sys.stderr = None; print(len(gpurx.load_safetensors(sys.argv[1])))"
    done = subprocess.run([sys.executable, "-c", program, model], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == f"{len(NAMES)}\n", done.stderr
