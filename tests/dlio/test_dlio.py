# SPDX-License-Identifier: Apache-2.0
"""DLIO's own benchmark with gpurx as its storage library: of a bucket that counts what is read of it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from dlio_benchmark.common.enumerations import DatasetType, MPIState, StorageType
from dlio_benchmark.utils.config import ConfigArguments
from dlio_benchmark.utils.utility import DLIOMPI
from ranges import Handler, Server, running

import gpurx
import gpurx.dlio

TRAIN = "data/unet3d/train/"
OBJECTS = 16
EPOCHS = 2
EACH = [
    "workload.workflow.checkpoint=False",
    "workload.dataset.data_folder=data/unet3d",
    f"workload.dataset.num_files_train={OBJECTS}",
    "workload.dataset.record_length_stdev=0",
    "workload.storage.storage_type=s3",
    "workload.storage.storage_root=models",
    "workload.reader.reader_classname=gpurx.dlio.Reader",
    "workload.reader.batch_size=4",
    f"workload.train.epochs={EPOCHS}",
    "workload.train.computation_time=0.01",
]


class S3Handler(Handler):
    server: Bucket

    def do_GET(self) -> None:
        if self.path.startswith("/models?") or self.path.startswith("/models/?"):
            self.list_all()
            return
        super().do_GET()

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Length":
            self.server.sent.append((self.path[1:], int(value)))
        super().send_header(keyword, value)

    def list_all(self) -> None:
        prefix = parse_qs(urlsplit(self.path).query)["prefix"][0]
        keys = [key for key in sorted(name.removeprefix("models/") for name in self.server.files) if key.startswith(prefix)]
        rows = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
        text = f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Bucket(Server):
    def __init__(self) -> None:
        super().__init__()
        self.RequestHandlerClass = S3Handler
        self.sent: list[tuple[str, int]] = []

    def read(self) -> dict[str, int]:
        """Bytes of each object."""
        total: Counter[str] = Counter()
        for name, size in list(self.sent):
            total[name] += size
        return {name: total[name] for name in self.files}


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    one = Bucket()
    for i in range(OBJECTS):
        one.files[f"models/{TRAIN}img_{i:02d}.npz"] = os.urandom(300_000 + i)
    known = {
        "AWS_ENDPOINT_URL": one.url("").rstrip("/"),
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    with running(one):
        yield one


@pytest.fixture
def arguments() -> Iterator[Any]:
    """DLIO's, of a reader that is made here."""
    if DLIOMPI.get_instance().mpi_state == MPIState.UNINITIALIZED:
        DLIOMPI.get_instance().initialize()
    one = ConfigArguments.get_instance()
    one.storage_type, one.storage_root = StorageType.S3, "models"
    one.batch_size, one.num_samples_per_file = 4, 1
    one.resized_image = np.zeros(8, dtype=np.uint8)
    one.train_global_index_map = {}
    one.storage_options = {"prefetch_window": 3}
    yield one


def run(tmp_path: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpurx.dlio", "workload=unet3d_h100", *(f"++{one}" for one in (*EACH, *overrides))]
    command.append(f"++workload.output.folder={tmp_path}")
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_benchmark(bucket: Bucket, tmp_path: Path, workers: int) -> None:
    done = run(tmp_path, f"workload.reader.read_threads={workers}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert bucket.read() == {name: EPOCHS * len(data) for name, data in bucket.files.items()}
    assert json.loads((tmp_path / "summary.json").read_text())["metric"]["train_throughput_mean_samples_per_second"] > 0


def test_objects_come_whole_and_ahead(bucket: Bucket, arguments: Any) -> None:
    names = [name.removeprefix("models/") for name in bucket.files]
    arguments.train_file_map = {0: [(i, name, 0) for i, name in enumerate(names)]}
    reader = gpurx.dlio.Reader(DatasetType.TRAIN, 0, 1)
    try:
        assert len(list(reader.next())) == OBJECTS // 4
        assert bucket.read() == {name: len(data) for name, data in bucket.files.items()}
        for name in (names[3], f"s3://models/{names[3]}", f"/some/where/s3:/models/{names[3]}"):
            loaded = reader.open(name)
            assert ctypes.string_at(loaded.data_ptr, loaded.nbytes) == bucket.files[f"models/{names[3]}"]
        with pytest.raises(gpurx.NotFound, match="none.npz"):
            reader.open("none.npz")
    finally:
        reader.finalize()


def test_files_of_this_machine(tmp_path: Path, arguments: Any) -> None:
    arguments.storage_type = StorageType.LOCAL_FS
    path = tmp_path / "one.npz"
    path.write_bytes(os.urandom(100_001))
    arguments.train_file_map = {0: [(0, str(path), 0)]}
    reader = gpurx.dlio.Reader(DatasetType.TRAIN, 0, 1)
    try:
        loaded = reader.open(str(path))
        assert ctypes.string_at(loaded.data_ptr, loaded.nbytes) == path.read_bytes()
    finally:
        reader.finalize()


def test_it_only_reads(bucket: Bucket, arguments: Any) -> None:
    storage = gpurx.dlio.Storage("models")
    assert len(storage.walk_node(TRAIN)) == OBJECTS
    with pytest.raises(NotImplementedError, match="only reads"):
        storage.put_data("a", b"")
