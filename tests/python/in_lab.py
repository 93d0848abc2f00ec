# SPDX-License-Identifier: Apache-2.0
"""The package over transport devmem, in the lab's guest: the software NIC writes into the memory of the tensors' session.

    in_lab.py        (tests/python/lab.sh runs it)
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import gpurx

HERE = Path(__file__).parent
NIC = {"interface": "dms0", "transport": "devmem", "size": 16 << 20}
WEIGHTS = {
    "a": np.random.default_rng(1).standard_normal((1000, 300), dtype=np.float32),
    "b": np.arange(100_000, dtype=np.int16),
}


@contextlib.contextmanager
def in_peer(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process on the other side of the wire."""
    process = subprocess.Popen(["ip", "netns", "exec", "peer", *command], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


SEND = """
import sys, numpy as np
from gpurx._sender import TensorSender
with TensorSender(sys.argv[1]) as sender:
    for start in range(0, 20000, 500):
        i = np.arange(start, start + 500)
        sender.send(x=np.repeat(i, 64).reshape(500, 64).astype(np.float32), y=i)
"""


class OverDevmem(unittest.TestCase):
    def receive(self, **options: Any) -> None:
        """20,000 rows, all of which the NIC has written."""
        with gpurx.TensorStream("10.77.0.1:9000", batch_size=512, **options) as stream:
            self.assertIn("devmem: in use", stream.explain())
            with in_peer(sys.executable, "-c", SEND, "10.77.0.1:9000"):
                at = 0
                for batch in stream:
                    i = np.arange(at, at + batch.rows)
                    x, y = (np.from_dlpack(one, device="cpu") for one in (batch.x, batch.y))
                    self.assertTrue(np.array_equal(y, i))
                    self.assertTrue((x == i[:, None]).all())
                    at += batch.rows
            self.assertEqual(at, 20000)
            counted = stream.session.stats()
            self.assertGreaterEqual(counted["device_bytes"], 20000 * (64 * 4 + 8))

    def test_batches_that_the_nic_has_written(self) -> None:
        self.receive(**NIC)

    def test_on_a_gpu(self) -> None:
        try:
            self.receive(memory="gpu:0", **NIC)
        except gpurx.Error as error:
            if error.category == "gpurx" and error.code == 3:
                self.skipTest(str(error))
            raise

    def test_weights_from_a_server(self) -> None:
        directory = Path(os.environ.get("TMPDIR", "/tmp")) / "gpurx-python-lab"
        directory.mkdir(exist_ok=True)
        (directory / "model.safetensors").write_bytes(safetensors.numpy.save(WEIGHTS))
        server = [sys.executable, str(HERE / "ranges.py"), "10.77.0.2", "8080", str(directory)]
        with in_peer(*server) as process, gpurx.Session(**NIC) as session:
            assert process.stdout
            process.stdout.readline()
            weights = gpurx.load_safetensors(
                "http://10.77.0.2:8080/model.safetensors", session=session, chunk_size=256 << 10
            )
            for name, one in weights.items():
                self.assertTrue(np.array_equal(np.from_dlpack(one), WEIGHTS[name]), name)
            self.assertEqual(weights.transport, "devmem")
            self.assertGreater(session.stats()["device_bytes"], 1_300_000)
            pool = session.pool_stats()
            assert pool
            parts = ("free", "in_kernel", "on_loan", "parked", "in_reads")
            self.assertEqual(sum(pool[part] for part in parts), pool["pages"])
            self.assertEqual((pool["ring_demand"], pool["overruns"]), (128, 0))
            self.assertGreaterEqual(pool["in_kernel"], 128)

    def test_the_nic_is_restored_when_python_ends(self) -> None:
        script = f"""
import gpurx, subprocess
stream = gpurx.TensorStream("10.77.0.1:9000", **{NIC})
print(subprocess.run(["ethtool", "-n", "dms0"], capture_output=True, text=True).stdout)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        self.assertIn("Total 1 rules", done.stdout)
        journals = [path for path in Path("/run/gpurx").iterdir() if path.suffix != ".lock"]
        self.assertEqual(journals, [])

    def tearDown(self) -> None:
        self.assertEqual([one for one in threading.enumerate() if one is not threading.main_thread()], [])
        rules = subprocess.run(["ethtool", "-n", "dms0"], capture_output=True, text=True, check=True).stdout
        self.assertIn("Total 0 rules", rules)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    for test, reason in result.skipped:
        print(f"SKIP {test.id()}: {reason}")
    for test, _ in result.failures + result.errors:
        print(f"FAIL {test.id()}")
    print(f"{result.testsRun - failed - len(result.skipped)} passed, {failed} failed, {len(result.skipped)} skipped")
    sys.exit(failed > 0)
