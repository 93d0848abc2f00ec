#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-fetch, disturbed: gpurx_fetch_faults_test.py PROGRAM [DIRECTORY], as gpurx_fetch_test.py has it."""

import fcntl
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
import termios
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ingest"))

import fetching
from fetching import FetchTest, start
from safetensors_file import tensor, write_safetensors
from servers import Nginx


class Faults(FetchTest):
    """A server of its own, which needs a minute until there is a file QUICK."""

    chunks = ("--chunk-size", "64KiB")
    server: Nginx

    def setUp(self) -> None:
        super().setUp()
        self.data = random.Random(2).randbytes(16 << 20)
        self.file = self.directory / "object"
        self.file.write_bytes(self.data)
        self.quick = self.directory / "quick"
        # A piece every quarter of a second, for those who have no patience.
        pace = f"sendfile_max_chunk 16k; set $limit_rate 64k; if (-e {self.quick}) {{ set $limit_rate 0; }}"
        eager = f"location /eager/ {{ alias {self.directory}/; limit_rate_after 1m; }}"
        # A pause of 10 ms behind every piece.
        steady = f"location /steady/ {{ alias {self.directory}/; set $limit_rate 1600k; }}"
        self.server = Nginx(self.directory, server=f"{pace} {eager} {steady}")
        self.addCleanup(self.server.stop)
        self.url = self.server.url("object")

    def begin_here(self, *arguments: str) -> subprocess.Popen[str]:
        chunks = () if "--chunk-size" in arguments else self.chunks
        return self.begin(self.server, "object", *chunks, *arguments)

    def start_quickly(self) -> None:
        self.quick.touch()
        self.server.start()

    def test_server_dies_and_comes_back(self) -> None:
        running = self.begin_here()
        self.server.kill()
        self.wait_until(lambda: not fetching.connections_to(self.server.port))
        self.start_quickly()
        self.check_recovered(running, self.data)

    def test_server_is_away_for_several_attempts(self) -> None:
        running = self.begin_here()
        self.server.kill()
        # Three of each connection.
        with socket.create_server(("127.0.0.1", self.server.port)) as turns_away:
            turns_away.settimeout(self.limit)
            for _ in range(12):
                turns_away.accept()[0].close()
        self.start_quickly()
        self.check_recovered(running, self.data)

    def test_server_dies(self) -> None:
        running = self.begin_here("--attempts", "3")
        self.server.kill()
        out, err = self.finish(running, 1)
        self.assertEqual(out, "")
        self.assertIn("Connection refused", err)
        self.assertIn("3 attempts", err)
        self.assertFalse(self.output.exists())

    def test_server_falls_silent(self) -> None:
        running = self.begin_here("--timeout", "1")
        self.quick.touch()
        self.stop_until_given_up(self.server)
        self.check_recovered(running, self.data)

    def test_server_stays_silent(self) -> None:
        running = self.begin_here("--timeout", "1", "--attempts", "2")
        self.server.signal(signal.SIGSTOP)
        _, err = self.finish(running, 1)
        # In the body; or to the next request, which the system of a stopped server still takes.
        self.assertRegex(err, "(no byte came for|no answer came within) 1000 ms \\(timeout\\)")

    def replace(self, data: bytes) -> None:
        other = self.directory / "other"
        other.write_bytes(data)
        # nginx makes the ETag of the date, in seconds, and the size.
        os.utime(other, (0, 0))
        other.rename(self.file)

    def test_deadline(self) -> None:
        err = self.refused(self.url, *self.chunks, "--deadline", "1")
        self.assertIn("the deadline has passed", err)
        self.quick.touch()
        self.fetch(self.url, *self.chunks, "--deadline", "50")

    def test_deadline_of_several_files(self) -> None:
        # Each has two pauses, a fiftieth of the deadline. All have three times as much as it, on any machine.
        names = [f"{number}" for number in range(150)]
        for name in names:
            (self.directory / name).write_bytes(write_safetensors([tensor(name, "U8", 1, [35_000])]))
        (self.directory / "index.json").write_text(json.dumps({"weight_map": {name: name for name in names}}))
        err = self.refused(self.server.url("steady/index.json"), "--safetensors", "--flows", "1", "--deadline", "1")
        self.assertIn("deadline", err)

    def test_min_speed(self) -> None:
        running = self.begin_here("--chunk-size", "256KiB", "--timeout", "1", "--min-speed", "1MB")
        begun = fetching.connections_to(self.server.port)
        self.quick.touch()
        self.wait_until(lambda: not begun & fetching.connections_to(self.server.port))
        self.check_recovered(running, self.data)

    def test_another_object(self) -> None:
        # Where there is no such range any more, the server says the size alone.
        for replacement, words in (self.data[::-1], "its ETag was"), (self.data[:50_000], "its size was"):
            with self.subTest(size=len(replacement)):
                self.file.write_bytes(self.data)
                running = self.begin_here()
                self.replace(replacement)
                _, err = self.finish(running, 1)
                self.assertIn(f"the object changed while it was being read; {words}", err)
                self.assertFalse(self.output.exists())

    def test_object_goes_away(self) -> None:
        running = self.begin_here()
        self.file.unlink()
        _, err = self.finish(running, 1)
        self.assertIn("404 Not Found", err)

    def test_interrupted(self) -> None:
        for number in signal.SIGINT, signal.SIGTERM:
            running = self.begin_here()
            running.send_signal(number)
            out, _ = self.finish(running, 128 + number)
            self.assertEqual(out, "")
            self.assertEqual(self.left_over(), ["object"])

    def left_over(self) -> list[str]:
        """Files, without those of the server."""
        return sorted(each.name for each in self.directory.iterdir() if each.is_file() and "nginx" not in each.name)

    def test_interrupted_in_a_write(self) -> None:
        # A pipe that nobody reads: its reader is there, and waits.
        self.quick.touch()
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        running = start(self.url, "--output", str(pipe))
        self.wait_until(lambda: bytes_in(reader) == fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ))
        running.send_signal(signal.SIGTERM)
        self.finish(running, 128 + signal.SIGTERM)

    def test_killed(self) -> None:
        self.output.write_bytes(b"old")
        running = self.begin_here()
        running.kill()
        self.finish(running, -signal.SIGKILL)
        self.assertEqual(self.output.read_bytes(), b"old")

    def test_progress(self) -> None:
        line = rb"\r\x1b\[Kreceived \[=+ +\] \d+ % of 16.0 MiB, [\d.]+ MiB, [\d.]+ [KM]iB/s, (\d\d):(\d\d)"
        mine, its = pty.openpty()
        begun = time.monotonic()
        running = start(self.server.url("eager/object"), "--chunk-size", "4MiB", stderr=its)
        os.close(its)
        shown = b""
        # Each comes 200 ms after the last, or later: the time of the fifth is a second or more on any machine.
        enough = 5
        times: list[int] = []
        try:
            while piece := os.read(mine, 4096):
                shown += piece
                found = [60 * int(minutes) + int(seconds) for minutes, seconds in re.findall(line, shown)]
                if len(times) < enough <= len(found):
                    self.server.kill()
                    self.start_quickly()
                # It is not ahead of the machine's clock, either.
                self.assertLessEqual(found[-1:], [time.monotonic() - begun])
                times = found
        except OSError:  # it has ended
            pass
        os.close(mine)
        self.finish(running)
        self.assertGreaterEqual(len(times), enough, shown)
        self.assertEqual(times, sorted(times))
        for lines, seconds in enumerate(times, 1):
            self.assertGreaterEqual(seconds, lines // 5)
        self.assertTrue(shown.endswith(b"\r\x1b[K"))


def bytes_in(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


if __name__ == "__main__":
    fetching.program = sys.argv.pop(1)
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        fetching.driver = sys.argv.pop(1)
    unittest.main()
