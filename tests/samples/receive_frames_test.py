#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""samples/receive_frames with transport copy, on loopback: receive_frames_test.py PROGRAM [DIRECTORY].

DIRECTORY has the fake CUDA driver; without it the program was built without CUDA.
"""

import hashlib
import os
import random
import re
import socket
import struct
import subprocess
import sys
import unittest

PROGRAM = ""
GPU_DRIVER = ""
NUMBERS = random.Random(2)


def frame(body: bytes) -> bytes:
    return struct.pack(">Q", len(body)) + body


class ReceiveFrames(unittest.TestCase):
    def receive(self, sent: bytes, *arguments: str) -> "tuple[int, str, str]":
        """What the program does with these bytes: its status, standard output and standard error."""
        receiver = subprocess.Popen(
            [PROGRAM, "--listen", "127.0.0.1:0", "--transport", "copy", *arguments],
            env=dict(os.environ, LD_LIBRARY_PATH=GPU_DRIVER) if GPU_DRIVER else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert receiver.stderr
        line = receiver.stderr.readline()
        port = re.match(r"listening on port (\d+), transport copy", line)
        if not port:
            receiver.kill()
            self.fail(f"it does not listen: {line + receiver.communicate()[1]}")
        with socket.create_connection(("127.0.0.1", int(port[1])), timeout=60) as sender:
            sender.sendall(sent)
        out, err = receiver.communicate()
        return receiver.returncode, out, err

    def check(self, bodies: "list[bytes]", loans: str, *arguments: str) -> None:
        status, out, err = self.receive(b"".join(map(frame, bodies)), *arguments)
        self.assertEqual(status, 0, err)
        whole = b"".join(bodies)
        self.assertRegex(out, rf"^{len(bodies)} frames, {len(whole)} bytes, {loans} loans\n")
        self.assertIn(f"SHA-256 {hashlib.sha256(whole).hexdigest()}\n", out)

    def test_one_loan_a_body(self) -> None:
        bodies = [NUMBERS.randbytes(NUMBERS.randrange(1, 100_000)) for _ in range(200)]
        self.check(bodies, "200")

    def test_empty_bodies(self) -> None:
        self.check([b"", b"x", b"", b""], "1")
        self.check([], "0")

    def test_a_body_beyond_the_loan_limit(self) -> None:
        self.check([NUMBERS.randbytes(9_000_000), b"next"], r"\d+", "--memory-size", "4MiB")

    def test_a_gpu(self) -> None:
        if not GPU_DRIVER:
            self.skipTest("built without CUDA")
        self.check([NUMBERS.randbytes(50_000), NUMBERS.randbytes(7)], "2", "--memory", "gpu:0")

    def test_the_end_inside_a_frame(self) -> None:
        for sent in (frame(b"whole") + b"\0\0\0", frame(b"whole") + struct.pack(">Q", 100) + b"part"):
            with self.subTest(sent):
                status, _, err = self.receive(sent)
                self.assertEqual(status, 1)
                self.assertIn("End of file", err)

    def test_a_hostile_length(self) -> None:
        for length in (1 << 28, (1 << 64) - 1):
            with self.subTest(length):
                status, _, err = self.receive(struct.pack(">Q", length) + b"little")
                self.assertEqual(status, 1)
                self.assertIn("End of file", err)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    if len(sys.argv) > 1:
        GPU_DRIVER = sys.argv.pop(1)
    unittest.main()
