#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A model's weights into a GPU's memory, over loopback: gpurx-fetch and gpurx's Python package beside what else
loads them, on the same file.

    load.py BUNDLE [--quick] [--json FILE]

The file lies in memory (/dev/shm). gpurx and KvikIO load it from an HTTP server; safetensors and the Run:ai streamer from
the file itself, which spares them the network, and once more after a download, as people without gpurx do. Each loads in
a process of its own, with the GPU's context made before its time begins; interleaved, medians. Exit status 3: a bar falls
short.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

GIB = 1 << 30
MIB = 1 << 20
OURS = ("gpurx-fetch", "gpurx.torch.load_file")

# What every contender in Python begins and ends with; load() is its own.
FRAME = """
import json, resource, sys, time
import torch
torch.zeros(1, device="cuda:0")
{code}
def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
prepare = globals().get("prepare")
if prepare:
    prepare()
torch.cuda.synchronize()
begin, before = time.perf_counter(), cpu()
kept = load(sys.argv[1])
torch.cuda.synchronize()
print(json.dumps({{"seconds": time.perf_counter() - begin, "cpu": cpu() - before}}))
"""

LOAD_FILE = """
from safetensors.torch import load_file
def load(path):
    return load_file(path, device="cuda:0")
"""

# As its manual has it: a thread pool reads the file into one host buffer.
RUNAI = """
from runai_model_streamer import SafetensorsStreamer
def load(path):
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        return {name: tensor.to("cuda:0") for name, tensor in streamer.get_tensors()}
"""

KVIKIO = """
import cupy, kvikio
kvikio.defaults.set({"num_threads": 16, "task_size": 16 << 20})
def prepare():
    cupy.zeros(1)
def load(url):
    with kvikio.RemoteFile.open_http(url) as file:
        weights = cupy.empty(file.nbytes(), dtype="uint8")
        file.read(weights)
        return weights
"""

GPURX = """
import gpurx.torch
def load(url):
    return gpurx.torch.load_file(url, device="cuda:0", transport="copy", flows=8, size=256 << 20, checksum="none")
"""

DOWNLOAD = """
import os, shutil, tempfile, urllib.request
from safetensors.torch import load_file
def load(url):
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file, urllib.request.urlopen(url) as answer:
        shutil.copyfileobj(answer, file, 4 << 20)
        file.flush()
        return load_file(file.name, device="cuda:0")
"""


class Cost(NamedTuple):
    seconds: float
    cpu: float


class Contender(NamedTuple):
    command: list[str]
    keys: tuple[str, str]  # of seconds and CPU seconds in what it prints
    environment: dict[str, str]


