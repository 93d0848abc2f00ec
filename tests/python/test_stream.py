# SPDX-License-Identifier: Apache-2.0
"""TensorStream: batches, waiting for them, and its end. Transport copy on loopback."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from capsules import Taken
from conftest import address_of, is_waiting, once_waiting, soon
from cuda import Driver

import gpurx

Make = Callable[..., gpurx.TensorStream]


def send(
    address: str, rows: int, frame: int = 50, source: int = 0, before: Callable[[], object] = lambda: None
) -> None:
    """Row i has x = [i, i + 0.5] and y = -i. `before` is called before each frame."""
    with gpurx.TensorSender(address, source=source) as sender:
        for start in range(0, rows, frame):
            before()
            i = np.arange(start, min(start + frame, rows))
            sender.send(x=np.stack([i, i + 0.5], axis=1).astype(np.float32), y=-i.astype(np.int64))


def sending(address: str, *arguments: Any, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=send, args=(address, *arguments), kwargs=options)
    thread.start()
    return thread


def test_all_rows_in_batches(stream: Make) -> None:
    receives = stream(batch_size=64)
    thread = sending(address_of(receives), 1000)
    at = 0
    sizes = []
    for batch in receives:
        x, y = np.from_dlpack(batch.x), np.from_dlpack(batch["y"])
        i = np.arange(at, at + batch.rows)
        assert x.dtype == np.float32 and np.array_equal(x, np.stack([i, i + 0.5], axis=1))
        assert y.dtype == np.int64 and np.array_equal(y, -i)
        at += batch.rows
        sizes.append(batch.rows)
    thread.join()
    assert sizes == [64] * 15 + [40]
    assert receives.stats()["rows"] == 1000
    assert next(receives, None) is None


def test_a_batch_as_an_object(stream: Make) -> None:
    receives = stream(batch_size=10)
    sending(address_of(receives), 10).join()
    batch = next(receives)
    assert list(batch) == ["x", "y"] and len(batch) == 2 and "x" in batch and batch.rows == 10
    assert batch.x is batch["x"]
    assert "rows=10, x: gpurx.Tensor(shape=(10, 2), dtype=float32" in repr(batch)
    with pytest.raises(AttributeError, match="no tensor 'z'; it has x, y"):
        batch.z
    with pytest.raises(KeyError):
        batch["z"]


def test_batches_outlive_the_stream(stream: Make) -> None:
    receives = stream(batch_size=500)
    thread = sending(address_of(receives), 1000)
    kept = [np.from_dlpack(batch.y) for batch in receives]
    thread.join()
    receives.close()
    del receives
    assert np.array_equal(np.concatenate(kept), -np.arange(1000))


def test_many_sources_in_many_threads(stream: Make) -> None:
    receives = stream(batch_size=32, sources=3)
    senders = [sending(address_of(receives), 300, source=source) for source in range(3)]
    rows: list[int] = []

    def receive() -> None:
        for batch in receives:
            rows.extend((-np.from_dlpack(batch.y)).tolist())

    threads = [threading.Thread(target=receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in senders + threads:
        thread.join(60)
    assert sorted(rows) == sorted(list(range(300)) * 3)


def test_waiting_leaves_other_threads_their_time(stream: Make) -> None:
    receives = stream()
    steps = 0
    main = threading.get_ident()

    def count_and_send() -> None:
        nonlocal steps
        for _ in range(100):
            steps += is_waiting(main)
            time.sleep(0)
        send(address_of(receives), 64)

    # Nothing comes until it has had its time.
    thread = once_waiting(count_and_send)
    next(receives)
    thread.join()
    assert steps == 100


def test_control_c_while_waiting_loses_nothing(stream: Make) -> None:
    receives = stream(batch_size=64)
    main = threading.main_thread().ident
    assert main
    interrupts = once_waiting(lambda: signal.pthread_kill(main, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        next(receives)
    interrupts.join()
    # It did not wait for start_timeout, which would be an error of the stream's.
    thread = sending(address_of(receives), 128)
    assert [int(np.from_dlpack(batch.y)[0]) for batch in receives] == [0, -64]
    thread.join()


def test_a_batch_that_is_ready_when_control_c_comes_is_the_next(stream: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    receives = stream(batch_size=64)
    sending(address_of(receives), 128).join()

    def interrupted(operation: Any) -> Any:
        operation.wait()
        raise KeyboardInterrupt

    async def interrupted_in_loop(operation: Any) -> Any:
        interrupted(operation)

    with monkeypatch.context() as during:
        during.setattr("gpurx._stream.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(receives)
    assert int(np.from_dlpack(next(receives).y)[0]) == 0
    receives = stream(batch_size=64)
    sending(address_of(receives), 128).join()
    monkeypatch.setattr("gpurx._stream.wait_in_loop", interrupted_in_loop)

    async def receive() -> int:
        try:
            await anext(receives)
        except KeyboardInterrupt:
            pass
        return int(np.from_dlpack((await anext(receives)).y)[0])

    assert asyncio.run(receive()) == 0


def test_what_a_signal_raises_comes_through(stream: Make) -> None:
    class Told(Exception):
        pass

    def tell(*_: Any) -> None:
        raise Told

    receives = stream()
    before = signal.signal(signal.SIGUSR1, tell)
    try:
        main = threading.main_thread().ident
        assert main
        once_waiting(lambda: signal.pthread_kill(main, signal.SIGUSR1))
        with pytest.raises(Told):
            next(receives)
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---- asyncio ----


def test_async_for(stream: Make) -> None:
    receives = stream(batch_size=100)
    ticks = 0

    def wait_for_ticks() -> None:
        enough = ticks + 2
        assert soon(lambda: ticks >= enough)

    async def receive() -> int:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.001)
                ticks += 1

        ticking = asyncio.create_task(tick())
        rows = 0
        async for batch in receives:
            rows += batch.rows
        ticking.cancel()
        return rows

    # No frame comes until the event loop has gone on.
    thread = sending(address_of(receives), 500, before=wait_for_ticks)
    assert asyncio.run(receive()) == 500
    thread.join()
    assert ticks >= 20


def test_cancelling_a_task_loses_nothing(stream: Make) -> None:
    receives = stream(batch_size=64)

    async def receive() -> list[int]:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(receives), 0.1)
        thread = sending(address_of(receives), 128)
        first = [int(np.from_dlpack(batch.y)[0]) async for batch in receives]
        thread.join()
        return first

    assert asyncio.run(receive()) == [0, -64]


# ---- ends ----


def test_a_session_says_why_it_has_no_devmem() -> None:
    with gpurx.Session(size=8 << 20) as session:
        assert (session.transport, session.why_not_devmem) == ("copy", "no_interface")
        assert session.why_not_zcrx == "not_allowed"


def test_closing_ends_it_for_who_waits(stream: Make) -> None:
    receives = stream()
    once_waiting(receives.close)
    assert next(receives, None) is None
    assert "closed" in repr(receives)
    assert receives.addresses() and receives.stats()["batches"] == 0 and "copy: in use" in receives.explain()
    assert receives.errors() == [] and receives.session.closed
    with pytest.raises(gpurx.Error, match="it is closed"):
        receives.session.explain()


def test_closing_ends_a_loop_that_is_under_way(stream: Make) -> None:
    receives = stream(batch_size=5)
    sending(address_of(receives), 10).join()
    taken = []
    for batch in receives:
        taken.append(batch.rows)
        receives.close()
    assert taken == [5]

    receives = stream(batch_size=5)
    sending(address_of(receives), 10).join()

    async def receive() -> list[int]:
        taken = []
        async for batch in receives:
            taken.append(batch.rows)
            receives.close()
        return taken

    assert asyncio.run(receive()) == [5]


def test_a_closed_stream_is_an_error_to_whoever_takes_batches_of_it(stream: Make) -> None:
    receives = stream()
    state = receives.state_dict()
    receives.close()

    async def loop() -> list[gpurx.Batch]:
        return [batch async for batch in receives]

    async def take() -> gpurx.Batch:
        return await anext(receives)

    uses: list[Callable[[], object]] = [
        lambda: list(receives),
        lambda: next(receives),
        lambda: asyncio.run(loop()),
        lambda: asyncio.run(take()),
        lambda: receives.load_state_dict(state),
        lambda: receives.saved(state),
    ]
    for use in uses:
        with pytest.raises(gpurx.Error, match="<gpurx.TensorStream closed>: it is closed") as met:
            use()
        assert (met.value.category, met.value.code) == ("system", errno.EBADF)
    receives.close()


def cut(address: str) -> None:
    sender = gpurx.TensorSender(address, source=1)
    sender.send(x=np.zeros((10, 2), np.float32), y=np.zeros(10, np.int64))
    sender.flush()
    sender.abort()


def test_a_source_that_is_cut_is_an_error_at_the_end(stream: Make) -> None:
    receives = stream(sources=2, batch_size=100, reconnect_timeout=0.1)
    cut(address_of(receives))
    thread = sending(address_of(receives), 90)
    rows = 0
    with pytest.raises(gpurx.Error) as met:
        for batch in receives:
            rows += batch.rows
    thread.join()
    assert rows == 100
    assert met.value.category == "gpurx.ingest" and "source 1" in str(met.value)
    assert [source for source, _ in receives.errors()] == [1]
    assert next(receives, None) is None  # said once


def test_or_a_warning_or_nothing(stream: Make) -> None:
    receives = stream(sources=1, rank=0, reconnect_timeout=0.1, source_errors="warn")
    sender = gpurx.TensorSender(address_of(receives))
    sender.send(x=np.zeros(10, np.float32))
    sender.flush()
    sender.abort()
    with pytest.warns(RuntimeWarning, match="source 0"):
        assert [batch.rows for batch in receives] == [10]
    receives = stream(sources=1, reconnect_timeout=0.1, source_errors="ignore")
    sender = gpurx.TensorSender(address_of(receives))
    sender.send(x=np.zeros(10, np.float32))
    sender.flush()
    sender.abort()
    assert [batch.rows for batch in receives] == [10]


SENDS_AND_STOPS = """
import os, signal, sys
import numpy as np
import gpurx
sender = gpurx.TensorSender(sys.argv[1])
sender.send(x=np.zeros(10, np.float32))
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_sender_that_is_stopped_does_not_hang_the_trainer(stream: Make) -> None:
    receives = stream(batch_size=10, reconnect_timeout=0.1, stall_timeout=1.0)
    sender = subprocess.Popen([sys.executable, "-c", SENDS_AND_STOPS, address_of(receives)])
    try:
        assert next(receives).rows == 10
        with pytest.raises(gpurx.Error, match=r"source 0 at 127\.0\.0\.1:\d+.* no byte came for 1000 ms"):
            next(receives)
        assert sender.poll() is None
    finally:
        sender.kill()
        sender.wait()


