# SPDX-License-Identifier: Apache-2.0
"""What it costs to read unet3d's objects as DLIO's readers do, whole and undecoded, from one nginx, with gpurx and with s3dlio, as
MLPerf Storage's branch of DLIO uses that:

compare.py [ROUNDS]          both in turns, each in a process of its own (tests/dlio/compare.sh runs it)
compare.py one LIBRARY       one reading; prints seconds, seconds of CPU, and bytes
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

OBJECTS = 8
SIZE = 146_600_628  # unet3d's mean
WINDOW = 8
LIBRARIES = ("gpurx", "s3dlio")


def names() -> list[str]:
    return [f"train/img_{i:02d}.npz" for i in range(OBJECTS)]


def read_with_gpurx() -> int:
    import numpy as np
    from dlio_benchmark.common.enumerations import DatasetType, StorageType
    from dlio_benchmark.utils.config import ConfigArguments
    from dlio_benchmark.utils.utility import DLIOMPI

    from gpurx.dlio import Reader

    DLIOMPI.get_instance().initialize()
    arguments = ConfigArguments.get_instance()
    arguments.storage_type, arguments.storage_root = StorageType.S3, "models"
    arguments.batch_size, arguments.num_samples_per_file = 1, 1
    arguments.resized_image = np.zeros(8, dtype=np.uint8)
    arguments.storage_options = {"prefetch_window": WINDOW}
    arguments.train_global_index_map = {}
    arguments.train_file_map = {0: [(i, name, 0) for i, name in enumerate(names())]}
    read = 0

    class Counting(Reader):  # type: ignore[misc]
        def get_sample(self, filename: str, sample_index: int) -> None:
            nonlocal read
            read += self.open_file_map[filename].nbytes
            super().get_sample(filename, sample_index)

    reader = Counting(DatasetType.TRAIN, 0, 1)
    for _ in reader.next():
        pass
    reader.finalize()
    return read


def read_with_s3dlio() -> int:
    import s3dlio

    dataset = s3dlio.PyDataset.from_uris([f"s3://models/{name}" for name in names()])
    # Of objects this large the branch asks for the size first, so that s3dlio reads their parts side by side.
    items = s3dlio.PyBytesAsyncDataLoader(dataset, {"prefetch": WINDOW, "skip_head": False}).items()
    read = 0
    while batch := items.collect_batch(1):
        read += sum(len(item) for item in batch)
    return read


def one(library: str) -> None:
    read = {"gpurx": read_with_gpurx, "s3dlio": read_with_s3dlio}[library]
    begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    size = read()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"seconds": time.monotonic() - begin, "cpu": cpu, "bytes": size, "rss": after.ru_maxrss >> 10}))


def compare(rounds: int) -> None:
    from servers import Nginx

    with tempfile.TemporaryDirectory() as directory:
        for name in names():
            path = Path(directory, "models", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1 << 20) * (SIZE >> 20) + bytes(SIZE % (1 << 20)))
        server = Nginx(Path(directory))
        known = {"AWS_ENDPOINT_URL": f"http://{server.host}:{server.port}", "AWS_ACCESS_KEY_ID": "id", "AWS_REGION": "us-east-1"}
        environment = dict(os.environ, AWS_SECRET_ACCESS_KEY="secret", **known)
        figures: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
        try:
            for turn in range(rounds):
                for library in LIBRARIES if turn % 2 == 0 else LIBRARIES[::-1]:
                    command = [sys.executable, __file__, "one", library]
                    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
                    figures[library].append(json.loads(done.stdout.splitlines()[-1]))
                    assert figures[library][-1]["bytes"] == OBJECTS * SIZE, figures[library][-1]
        finally:
            server.stop()
    print(f"{OBJECTS} objects of {SIZE} bytes, {WINDOW} at a time, {rounds} rounds: the median (the best)")
    gibibytes = OBJECTS * SIZE / (1 << 30)
    for library, all_of_it in figures.items():
        rates = [gibibytes / each["seconds"] for each in all_of_it]
        cpu = [each["cpu"] / gibibytes for each in all_of_it]
        print(
            f"{library:8} {statistics.median(rates):5.2f} GiB/s ({max(rates):.2f}), "
            f"{statistics.median(cpu):5.2f} s of CPU per GiB ({min(cpu):.2f}), {all_of_it[0]['rss']} MiB resident"
        )


def main() -> None:
    if sys.argv[1:2] == ["one"]:
        one(sys.argv[2])
    else:
        compare(int(sys.argv[1]) if len(sys.argv) > 1 else 7)


if __name__ == "__main__":
    main()
