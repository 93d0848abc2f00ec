#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-perf over loopback, with transport copy: perf_test.py PROGRAM MAN-PAGE."""

import contextlib
import json
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = ""
MAN_PAGE = ""
SAMPLE = Path(__file__).resolve().parents[1] / "bench/perf_sample.json"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def server(port: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [PROGRAM, "server", "--listen", "127.0.0.1", "--port", str(port), "--transport", "copy", "--memory", "8MiB"]
    one = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
    try:
        yield one
    finally:
        one.kill()
        one.communicate()


def client(port: int, *arguments: str, seconds: str = "0.2") -> subprocess.CompletedProcess[str]:
    command = [PROGRAM, "client", f"127.0.0.1:{port}", "--warm-up", "0.05", "--seconds", seconds, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def names_of(value: object) -> object:
    """The names in JSON, without what they are worth; of a list its first."""
    if isinstance(value, dict):
        return {name: names_of(one) for name, one in value.items()}
    return [names_of(value[0])] if isinstance(value, list) else None


class Perf(unittest.TestCase):
    def measure(self, of_server: tuple[str, ...], of_client: tuple[str, ...], has_enough: Callable[[Any], bool]) -> Any:
        """What is measured, in rounds that last as long as this machine needs to have enough in each."""
        for seconds in ("0.2", "2", "20"):
            port = free_port()
            with server(port, *of_server) as one:
                answer = client(port, *of_client, "--json", "-", seconds=seconds)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertEqual(one.wait(60), 0)
            made = json.loads(answer.stdout)
            if all(has_enough(each) for each in made["rounds"]):
                break
        return made

    def test_settings_take_turns(self) -> None:
        made = self.measure(("--compare", "--loan", "--rounds", "4", "--verify"),
                            ("--flows", "5", "--rounds", "4", "--message", "20000"),
                            lambda each: each["latency_us"]["count"] > 0 and each["process_cpu_per_gib"] > 0)
        self.assertEqual(
            [one["setting"] for one in made["rounds"]], 2 * ["--read --transport copy", "--loan"]
        )
        for each in made["rounds"]:
            self.assertEqual((each["transport"], each["wrong_words"]), ("copy", 0))
            self.assertGreaterEqual(each["verified_bytes"], each["bytes"])
            self.assertGreater(each["bytes"], 0)
            self.assertGreater(each["process_cpu_per_gib"], 0)
            latency = each["latency_us"]
            self.assertTrue(0 < latency["p50"] <= latency["p99"] <= latency["max"], latency)
            self.assertGreater(latency["count"], 0)
        self.assertEqual([one["rounds"] for one in made["settings"]], [2, 2])
        # What tests/bench/plot_test.py draws.
        self.assertEqual(names_of(made), names_of(json.loads(SAMPLE.read_text(encoding="utf-8"))))

    def test_sixty_four_flows(self) -> None:
        made = self.measure(("--max-flows", "64", "--rounds", "1", "--verify"),
                            ("--flows", "64", "--message", "4096", "--window", "1"),
                            lambda each: each["verified_bytes"] >= 64 * 4096)
        self.assertEqual(made["load"]["flows"], 64)
        self.assertEqual(made["rounds"][0]["wrong_words"], 0)
        # As much as a message of each.
        self.assertGreaterEqual(made["rounds"][0]["verified_bytes"], 64 * 4096)

    def test_a_table_and_a_file(self) -> None:
        port = free_port()
        with server(port, "--rounds", "1") as one, tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "perf.json"
            answer = client(port, "--json", str(path), "--window", "1", "--message", "8")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("latency of a message", answer.stdout)
            self.assertEqual(json.loads(path.read_text())["load"]["message"], 8)
            one.wait(60)

    def test_strangers_disturb_nobody(self) -> None:
        port = free_port()
        with server(port, "--rounds", "1") as one:
            assert one.stderr
            one.stderr.readline()
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 2)
                self.assertEqual(stranger.recv(1), b"")
            answer = client(port, "--flows", "2")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertIn("does not belong to this round", one.communicate(timeout=60)[1])

    def say_pattern(self, port: int, last: int) -> None:
        """A client of ours that sends the pattern, but for the last word, and waits until its flow ends."""
        with socket.create_connection(("127.0.0.1", port)) as flow:
            number = lambda value, size: value.to_bytes(size, "little")  # noqa: E731
            request = b"GPXREPF1" + b"".join(number(value, 4) for value in (0, 1, 16, 0, 1, 0))
            flow.sendall(request)
            flow.recv(160, socket.MSG_WAITALL)
            words = [number((i + 1) * 6364136223846793005 % 2**64, 8) for i in range(2)]
            flow.sendall(words[0] + number(int.from_bytes(words[1], "little") ^ last, 8))
            flow.shutdown(socket.SHUT_WR)
            while flow.recv(4096):
                pass

    def liar(self, last: int) -> tuple[str, int]:
        port = free_port()
        with server(port, "--rounds", "1", "--verify") as one:
            assert one.stderr
            one.stderr.readline()
            self.say_pattern(port, last)
            return one.communicate(timeout=60)[1], one.returncode

    def test_wrong_bytes_are_seen(self) -> None:
        words, status = self.liar(1 << 40)
        self.assertEqual((status, "1 words of the payload differ" in words), (3, True), words)
        words, status = self.liar(0)
        self.assertEqual(status, 0, words)

    def test_more_flows_than_the_server_takes(self) -> None:
        port = free_port()
        with server(port, "--max-flows", "2", "--rounds", "1") as one:
            answer = client(port, "--flows", "3")
            self.assertEqual(answer.returncode, 1)
            self.assertIn("its --max-flows may be too small", answer.stderr)
            self.assertEqual(one.wait(60), 1)

    def test_a_client_says_that_it_waits_for_a_server(self) -> None:
        port = free_port()
        command = [PROGRAM, "client", f"127.0.0.1:{port}", "--warm-up", "0.05", "--seconds", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waiting:
            try:
                assert waiting.stderr
                said = waiting.stderr.readline()
                self.assertIn(f"waiting up to 30 s for `gpurx-perf server` at 127.0.0.1 port {port}: ", said)
                with server(port, "--rounds", "1"):
                    self.assertEqual(waiting.wait(60), 0)
            finally:
                waiting.kill()

    def test_an_interface_that_does_not_exist(self) -> None:
        with server(free_port(), "--interface", "gpurx-eht0") as one:
            said = one.communicate(timeout=60)[1]
        self.assertRegex(said, "^gpurx-perf: find interface gpurx-eht0: No such device; interfaces in .*: lo")
        self.assertEqual(one.returncode, 1)

    def test_a_server_ends_when_it_is_told(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with server(free_port()) as one:
                assert one.stderr
                one.stderr.readline()
                one.send_signal(number)
                self.assertEqual(one.wait(60), 0)

    def test_a_server_that_is_told_between_two_rounds_ends(self) -> None:
        for later in range(20):
            port = free_port()
            with server(port) as one:
                assert one.stderr
                one.stderr.readline()
                self.say_pattern(port, 0)
                time.sleep(later * 20e-6)
                one.terminate()
                self.assertEqual(one.wait(60), 0)

    def kill_a_client(self, port: int) -> None:
        """Once a part of its load has come to the server."""
        with contextlib.ExitStack() as held:
            between = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            between.settimeout(60)
            command = [PROGRAM, "client", "127.0.0.1:{}".format(between.getsockname()[1]), "--flows", "1",
                       "--seconds", "600", "--warm-up", "0"]
            sender = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            held.callback(sender.wait)
            held.callback(sender.kill)
            flow = held.enter_context(between.accept()[0])
            to = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            came = 0
            while came < 1_000_000:
                for each in select.select([flow, to], [], [])[0]:
                    data = each.recv(65536)
                    self.assertTrue(data, "it ends too early")
                    (to if each is flow else flow).sendall(data)
                    came += len(data) if each is flow else 0

    def test_a_client_that_is_killed_ends_its_round_and_no_other(self) -> None:
        port = free_port()
        with server(port) as one:
            assert one.stderr
            one.stderr.readline()  # it listens
            self.kill_a_client(port)
            answer = client(port)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            one.terminate()
            self.assertRegex(one.communicate(timeout=60)[1], "error: round 1: .+")
            self.assertEqual(one.returncode, 0)

    def test_a_client_that_is_killed_ends_a_number_of_rounds(self) -> None:
        port = free_port()
        with server(port, "--rounds", "2") as one:
            assert one.stderr
            one.stderr.readline()  # it listens
            self.kill_a_client(port)
            self.assertEqual(one.wait(60), 1)

    def test_usage(self) -> None:
        self.assertEqual(subprocess.run([PROGRAM, "client"], capture_output=True, check=False).returncode, 2)
        version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        self.assertRegex(version, r"^gpurx-perf \d+\.\d+\.\d+\n$")

    def test_man_page(self) -> None:
        """Has all options, each with an entry of its own, and no others."""
        page = Path(MAN_PAGE).read_text(encoding="utf-8").replace("\\-", "-")
        helps = "".join(
            subprocess.run([PROGRAM, *which, "--help"], capture_output=True, text=True, check=True).stdout
            for which in ((), ("server",), ("client",))
        )
        options = set(re.findall(r"--[a-z][a-z-]*", helps)) - {"--help", "--read"}
        self.assertEqual(options, set(re.findall(r"--[a-z][a-z-]*", page)) - {"--read"})
        entries = "\n".join(re.findall(r"^\.TP\n(.+)$", page, re.MULTILINE))
        self.assertEqual(options - set(re.findall(r"--[a-z][a-z-]*", entries)), set())


if __name__ == "__main__":
    MAN_PAGE = sys.argv.pop()
    PROGRAM = sys.argv.pop()
    unittest.main()