def test_a_stray_probe_does_not_make_an_epoch_fail(stream: Make) -> None:
    receives = stream(batch_size=10)
    host, port = receives.addresses()[0]
    with socket.create_connection((host, port)) as probe:
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: trainer\r\nUser-Agent: probe\r\n\r\n")
        assert soon(lambda: len(receives.errors()) == 1)
        thread = sending(address_of(receives), 20)
        assert [batch.rows for batch in receives] == [10, 10]
    thread.join()
    [(source, error)] = receives.errors()
    assert source is None and 'it begins with "GET "' in str(error)


def test_connections_that_say_nothing_do_not_lock_out_a_sender(stream: Make) -> None:
    receives = stream(batch_size=10)
    host, port = receives.addresses()[0]
    idle: list[socket.socket] = []
    while len(idle) < 100:
        idle.append(socket.create_connection((host, port)))
        assert soon(lambda: receives.stats()["connections"] == len(idle))
    thread = sending(address_of(receives), 20)
    assert [batch.rows for batch in receives] == [10, 10]
    thread.join()
    for one in idle:
        one.close()


def test_a_sender_that_never_came_is_blamed_on_who_did(stream: Make) -> None:
    for patience in (0.5, 5.0, 50.0):  # more for a machine where they do not come in time
        receives = stream(start_timeout=patience)
        host, port = receives.addresses()[0]
        idle = [socket.create_connection((host, port)) for _ in range(3)]
        came = soon(lambda: receives.stats()["connections"] == 3 or bool(receives.errors()))
        if came and not receives.errors():
            break
    with pytest.raises(gpurx.Error, match="source 0: .*no connection came; open connections without a source so far: 3"):
        next(receives)
    for one in idle:
        one.close()