def write_weights(path: Path, size: int) -> None:
    """Layers of 64 MiB of BF16."""
    count = max(size // (64 * MIB), 1)
    each = size // count
    header = {
        f"layer.{i}.weight": {
            "dtype": "BF16",
            "shape": [each // 2 // 1024, 1024],
            "data_offsets": [i * each, (i + 1) * each],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = os.urandom(4 * MIB + 1)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = count * each
        while left > 0:
            left -= file.write(block[: min(left, len(block))])


def start_server(bundle: Path, root: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    paths = "".join(f"{kind}_temp_path {root}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = root / "nginx.conf"
    configuration.write_text(
        f"daemon off; {user} pid {root}/pid; worker_processes 8; error_log stderr;\n"
        f"events {{}}\nhttp {{ access_log off; sendfile on; {paths}\n"
        f"server {{ listen 127.0.0.1:{port} reuseport; root {root}; }} }}\n"
    )
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{bundle}/lib")
    server = subprocess.Popen([bundle / "nginx", "-c", configuration, "-e", "stderr"], env=environment)
    for _ in range(100):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return server, f"http://127.0.0.1:{port}/"
        except OSError:
            time.sleep(0.05)
    server.terminate()
    raise RuntimeError("the HTTP server does not answer")


def contenders(bundle: Path, path: Path, url: str) -> dict[str, Contender]:
    def python(code: str, source: str, **environment: str) -> Contender:
        return Contender([sys.executable, "-c", FRAME.format(code=code), source], ("seconds", "cpu"), environment)

    def gpurx(flows: int) -> Contender:
        command = [str(bundle / "gpurx-fetch"), url, "--safetensors", "--memory", "gpu:0", "--transport", "copy"]
        command += ["--flows", str(flows), "--threads", str(flows), "--crc32c", "none", "--memory-size", "256MiB", "--json"]
        return Contender(command, ("seconds", "cpu_seconds"), {})

    return {
        OURS[0]: gpurx(8),
        f"{OURS[0]}, 1 flow": gpurx(1),
        OURS[1]: python(GPURX, url, PYTHONPATH=os.pathsep.join([f"{bundle}/python", os.environ.get("PYTHONPATH", "")])),
        "KvikIO": python(KVIKIO, url),
        "safetensors, from the file": python(LOAD_FILE, str(path)),
        "Run:ai streamer, from the file": python(RUNAI, str(path), RUNAI_STREAMER_CONCURRENCY="16"),
        "download, then safetensors": python(DOWNLOAD, url),
    }


def run(what: Contender) -> Cost:
    """Raises RuntimeError with the reason."""
    done = subprocess.run(what.command, capture_output=True, text=True, env=dict(os.environ, **what.environment), timeout=60)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    said = json.loads(done.stdout.strip().splitlines()[-1])
    return Cost(*(float(said[key]) for key in what.keys))


def check_bytes(bundle: Path, path: Path, url: str) -> None:
    """What gpurx-fetch has in the GPU's memory is the file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    command = [bundle / "gpurx-fetch", url, "--memory", "gpu:0", "--transport", "copy", "--expect-sha256", digest]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"gpurx-fetch does not bring the file: {done.stderr.strip()}")


def measure(all_of: dict[str, Contender], rounds: int) -> tuple[dict[str, list[Cost]], dict[str, str]]:
    costs: dict[str, list[Cost]] = {name: [] for name in all_of}
    absent: dict[str, str] = {}
    for number in range(rounds + 1):  # the first warms up
        for name, what in all_of.items():
            if name in absent:
                continue
            try:
                cost = run(what)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                absent[name] = str(error)
                continue
            if number > 0:
                costs[name].append(cost)
    return {name: list_of for name, list_of in costs.items() if list_of and name not in absent}, absent


def judge(costs: dict[str, list[Cost]]) -> list[dict[str, object]]:
    bars: list[dict[str, object]] = []
    median = {name: Cost(*(statistics.median(values) for values in zip(*each))) for name, each in costs.items()}
    for ours in OURS:
        for name, other in median.items():
            if ours not in median or name.startswith(OURS):
                continue
            for what, value in (
                ("time", median[ours].seconds / other.seconds),
                ("CPU time", median[ours].cpu / other.cpu),
            ):
                bars.append({"name": f"{what}, {ours} / {name}", "value": value, "unit": "x", "limit": 1.0, "holds": value <= 1})
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    size = (64 if arguments.quick else 2048) * MIB
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        root = Path(directory)
        root.chmod(0o755)
        write_weights(root / "model.safetensors", size)
        server, place = start_server(arguments.bundle, root)
        try:
            url = place + "model.safetensors"
            check_bytes(arguments.bundle, root / "model.safetensors", url)
            all_of = contenders(arguments.bundle, root / "model.safetensors", url)
            costs, absent = measure(all_of, 1 if arguments.quick else 5)
        finally:
            server.terminate()
            server.wait()
    for name, each in costs.items():
        seconds, cpu = zip(*each)
        print(
            f"{name:<32} {size / GIB / statistics.median(seconds):7.2f} GiB/s ({size / GIB / max(seconds):.2f}–"
            f"{size / GIB / min(seconds):.2f})   {statistics.median(cpu) * GIB / size:6.3f} CPU s/GiB"
        )
    for name, why in absent.items():
        print(f"skipped: {name}: {why}")
    bars = [] if arguments.quick else judge(costs)
    for bar in bars:
        print(f"{'holds' if bar['holds'] else 'FALLS SHORT'}: {bar['name']} {bar['value']:.2f}x (at most 1)")
    if arguments.json:
        samples = {name: [cost._asdict() for cost in each] for name, each in costs.items()}
        arguments.json.write_text(json.dumps({"bytes": size, "samples": samples, "skipped": absent, "bars": bars}))
    if OURS[0] in absent:
        return 1
    return 3 if not all(bar["holds"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
