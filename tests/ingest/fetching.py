# SPDX-License-Identifier: Apache-2.0
"""Runs gpurx-fetch for tests, and looks at what it has received."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from servers import Nginx, python_program

# What is tested: set by the script that is run.
program = ""
driver = ""  # the directory of the fake CUDA driver; empty: built without CUDA
options: tuple[str, ...] = ("--transport", "copy")
before: tuple[str, ...] = ()  # what starts the program; empty: nothing else does

# Of a request and its header.
OVERHEAD = 1024


def start(*arguments: str, stderr: int = subprocess.PIPE) -> subprocess.Popen[str]:
    transport = () if "--transport" in arguments else options
    return subprocess.Popen(
        [*before, program, *transport, *arguments],
        env=dict(os.environ, LD_LIBRARY_PATH=driver) if driver else None,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def connections_to(port: int) -> set[str]:
    """Those of this machine that are established, by their own addresses."""
    fields = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {local for _, local, remote, state, *_ in fields if remote.endswith(f":{port:04X}") and state == "01"}


class FetchTest(unittest.TestCase):
    limit = 60

    def setUp(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gpurx-fetch-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.output = self.directory / "received"

    def finish(self, fetching: subprocess.Popen[str], status: int = 0) -> tuple[str, str]:
        try:
            out, err = fetching.communicate(timeout=self.limit)
        except subprocess.TimeoutExpired:
            fetching.kill()
            self.fail(f"it does not end: {fetching.communicate()}")
        self.assertEqual(fetching.returncode, status, out + (err or ""))
        return out, err

    def fetch(self, *arguments: str) -> str:
        return self.finish(start(*arguments))[0]

    def refused(self, *arguments: str, status: int = 1) -> str:
        out, err = self.finish(start(*arguments), status)
        self.assertEqual(out, "")
        return err

    def check_report(self, report: dict[str, Any], size: int) -> None:
        """Every byte came the way that was asked for, and only once."""
        transport = options[options.index("--transport") + 1]
        self.assertEqual(report["transport"], transport)
        for way, received in report["bytes"].items():
            if way == ("host" if transport == "copy" else "device"):
                self.assertGreaterEqual(received, size)
                self.assertLess(received, size + OVERHEAD * report["requests"])
            else:
                self.assertEqual(received, 0, way)

    def check(self, url: str, *arguments: str, data: bytes) -> dict[str, Any]:
        """Fetches it, looks at each byte, and returns the report."""
        report: dict[str, Any] = json.loads(self.fetch(url, "--json", "--sha256", "--output", str(self.output), *arguments))
        self.assertEqual(self.output.read_bytes(), data)
        self.assertEqual(report["sha256"], hashlib.sha256(data).hexdigest())
        self.assertEqual(report["size"], len(data))
        self.assertTrue(report["as_expected"])
        self.check_report(report, len(data))
        return report

    def check_undisturbed(self, url: str, *arguments: str, data: bytes) -> dict[str, Any]:
        report = self.check(url, *arguments, data=data)
        self.assertEqual(report["retries"], 0)
        return report

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """For what another process does. The limit ends what hangs."""
        end = time.monotonic() + self.limit
        while not holds():
            self.assertLess(time.monotonic(), end, "it does not come true")
            time.sleep(0.005)

    def begin(self, server: Nginx, path: str, *arguments: str, flows: int = 4) -> subprocess.Popen[str]:
        """A download with a body under way on each connection. The server has to take its time."""
        file = server.root / Path(path).name
        fetching = start(server.url(path), "--json", "--output", str(self.output), "--flows", str(flows), *arguments)
        self.wait_until(lambda: server.is_sending(file, flows) or fetching.poll() is not None)
        self.assertIsNone(fetching.poll(), "it ended too early to be disturbed")
        return fetching

    def stop_until_given_up(self, server: Nginx) -> None:
        """The server falls silent until the client has ended each connection that there was."""
        begun = connections_to(server.port)
        server.signal(signal.SIGSTOP)
        self.wait_until(lambda: not begun & connections_to(server.port))
        server.signal(signal.SIGCONT)

    def check_recovered(self, fetching: subprocess.Popen[str], data: bytes) -> None:
        out, _ = self.finish(fetching)
        report = json.loads(out)
        self.assertEqual(self.output.read_bytes(), data)
        self.assertGreaterEqual(report["retries"], 1)
        self.check_report(report, len(data))

    def load(self, url: str, *arguments: str) -> dict[str, Any]:
        """Loads the tensors of a file."""
        out = self.fetch(url, "--safetensors", "--json", "--output", str(self.output), *arguments)
        report: dict[str, Any] = json.loads(out)
        return report

    def check_tensors(self, file: Path, url: str, *arguments: str) -> dict[str, Any]:
        """... and compares them with those that the package safetensors reads."""
        report = self.load(url, *arguments)
        written = self.directory / "report.json"
        written.write_text(json.dumps(report))
        comparison = Path(__file__).resolve().parent / "compare_tensors.py"
        done = subprocess.run([python_program(), comparison, file, written, self.output], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("are what safetensors reads", done.stdout)
        self.check_report(report, file.stat().st_size)
        return report
