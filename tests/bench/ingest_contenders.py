# SPDX-License-Identifier: Apache-2.0
"""Ways to bring an object into memory, or into a file, and what each costs its receiver.

Each function here returns contenders by their names: functions that bring the object once. One more is one more entry.
"""

from __future__ import annotations

import filecmp
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from ingest_figures import Cost
from ingest_peers import WHOLE, package_of

HERE = Path(__file__).resolve().parent
Contenders = dict[str, Callable[[], Cost]]


def run(command: list[str]) -> Cost:
    measure = [sys.executable, "-S", HERE.parent / "ingest" / "measure.py", *command]
    done = subprocess.run(measure, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"ingest: {command[0]} failed")
    cpu, seconds, memory = json.loads(done.stdout)
    return Cost(cpu, seconds, memory << 10)


def run_reporting(command: list[str], digest: str, environment: dict[str, str] | None = None) -> Cost:
    """Of a program that says itself what it cost, and what came."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"ingest: {' '.join(command[1:])} failed")
    said = json.loads(done.stdout)
    if said["digest"] != digest:
        sys.exit(f"ingest: {' '.join(command[1:])} has other bytes than the object's")
    return Cost(said["cpu"], said["seconds"], first=said.get("first"))


class Programs(NamedTuple):
    build: Path

    @property
    def fetch(self) -> str:
        return str(self.build / "samples" / "gpurx-fetch" / "gpurx-fetch")

    @property
    def load(self) -> str:
        return str(self.build / "tests" / "bench" / "ingest_load")


def check_memory(programs: Programs, url: str, nic: list[str], sha256: str) -> None:
    """That gpurx-fetch brings into memory what the object has: its own rounds compute nothing."""
    run([programs.fetch, url, *nic, "--expect-sha256", sha256])


def to_memory(programs: Programs, url: str, nic: list[str], sha256: str, scratch: Path) -> Contenders:
    downloaded = scratch / "downloaded"

    def curl_and_load() -> Cost:
        downloaded.unlink(missing_ok=True)
        first = run(["curl", "-sf", "-o", str(downloaded), url])
        second = run([programs.load, str(downloaded)])
        downloaded.unlink()
        return Cost(first.cpu + second.cpu, first.seconds + second.seconds, max(first.memory, second.memory))

    place = urlsplit(url)
    loop = [sys.executable, str(HERE / "ingest_loop.py"), str(place.hostname), str(place.port), place.path[1:]]
    fetch = [programs.fetch, url, *nic, "--crc32c", "none", "--json"]
    return {
        "gpurx-fetch": functools.partial(run, fetch),
        "gpurx-fetch, 1 flow": functools.partial(run, [*fetch, "--flows", "1"]),
        "curl, then a copy": curl_and_load,
        "recv_into loop": functools.partial(run_reporting, loop, sha256),
    }


def to_file(programs: Programs, url: str, nic: list[str], original: Path, scratch: Path,
            ca: Path | None = None) -> Contenders:
    saved = scratch / "saved"

    def save(command: list[str]) -> Cost:
        saved.unlink(missing_ok=True)
        cost = run([*command, url])
        if not filecmp.cmp(original, saved, shallow=False):
            sys.exit(f"ingest: {command[0]} wrote other bytes than the object's")
        return cost

    def trusting(option: str) -> list[str]:
        return [f"{option}={ca}"] if ca else []

    fetch = [programs.fetch, *nic, "--output", str(saved), *trusting("--ca")]
    commands = {
        "gpurx-fetch": fetch,
        "gpurx-fetch, 16 flows": [*fetch, "--flows", "16"],
        "curl": ["curl", "-sf", "-o", str(saved), *(["--cacert", str(ca)] if ca else [])],
        # As its manual says for a fast network: as many connections as it takes to one server.
        "aria2c": ["aria2c", "-q", "-x4", "-s4", "-k1M", "--file-allocation=none", "-d", str(saved.parent), "-o",
                   saved.name, *trusting("--ca-certificate")],
        "wget": ["wget", "-q", "-O", str(saved), *trusting("--ca-certificate")],
    }
    return {name: functools.partial(save, command) for name, command in commands.items()}


class Peers:
    """The libraries of ingest_peers.py. `python` has gpurx, and lies on `root`, for which peers.sh has the others."""

    def __init__(self, python: str, root: Path) -> None:
        self._python = python
        found = subprocess.run([HERE / "ingest" / "peers.sh", root], stdout=subprocess.PIPE, text=True, check=True)
        lines = [line.split("\t") for line in found.stdout.splitlines()]
        self._directories = {name: directory for name, directory, reason in lines if not reason}
        self.missing = {name: reason for name, _, reason in lines if reason}

    def contender(self, peer: str, url: str, digest: str, environment: dict[str, str]) -> Callable[[], Cost]:
        variables = dict(os.environ, **environment, PYTHONPATH=self._directories.get(package_of(peer), ""))
        command = [self._python, str(HERE / "ingest_peers.py"), peer, url]
        return functools.partial(run_reporting, command, digest, variables)

    def from_s3(self, url: str, digest: str, environment: dict[str, str]) -> Contenders:
        """All that bring a whole file, and are there."""
        names = [name for name in WHOLE if package_of(name) not in self.missing]
        return {name: self.contender(name, url, digest, environment) for name in names}
