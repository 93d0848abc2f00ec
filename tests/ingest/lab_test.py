#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-fetch over devmem, in the lab's guest: lab_test.py PROGRAM [DIRECTORY]. lab.sh starts it.

nginx serves in the namespace `peer`; dms0 receives. DIRECTORY has the fake CUDA driver, whose memory the NIC can write.
"""

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import fetching
from crc import crc32c
from fetching import FetchTest
from safetensors_file import ODD_TENSORS, write_safetensors
from servers import Nginx, model_file

HOSTS = ("10.77.0.2", "fd77::2")
IN_PEER = ("ip", "netns", "exec", "peer")
DATA = random.Random(1).randbytes(5_000_001)
SERVER = """
    location /single/ { alias ROOT/; keepalive_requests 1; }
    location /few/ { alias ROOT/; keepalive_requests 3; }
    location /whole/ { alias ROOT/; max_ranges 0; }
    location /slow/ { alias ROOT/; limit_rate 400k; }
"""


class Devmem(FetchTest):
    limit = 240
    root: Path
    server: Nginx

    @classmethod
    def setUpClass(cls) -> None:
        cls.root = Path(tempfile.mkdtemp(prefix="gpurx-fetch-"))
        cls.addClassCleanup(shutil.rmtree, cls.root)
        (cls.root / "object").write_bytes(DATA)
        (cls.root / "empty").touch()
        (cls.root / "tensors").write_bytes(write_safetensors(ODD_TENSORS))
        (cls.root / "model").symlink_to(model_file())
        locations = SERVER.replace("ROOT", str(cls.root))
        cls.server = Nginx(cls.root, server=locations, hosts=HOSTS, port=8000, prefix=IN_PEER)
        cls.addClassCleanup(cls.server.stop)

    def tearDown(self) -> None:
        rules = subprocess.run(["ethtool", "-n", "dms0"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn("Total 0 rules", rules, "the NIC was not left as it was found")

    def test_model(self) -> None:
        report = self.check_tensors(model_file(), self.server.url("model"))
        self.assertEqual(report["retries"], 0)
        self.assertEqual(len(report["tensors"]), 104)

    def test_object(self) -> None:
        arguments = ("--crc32c", "always", "--chunk-size", "300kB")
        report = self.check_undisturbed(self.server.url("object"), *arguments, data=DATA)
        self.assertEqual(report["crc32c"], f"{crc32c(DATA):08x}")

    def test_flows(self) -> None:
        for flows in "1", "16":
            self.check_undisturbed(self.server.url("object"), "--flows", flows, "--chunk-size", "64KiB", data=DATA)

    def test_no_ranges(self) -> None:
        report = self.check_undisturbed(self.server.url("whole/object"), data=DATA)
        self.assertEqual(report["connections"], 1)

    def test_empty(self) -> None:
        self.check_undisturbed(self.server.url("empty"), data=b"")

    def test_connections_that_end(self) -> None:
        # A rule of the NIC for each.
        self.check_undisturbed(self.server.url("single/object"), "--chunk-size", "300kB", data=DATA)
        self.check(self.server.url("few/object"), "--chunk-size", "100kB", data=DATA)

    def test_ipv6(self) -> None:
        self.check_undisturbed(f"http://[fd77::2]:{self.server.port}/object", "--chunk-size", "300kB", data=DATA)

    def test_gpu(self) -> None:
        if not fetching.driver:
            self.skipTest("built without CUDA")
        report = self.load(self.server.url("tensors"), "--memory", "gpu:0", "--chunk-size", "10kB")
        block = self.output.read_bytes()
        for found, expected in zip(report["tensors"], ODD_TENSORS):
            self.assertEqual(block[found["offset"]:found["offset"] + found["bytes"]], expected.data, expected.name)
        self.check_report(report, (self.root / "tensors").stat().st_size)

    def begin_slowly(self) -> subprocess.Popen[str]:
        # A guest without KVM takes seconds to start a server.
        patience = ("--timeout", "2", "--attempts", "12")
        return self.begin(self.server.url("slow/object"), "--chunk-size", "500KiB", *patience)

    def test_server_dies_and_comes_back(self) -> None:
        process = self.begin_slowly()
        self.server.kill()
        time.sleep(0.3)
        self.server.start()
        self.check_recovered(process, DATA)

    def test_server_falls_silent(self) -> None:
        process = self.begin_slowly()
        self.server.signal(signal.SIGSTOP)
        time.sleep(5)
        self.server.signal(signal.SIGCONT)
        self.check_recovered(process, DATA)

    def test_interrupted(self) -> None:
        process = self.begin_slowly()
        process.send_signal(signal.SIGINT)
        self.finish(process, 130)


def main() -> int:
    fetching.program = sys.argv[1]
    fetching.driver = sys.argv[2] if len(sys.argv) > 2 else ""
    fetching.options = ("--interface", "dms0", "--transport", "devmem")
    result = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False).result
    failures = result.failures + result.errors
    for case, _ in failures:
        print(f"FAIL: {case}")
    for case, reason in result.skipped:
        print(f"SKIP {case}: {reason}")
    skipped = len(result.skipped)
    print(f"{result.testsRun - len(failures) - skipped} passed, {len(failures)} failed, {skipped} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
