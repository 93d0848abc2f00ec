# SPDX-License-Identifier: Apache-2.0
"""gpurx.ray: rows of Ray's workers reach the streams of a training job once each, also of workers that were killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import gpurx
import gpurx.ray

Make = Callable[..., gpurx.TensorStream]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = 2000  # bytes: a task sends while it still computes
    yield
    ray.shutdown()


# Seconds that a task, of Ray on a busy machine, may take to begin, or to begin again. Streams that end sooner fail the write.
PATIENCE = {"start_timeout": 600.0, "reconnect_timeout": 600.0}


class Trainer:
    """Ranks that keep what they get."""

    def __init__(self, stream: Make, ranks: int, sources: int, **options: Any) -> None:
        self.streams = [stream(sources=sources, rank=r, world_size=ranks, **PATIENCE | options) for r in range(ranks)]
        self.addresses = ["{}:{}".format(*one.addresses()[0]) for one in self.streams]
        self.batches: list[list[gpurx.Batch]] = [[] for _ in self.streams]
        self.errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._consume, args=(r,)) for r in range(ranks)]
        for thread in self._threads:
            thread.start()

    def _consume(self, rank: int) -> None:
        try:
            self.batches[rank].extend(self.streams[rank])
        except gpurx.Error as error:
            self.errors.append(error)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """Of all ranks, once all is there."""
        for thread in self._threads:
            thread.join(600)
            assert not thread.is_alive()
        assert not self.errors and not any(one.errors() for one in self.streams)
        return np.concatenate([batch[name].numpy() for batches in self.batches for batch in batches])


def test_a_worker_that_is_killed_loses_no_row_and_repeats_none(stream: Make, tmp_path: Path) -> None:
    trainer = Trainer(stream, ranks=2, sources=8)
    mark = tmp_path / "killed"

    def prepare(rows: dict[str, Any]) -> dict[str, Any]:
        if 600 in rows["id"] and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        return {"id": rows["id"], "x": np.stack([rows["id"] * 2.0] * 3, axis=1).astype(np.float32)}

    # Six tasks of eight sources: two have nothing to send, and end all the same.
    dataset = ray.data.range(2000).repartition(6).map_batches(prepare, batch_size=16)
    dataset.write_datasink(gpurx.ray.TensorSink(trainer.addresses, sources=8, rows_per_frame=10))
    numbers = trainer.column("id")
    assert sorted(numbers.tolist()) == list(range(2000))
    assert np.array_equal(trainer.column("x"), np.stack([numbers * 2.0] * 3, axis=1))
    assert mark.exists()
    # It was killed when it had sent some: eight sources, and one of them came again.
    assert sum(one.stats()["connections"] for one in trainer.streams) == 9
    assert all(one.stats()["rows"] > 0 for one in trainer.streams)


@contextlib.contextmanager
def torchrun(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The training job of the samples, of two ranks, and where they listen."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
        other.bind(("127.0.0.1", port + 1))
    train = Path(__file__).parents[2] / "samples/ray_ingest/train.py"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(train), f"--listen=127.0.0.1:{port}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as job:
        try:
            yield job, [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


def test_a_training_job_of_two_ranks_has_every_row_of_a_killed_worker_once(tmp_path: Path) -> None:
    mark = tmp_path / "killed"

    def prepare(rows: dict[str, Any]) -> dict[str, Any]:
        if 1500 in rows["id"] and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), 9)
        x = np.repeat(rows["id"] / 4000, 32).reshape(-1, 32).astype(np.float32)
        return {"id": rows["id"], "x": x, "y": x.sum(axis=1)}

    with torchrun("--sources=8") as (job, addresses):
        dataset = ray.data.range(4000).repartition(8).map_batches(prepare, batch_size=16)
        dataset.write_datasink(gpurx.ray.TensorSink(addresses, sources=8, rows_per_frame=10, connect_timeout=120))
        said, _ = job.communicate(timeout=300)
    assert job.returncode == 0 and mark.exists()
    assert said.startswith(f"4000 rows, the sum of their numbers {sum(range(4000))}, ") and said.endswith(" 2 ranks\n")


def test_columns_are_chosen_and_named(stream: Make) -> None:
    trainer = Trainer(stream, ranks=1, sources=2, secret="known to both of them")
    dataset = ray.data.range_tensor(100, shape=(4, 4)).repartition(2)
    dataset = dataset.add_column("label", lambda rows: np.ones(len(rows), np.int8))
    columns = {"data": "image", "label": "y"}
    sink = gpurx.ray.TensorSink(trainer.addresses[0], sources=2, columns=columns, rows_per_frame=7, secret="known to both of them")
    dataset.write_datasink(sink)
    images = trainer.column("image")
    assert images.shape == (100, 4, 4) and sorted(images[:, 0, 0].tolist()) == list(range(100))
    assert set(trainer.batches[0][0]) == {"image", "y"} and trainer.column("y").sum() == 100


def test_more_tasks_than_sources_are_refused_by_name(stream: Make) -> None:
    trainer = Trainer(stream, ranks=1, sources=2)
    with pytest.raises(Exception, match=r"exceeds the 2 sources of the streams; repartition\(2\) the dataset"):
        ray.data.range(100).repartition(4).write_datasink(gpurx.ray.TensorSink(trainer.addresses, sources=2))
    trainer.streams[0].close()


def test_a_second_write_with_one_sink_is_an_error(stream: Make) -> None:
    trainer = Trainer(stream, ranks=1, sources=1)
    sink = gpurx.ray.TensorSink(trainer.addresses, sources=1)
    ray.data.range(10).repartition(1).write_datasink(sink)
    assert sorted(trainer.column("id").tolist()) == list(range(10))
    with pytest.raises(Exception, match="a TensorSink is for one write"):
        ray.data.range(10).repartition(1).write_datasink(sink)


def test_a_second_sink_on_the_same_streams_is_no_silent_loss(stream: Make) -> None:
    trainer = Trainer(stream, ranks=1, sources=2)

    class Task:
        task_idx = 0

    block = ray.get(ray.data.range(10).repartition(1).to_arrow_refs()[0])
    gpurx.ray.TensorSink(trainer.addresses, sources=2).write([block], Task())
    with pytest.raises(ConnectionRefusedError, match="another sender of this number has sent to it"):
        gpurx.ray.TensorSink(trainer.addresses, sources=2).write([block], Task())
    gpurx.TensorSender(trainer.addresses[0], source=1).close()
    with pytest.raises(AssertionError):
        trainer.column("id")
    assert trainer.errors[0].code == gpurx.IngestErrorCode.WRONG_SOURCE
    assert sorted(trainer.batches[0][0]["id"].numpy().tolist()) == list(range(10))


def test_nobody_who_listens_is_named() -> None:
    sink = gpurx.ray.TensorSink("127.0.0.1:9", sources=1, connect_timeout=0.5)
    refusal = "connect source 0 to 127.0.0.1:9: .*no connection within 0.5 s: start gpurx.TensorStream"
    with pytest.raises(Exception, match=refusal):
        ray.data.range(10).repartition(1).write_datasink(sink)


def test_frames_do_not_depend_on_blocks() -> None:
    rows = {"x": np.arange(100).reshape(50, 2), "y": np.arange(50)}

    def frames(*cuts: int) -> list[list[int]]:
        blocks = zip((0, *cuts), (*cuts, 50), strict=True)
        made = gpurx.ray._frames(({name: one[a:b] for name, one in rows.items()} for a, b in blocks), 8)
        found = list(made)
        assert all(np.array_equal(one["x"][:, 0], 2 * one["y"]) for one in found)
        return [one["y"].tolist() for one in found]

    whole = frames()
    assert [len(one) for one in whole] == [8] * 6 + [2] and sum(whole, []) == list(range(50))
    for cuts in ((1,), (8, 16), (7, 9, 30), (25, 49), tuple(range(1, 50))):
        assert frames(*cuts) == whole, cuts
