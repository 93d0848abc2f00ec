# SPDX-License-Identifier: Apache-2.0
"""Ways to bring an object of a file server into memory, and what each costs its receiver."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, NamedTuple

HERE = Path(__file__).resolve().parent


class Cost(NamedTuple):
    cpu: float  # seconds: all of the processes that receive, from their start to their end
    seconds: float


def run(command: list[str]) -> Cost:
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"ingest: {command[0]} failed")
    return Cost(used.ru_utime + used.ru_stime, time.monotonic() - start)


def both(first: Cost, second: Cost) -> Cost:
    return Cost(first.cpu + second.cpu, first.seconds + second.seconds)


class Contenders:
    """Each is called with the name of an object."""

    def __init__(self, programs: Path, host: str, port: int, nic: list[str], scratch: Path) -> None:
        self._fetch = str(programs / "samples" / "gpurx-fetch" / "gpurx-fetch")
        self._load = str(programs / "tests" / "bench" / "ingest_load")
        self._host, self._port, self._nic, self._scratch = host, port, nic, scratch / "downloaded"

    def url(self, name: str) -> str:
        return f"http://{self._host}:{self._port}/{name}"

    def gpurx(self, name: str) -> Cost:
        return run([self._fetch, self.url(name), *self._nic, "--crc32c", "none", "--json"])

    def gpurx_one(self, name: str) -> Cost:
        return run([self._fetch, self.url(name), *self._nic, "--crc32c", "none", "--json", "--flows", "1"])

    def curl(self, name: str) -> Cost:
        self._scratch.unlink(missing_ok=True)
        downloaded = run(["curl", "-sf", "-o", str(self._scratch), self.url(name)])
        loaded = run([self._load, str(self._scratch)])
        self._scratch.unlink()
        return both(downloaded, loaded)

    def loop(self, name: str) -> Cost:
        """Without the start of Python."""
        start = time.monotonic()
        program = [sys.executable, str(HERE / "ingest_loop.py"), self._host, str(self._port), name]
        done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
        return Cost(float(done.stdout), time.monotonic() - start)

    def all(self) -> dict[str, Callable[[str], Cost]]:
        return {"gpurx-fetch": self.gpurx, "gpurx-fetch, 1 flow": self.gpurx_one, "curl, then a copy": self.curl,
                "recv_into loop": self.loop}