def test_a_second_epoch_of_one_stream_is_an_error_and_not_empty(stream: Make) -> None:
    receives = stream(batch_size=10)
    thread = sending(address_of(receives), 20)
    assert [batch.rows for batch in receives] == [10, 10]
    thread.join()
    assert next(receives, None) is None  # as of any iterator
    with pytest.raises(gpurx.Error, match="has ended.*end_epoch.*another TensorStream") as met:
        for _ in receives:
            pass
    assert met.value.operation == "iterate" and met.value.advice

    async def receive() -> None:
        async for _ in receives:
            pass

    with pytest.raises(gpurx.Error, match="has ended"):
        asyncio.run(receive())


def test_an_epoch_that_failed_is_not_followed_by_an_empty_one_either(stream: Make) -> None:
    receives = stream(start_timeout=0.1)
    for _ in range(2):
        with pytest.raises(gpurx.Error, match="source 0|has ended"):
            list(receives)


def test_no_sender_in_time(stream: Make) -> None:
    receives = stream(start_timeout=0.1)
    with pytest.raises(gpurx.Error, match="source 0"):
        next(receives)


# ---- arguments, and other processes ----


def test_arguments_that_make_no_sense(stream: Make) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        gpurx.TensorStream("127.0.0.1")
    with pytest.raises(ValueError, match="has no host to connect to"):
        gpurx.TensorStream(connect=":9000")
    with pytest.raises(ValueError, match="'tpu' is no place for memory"):
        gpurx.TensorStream("127.0.0.1:0", memory="tpu")
    for memory in ("gpu:", "gpu:-1", "cuda:x", "gpux", "gpu:0 "):
        with pytest.raises(ValueError, match="no place"):
            gpurx._native.parse_device(memory)
    assert [gpurx._native.parse_device(name) for name in ("host", "cpu", "gpu", "cuda:3")] == [-1, -1, 0, 3]
    with pytest.raises(ValueError, match="order"):
        stream(order="backwards")
    with pytest.raises(ValueError, match="source_errors"):
        stream(source_errors="panic")
    with pytest.raises(gpurx.Error) as met:
        gpurx.TensorStream("127.0.0.1:0", batch_size=0, transport="copy")
    assert met.value.category == "system" and met.value.advice


