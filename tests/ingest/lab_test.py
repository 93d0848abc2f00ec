#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-fetch over the transport GPURX_LAB_TRANSPORT (devmem), in the lab's guest:
lab_test.py PROGRAM GPURXD DIRECTORY [NAME...]

nginx, and an S3 server that checks signatures, serve in the namespace `peer`; dms0 receives. DIRECTORY has the fake CUDA
driver, whose memory the NIC can write.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import fetching
from crc import crc32c
from daemon import NOBODY, gpurxd
from fetching import FetchTest
from safetensors_file import ODD_TENSORS, Tensor, write_safetensors
from servers import Nginx, StrictS3, model_file

HOSTS = ("10.77.0.2", "fd77::2")
IN_PEER = ("ip", "netns", "exec", "peer")
# The order of the index, and so of the tensors.
SHARDS = {"second.safetensors": ODD_TENSORS[4:], "first.safetensors": ODD_TENSORS[:4]}
DATA = random.Random(1).randbytes(5_000_001)
DAEMON = ""
TRANSPORT = os.environ.get("GPURX_LAB_TRANSPORT", "devmem")
BEFORE = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all")
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
        for name, tensors in SHARDS.items():
            (cls.root / name).write_bytes(write_safetensors(tensors))
        weight_map = {tensor.name: name for name, tensors in SHARDS.items() for tensor in tensors}
        (cls.root / "index.json").write_text(json.dumps({"weight_map": weight_map}))
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

    def check_odd_tensors(self, place: str, expected: list[Tensor], *arguments: str) -> dict[str, Any]:
        report = self.load(place, "--chunk-size", "10kB", *arguments)
        self.assertEqual([one["name"] for one in report["tensors"]], [one.name for one in expected])
        block = self.output.read_bytes()
        for found, one in zip(report["tensors"], expected):
            self.assertEqual(block[found["offset"]:found["offset"] + found["bytes"]], one.data, one.name)
        self.assertEqual(report["transport"], TRANSPORT)
        self.assertEqual(report["bytes"]["host"], 0)
        self.assertGreater(report["bytes"]["device"], sum(len(one.data) for one in expected))
        return report

    def test_model_in_several_files(self) -> None:
        self.check_odd_tensors(self.server.url("index.json"), [one for some in SHARDS.values() for one in some])

    def test_s3(self) -> None:
        s3 = StrictS3(self.root / "tensors", HOSTS[0], prefix=IN_PEER)
        self.addCleanup(s3.stop)
        data = (self.root / "tensors").read_bytes()
        with mock.patch.dict(os.environ, s3.environment):
            report = self.check_undisturbed("s3://models/crc32/any", "--chunk-size", "30kB", data=data)
            self.assertEqual((report["crc32c"], report["crc32c_announced"]), (f"{crc32c(data):08x}", True))
            report = self.check("s3://models/slow-down/2/any", "--chunk-size", "30kB", data=data)
            self.assertGreaterEqual(report["retries"], 1)
            for place in "s3://models/any", "s3://models/alone/":
                with self.subTest(place):
                    self.check_odd_tensors(place, ODD_TENSORS)
            with mock.patch.dict(os.environ, AWS_SECRET_ACCESS_KEY="another"):
                self.assertIn("SignatureDoesNotMatch", self.refused("s3://models/any"))

    def test_mirrors(self) -> None:
        other = Nginx(self.root, hosts=HOSTS[1:], port=8001, prefix=IN_PEER)
        self.addCleanup(other.stop)
        urls = [self.server.url("slow/object"), f"http://[fd77::2]:{other.port}/object"]
        report = self.check(urls[0], "--mirror", urls[1], "--chunk-size", "64KiB", data=DATA)
        self.assertEqual([each["url"] for each in report["mirrors"]], urls)
        brought = [each["bytes"] for each in report["mirrors"]]
        self.assertEqual(sum(brought), len(DATA))
        self.assertGreater(min(brought), 0)
        self.assertEqual([each["left_out"] for each in report["mirrors"]], ["", ""])

    def test_mirror_of_what_is_not_there(self) -> None:
        absent = self.server.url("absent")
        report = self.check(absent, "--mirror", self.server.url("object"), data=DATA)
        self.assertEqual([each["bytes"] for each in report["mirrors"]], [0, len(DATA)])
        self.assertIn("404", report["mirrors"][0]["left_out"])

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
        report = self.check_odd_tensors(self.server.url("tensors"), ODD_TENSORS, "--memory", "gpu:0")
        self.check_report(report, (self.root / "tensors").stat().st_size)

    @unittest.skipIf(TRANSPORT != "devmem", "gpurxd has no other transport")
    def test_without_rights(self) -> None:
        with gpurxd(DAEMON, self.directory), mock.patch.object(fetching, "before", BEFORE):
            report = json.loads(self.fetch(self.server.url("object"), "--json", "--sha256", "--chunk-size", "300kB"))
        self.assertIn("set up by gpurxd", report["explanation"])
        self.assertEqual(report["sha256"], hashlib.sha256(DATA).hexdigest())
        self.check_report(report, len(DATA))

    def begin_slowly(self) -> subprocess.Popen[str]:
        # A guest without KVM takes seconds to start a server.
        retries = ("--timeout", "2", "--attempts", "12")
        return self.begin(self.server, "slow/object", "--chunk-size", "500KiB", *retries)

    def test_server_dies_and_comes_back(self) -> None:
        process = self.begin_slowly()
        self.server.kill()
        self.wait_until(lambda: not fetching.connections_to(self.server.port))
        self.server.start()
        self.check_recovered(process, DATA)

    def test_server_falls_silent(self) -> None:
        process = self.begin_slowly()
        self.stop_until_given_up(self.server)
        self.check_recovered(process, DATA)

    def test_interrupted(self) -> None:
        process = self.begin_slowly()
        process.send_signal(signal.SIGINT)
        self.finish(process, 130)


def main() -> None:
    global DAEMON
    fetching.program, DAEMON = sys.argv[1:3]
    fetching.driver = sys.argv[3]
    fetching.options = ("--interface", "dms0", "--transport", TRANSPORT)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)


if __name__ == "__main__":
    main()
