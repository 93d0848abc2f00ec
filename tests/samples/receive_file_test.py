#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""samples/receive_file with transport copy, on loopback: receive_file_test.py PROGRAM [DIRECTORY].

DIRECTORY has the fake CUDA driver; without it the program was built without CUDA.
"""

import hashlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from pathlib import Path

PROGRAM = ""
GPU_DRIVER = ""
DATA = random.Random(1).randbytes(5_000_001)
SHA256 = hashlib.sha256(DATA).hexdigest()


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [PROGRAM, *arguments],
        env=dict(os.environ, LD_LIBRARY_PATH=GPU_DRIVER) if GPU_DRIVER else None,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def listening(*arguments: str) -> tuple[subprocess.Popen[str], int]:
    """A receiver that listens, and its port."""
    receiver = start("--listen", "127.0.0.1:0", "--transport", "copy", *arguments)
    assert receiver.stderr
    line = receiver.stderr.readline()
    port = re.match(r"listening on port (\d+), transport copy", line)
    if not port:
        receiver.kill()
        raise AssertionError(f"it does not listen: {line + receiver.communicate()[1]}")
    return receiver, int(port[1])


def send(port: int, data: bytes) -> socket.socket:
    sender = socket.create_connection(("127.0.0.1", port), timeout=60)
    sender.sendall(data)
    return sender


class ReceiveFile(unittest.TestCase):
    def finish(self, receiver: subprocess.Popen[str], status: int) -> tuple[str, str]:
        out, err = receiver.communicate(timeout=60)
        self.assertEqual(receiver.returncode, status, out + err)
        return out, err

    def check_received(self, *arguments: str) -> str:
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "received"
            receiver, port = listening("--output", str(output), "--expect-sha256", SHA256, *arguments)
            send(port, DATA).close()
            out, _ = self.finish(receiver, 0)
            self.assertEqual(output.read_bytes(), DATA)
        return out

    def test_read(self) -> None:
        out = self.check_received()
        self.assertIn(f"received              {len(DATA)} ", out)
        self.assertIn(f"SHA-256               {SHA256}", out)
        self.assertIn("copy: in use", out)
        self.assertIn("devmem: not in use: transport copy was requested", out)

    def test_wrong_bytes_replace_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            output = Path(directory) / "received"
            output.write_bytes(b"before")
            receiver, port = listening("--output", str(output), "--expect-sha256", SHA256)
            send(port, DATA[:-1]).close()
            self.finish(receiver, 3)
            self.assertEqual(output.read_bytes(), b"before")
            self.assertEqual(os.listdir(directory), ["received"])

    def test_what_ends_early_leaves_nothing(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            receiver, port = listening("--output", str(Path(directory) / "received"))
            with send(port, DATA):
                receiver.terminate()
                self.finish(receiver, 130)
            self.assertEqual(os.listdir(directory), [])

    def test_output_that_cannot_be(self) -> None:
        receiver = start("--listen", "127.0.0.1:0", "--transport", "copy", "--output", "/nowhere/received")
        _, err = self.finish(receiver, 1)
        self.assertIn("create /nowhere/received", err)

    def test_standard_output(self) -> None:
        receiver, port = listening("--output", "-", "--expect-sha256", SHA256)
        send(port, b"some bytes").close()
        out, err = self.finish(receiver, 3)
        self.assertEqual(out, "some bytes")
        self.assertIn("received              10 ", err)

    def test_loan(self) -> None:
        # Less memory than bytes: the loans come back while it receives.
        self.check_received("--loan", "--memory-size", "1MiB")

    def test_gpu(self) -> None:
        if not GPU_DRIVER:
            self.skipTest("built without CUDA")
        for arguments in (), ("--loan", "--memory-size", "2MiB"):
            out = self.check_received("--memory", "gpu:0", *arguments)
            self.assertIn("copy: in use", out)

    def test_gpu_of_this_process(self) -> None:
        if not GPU_DRIVER:
            self.skipTest("built without CUDA")
        with unittest.mock.patch.dict(os.environ, LOCAL_RANK="0"):
            out = self.check_received("--memory", "gpu:local")
        self.assertIn("copy: in use", out)
        with unittest.mock.patch.dict(os.environ, LOCAL_RANK="99"):
            _, err = self.finish(start("--listen", "127.0.0.1:0", "--memory", "gpu:local"), 2)
        self.assertIn("LOCAL_RANK '99'", err)

    def test_no_gpu(self) -> None:
        receiver = start("--listen", "127.0.0.1:0", "--memory", "gpu:99")
        _, err = self.finish(receiver, 4)
        self.assertRegex(err, "error: .*(open GPU 99|on_host)")

    def test_json(self) -> None:
        report = json.loads(self.check_received("--json"))
        self.assertEqual(report["sha256"], SHA256)
        self.assertEqual(report["transport"], "copy")
        self.assertEqual(report["bytes"]["total"], len(DATA))

    def test_connects(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(60)
            port = server.getsockname()[1]
            receiver = start("--connect", f"127.0.0.1:{port}", "--transport", "copy", "--expect-sha256", SHA256)

            def serve() -> None:
                with server.accept()[0] as peer:
                    peer.sendall(DATA)

            thread = threading.Thread(target=serve)
            thread.start()
            self.finish(receiver, 0)
            thread.join()

    def test_nothing_sent(self) -> None:
        receiver, port = listening("--expect-sha256", hashlib.sha256(b"").hexdigest())
        send(port, b"").close()
        self.finish(receiver, 0)

    def test_other_bytes(self) -> None:
        receiver, port = listening("--expect-sha256", SHA256)
        send(port, DATA[:-1]).close()
        _, err = self.finish(receiver, 3)
        self.assertIn(SHA256, err)

    def test_connection_reset(self) -> None:
        receiver, port = listening("--expect-sha256", SHA256)
        sender = send(port, 8 * DATA)  # more than the sockets take, so that it is in the middle of it
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sender.close()
        _, err = self.finish(receiver, 1)
        self.assertIn("Connection reset by peer", err)

    def test_interrupted(self) -> None:
        receiver, port = listening()
        with send(port, DATA[:1000]):
            receiver.send_signal(signal.SIGINT)
            self.finish(receiver, 130)

    def test_nobody_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        _, err = self.finish(start("--connect", f"127.0.0.1:{port}", "--transport", "copy"), 1)
        self.assertIn(f"connect to 127.0.0.1 port {port}: Connection refused", err)

    def test_wrong_command_line(self) -> None:
        for arguments in (
            [],
            ["--listen", "9000"],
            ["--listen", "::1:9000"],
            ["--listen", "127.0.0.1:9000", "--connect", "127.0.0.1:9000"],
            ["--listen", "127.0.0.1:9000", "--memory", "gpu"],
            ["--listen", "127.0.0.1:9000", "--transport", "magic"],
            ["--listen", "127.0.0.1:9000", "--expect-sha256", "12"],
        ):
            with self.subTest(arguments):
                _, err = self.finish(start(*arguments), 2)
                self.assertNotEqual(err, "")

    def test_devmem_without_interface(self) -> None:
        _, err = self.finish(start("--listen", "127.0.0.1:0", "--transport", "devmem"), 4)
        self.assertIn("interface", err)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if len(sys.argv) > 1:
        GPU_DRIVER = sys.argv.pop(1)
    unittest.main()
