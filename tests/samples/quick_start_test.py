#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program that README.md prints:  quick_start_test.py PROGRAM. Its port is fixed, so each run has a loopback address."""

import random
import re
import socket
import subprocess
import sys
import unittest

PROGRAM = ""


def listener() -> socket.socket:
    for _ in range(100):
        address = f"127.{random.randrange(1, 255)}.{random.randrange(256)}.{random.randrange(1, 255)}"
        try:
            return socket.create_server((address, 9000))
        except OSError:
            continue
    raise RuntimeError("no loopback address has port 9000 free")


class QuickStart(unittest.TestCase):
    def test_it_receives(self) -> None:
        with listener() as server:
            program = subprocess.Popen([PROGRAM, server.getsockname()[0]], stdout=subprocess.PIPE, text=True)
            connection, _ = server.accept()
            with connection:
                connection.sendall(bytes(1000))
                out, _ = program.communicate()
        self.assertEqual(program.returncode, 0)
        received = re.search(r"^(\d+) bytes in \d+ fragments$", out, re.M)
        self.assertTrue(received, out)
        self.assertEqual(int(received[1]), 1000)
        self.assertIn("copy: in use", out)

    def test_it_fails_with_the_reason(self) -> None:
        with listener() as server:
            address = server.getsockname()[0]
        program = subprocess.run([PROGRAM, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertNotEqual(program.returncode, 0)
        self.assertIn("Connection refused", program.stderr)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