def test_a_sender_says_what_it_cannot_send(stream: Make) -> None:
    receives = stream()
    sender = gpurx.TensorSender(address_of(receives))
    with pytest.raises(TypeError, match="cannot be sent"):
        sender.send(x=np.array(["a"]))
    with pytest.raises(ValueError, match="same number of rows"):
        sender.send(x=np.zeros(3), y=np.zeros(4))
    with pytest.raises(ValueError, match="name"):
        sender.send(a_name_that_is_too_long=np.zeros(3))
    sender.close()
    with pytest.raises(ValueError, match="closed"):
        sender.send(x=np.zeros(3))
    assert next(receives, None) is None


@pytest.mark.parametrize("which", ["start_timeout", "reconnect_timeout", "stall_timeout"])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, -0.001, 1e300])
def test_times_that_are_none(which: str, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{which} is a number of seconds, not"):
        gpurx.TensorStream("127.0.0.1:0", transport="copy", **{which: seconds})


def test_an_interface_that_does_not_exist_is_an_error_and_not_a_copy(tmp_path: Path) -> None:
    for transport in ("automatic", "devmem", "copy"):
        with pytest.raises(gpurx.Error, match="find interface eth77: No such device; interfaces in this network namespace: .*lo") as met:
            gpurx.TensorStream("127.0.0.1:0", interface="eth77", transport=transport)
        assert (met.value.category, met.value.code, met.value.object) == ("system", errno.ENODEV, "eth77")
    with gpurx.Session(interface="lo", state_directory=tmp_path) as session:
        assert session.transport == "copy"


def test_a_forked_process_is_refused_and_does_no_harm(stream: Make) -> None:
    receives = stream(batch_size=10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            next(receives)
            text = "no error"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        receives.close()
        del receives
        os.write(write, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read, 10000).decode()
    assert text.startswith("Error:") and "forked" in text and "num_workers=0" in text
    thread = sending(address_of(receives), 10)
    assert [batch.rows for batch in receives] == [10]
    thread.join()


def test_it_is_not_sent_to_another_process(stream: Make) -> None:
    with pytest.raises(TypeError, match="num_workers=0"):
        pickle.dumps(stream())


@pytest.mark.parametrize("way", ["at the end", "waiting in a thread", "threads at work"])
def test_python_ends_with_everything_open(way: str) -> None:
    script = f"""
import gpurx, sys, threading, time
gpurx._native.warn_of_leaks({way == "at the end"})
stream = gpurx.TensorStream("127.0.0.1:0", transport="copy", size=4 << 20)
other = gpurx.Session(transport="copy", size=1 << 20)
kept = gpurx._native.tensor_of_bytes(bytes(100), "uint8", [100])
at_work = []
def work():
    sender = gpurx._native.Sender("127.0.0.1:1", 0, False, b"", 0.0, 0.0, None, 1)
    while True:
        sender.abort()
        at_work.append(threading.get_ident())
def is_waiting(thread):
    frame = sys._current_frames().get(thread.ident)
    while frame and frame.f_code.co_name != "_wait_for":
        frame = frame.f_back
    return frame is not None
targets = {{"waiting in a thread": [lambda: next(stream, None)], "threads at work": [work] * 8}}
for target in targets.get({way!r}, []):
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    while not (is_waiting(thread) or thread.ident in at_work):
        time.sleep(0.01)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_gpu_is_missing() -> None:
    script = """
import gpurx
try:
    gpurx.TensorStream("127.0.0.1:0", memory="gpu:0")
except gpurx.Error as error:
    print(error.category, error.code, error.operation, "|", error.advice)
"""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=60)
    if not done.stdout:
        pytest.skip("there is a GPU")
    assert done.stdout.startswith("gpurx 3 ")
    assert "device_memory::on_host" in done.stdout


# ---- on a GPU ----


def test_batches_on_a_gpu(gpu: Driver, stream: Make) -> None:
    receives = stream(memory="gpu:0", batch_size=100)
    thread = sending(address_of(receives), 1000)
    own = gpu.stream()
    at = 0
    for batch in receives:
        taken = Taken(batch.y.__dlpack__(stream=own))
        assert taken.device == (2, 0)
        assert gpu.read(taken.data, batch.y.nbytes, own) == (-np.arange(at, at + 100)).astype(np.int64).tobytes()
        taken.let_go()
        at += batch.rows
    thread.join()
    assert at == 1000


@pytest.mark.parametrize("consumers", [1, 2])
def test_a_batch_is_as_it_was_for_a_consumer_that_is_late(gpu: Driver, stream: Make, consumers: int) -> None:
    receives = stream(memory="gpu:0", batch_size=10, queue_depth=1)
    thread = sending(address_of(receives), 2000, frame=10)
    streams = [gpu.stream() for _ in range(consumers)]
    batch = next(receives)
    size = batch.y.nbytes
    all_taken = [Taken(batch.y.__dlpack__(stream=one)) for one in streams]
    for one in streams:
        gpu.finish(one)
    gpu.hold(streams[-1])
    reads = [gpu.read_later(batch.y.data_ptr, size, one) for one in streams]
    for taken in all_taken:
        taken.let_go()
    del batch
    # Meanwhile others arrive, in its memory too. With a consumer that stands still they wait, before the first or the second.
    once_waiting(gpu.let_go)
    for _ in range(50):
        next(receives)
    for read in reads:
        assert read() == (-np.arange(10)).astype(np.int64).tobytes()
    assert sum(batch.rows for batch in receives) == 2000 - 51 * 10
    thread.join()
