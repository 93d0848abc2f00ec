#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prometheus reads what gpurx and gpurxd write: prometheus_test.py DIRECTORY-OF-PROMETHEUS BUILD [UNITTEST-ARGUMENT...]."""

import contextlib
import http.server
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import gpurxd_test  # noqa: E402: found by the line above

DOCS = Path(__file__).resolve().parents[2] / "framework/docs"
PROGRAMS = Path()
BUILD = Path()


def text_of(which: str) -> str:
    return subprocess.run([BUILD / "tests/metrics_probe", which], capture_output=True, text=True, timeout=60, check=True).stdout


def check(what: str, *files: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [PROGRAMS / "promtool", "check", what, *files]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def promtool(text: str) -> subprocess.CompletedProcess[str]:
    return check("metrics", text=text)


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\bgpurxd?_[a-z_]+", text))


@contextlib.contextmanager
def served(text: Callable[[], str]) -> Iterator[int]:
    """The text at a port of loopback, as a program of a user's would serve it, or node_exporter."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = text().encode("utf-8")
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Prometheus:
    """One with a directory of its own, that scrapes these ports of loopback every second."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self.port = free_port()
        configuration = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in ports.items()],
        }
        file = directory / "prometheus.json"  # which is YAML, too
        file.write_text(json.dumps(configuration), encoding="utf-8")
        self.log = (directory / "log").open("w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [PROGRAMS / "prometheus", f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}",
             f"--web.listen-address=127.0.0.1:{self.port}"],
            stdout=self.log, stderr=self.log,
        )

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)
        self.log.close()

    def ask(self, expression: str) -> list[dict]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=20) as reply:
            return json.load(reply)["data"]["result"]

    def value(self, expression: str, wanted: str, seconds: float = 40.0) -> list[str]:
        """The values of an expression: as soon as one of them is `wanted`, or else at the end."""
        end = time.monotonic() + seconds
        values: list[str] = []
        while time.monotonic() < end:
            try:
                values = [series["value"][1] for series in self.ask(expression)]
            except OSError:
                pass  # it has just been started
            if wanted in values:
                break
            time.sleep(0.2)
        return values


class Reads(unittest.TestCase):
    def test_promtool_has_nothing_to_say(self) -> None:
        for which in ("library", "gpurxd"):
            said = promtool(text_of(which))
            self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""), which)

    def test_promtool_would_say_something(self) -> None:
        self.assertNotEqual(promtool("# TYPE wrong_total gauge\nwrong_total 1\n").returncode, 0)

    def test_promtool_has_nothing_to_say_of_what_is_written(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "gpurx.prom"
            text_of(str(file))
            text = file.read_text(encoding="utf-8")
        self.assertIn('gpurx_session_info{session="one"', text)
        said = promtool(text)
        self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""))

    def test_yaml_in_the_guides_is_what_prometheus_takes(self) -> None:
        known = metrics_in(text_of("library") + text_of("gpurxd"))
        found = 0
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "some.yml"
            for page in sorted(DOCS.rglob("*.md")):
                for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
                    file.write_text("groups:\n  - name: gpurx\n    rules:\n" + textwrap.indent(block, 6 * " "), encoding="utf-8")
                    said = check("rules", file)
                    self.assertEqual(said.returncode, 0, f"{page.name}:\n{block}{said.stdout}{said.stderr}")
                    self.assertLessEqual(metrics_in(block), known, page.name)
                    found += 1
        self.assertGreater(found, 0)

    def test_the_library_s_text_is_scraped(self) -> None:
        with tempfile.TemporaryDirectory() as directory, served(lambda: text_of("library")) as port:
            prometheus = Prometheus(Path(directory), {"gpurx": port})
            try:
                self.assertEqual(prometheus.value('up{job="gpurx"}', "1"), ["1"])
                self.assertEqual(prometheus.value('gpurx_pool_dry_seconds_total{session="loader \\"one\\"\\\\"}', "1.5"), ["1.5"])
                self.assertEqual(prometheus.value("count(gpurx_session_info)", "2"), ["2"])
            finally:
                prometheus.end()

    @unittest.skipUnless(gpurxd_test.has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
    def test_gpurxd_s_file_is_scraped(self) -> None:
        with gpurxd_test.running() as daemon, tempfile.TemporaryDirectory() as directory, served(daemon.page) as port:
            self.assertTrue(daemon.refused_client())
            said = promtool(daemon.page())
            self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""))
            prometheus = Prometheus(Path(directory), {"gpurxd": port})
            try:
                self.assertEqual(prometheus.value('up{job="gpurxd"}', "1"), ["1"])
                refused = 'sum(gpurxd_refusals_total{request="message", reason="protocol"})'
                self.assertEqual(prometheus.value(refused, "1"), ["1"])
                self.assertTrue(daemon.refused_client())
                self.assertEqual(prometheus.value(refused, "2"), ["2"])
                self.assertEqual(prometheus.value("count(gpurxd_build_info)", "1"), ["1"])
            finally:
                prometheus.end()


if __name__ == "__main__":
    PROGRAMS = Path(sys.argv[1])
    BUILD = Path(sys.argv[2])
    gpurxd_test.PROGRAM = str(BUILD / "framework/tools/gpurxd/gpurxd")
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
