# SPDX-License-Identifier: Apache-2.0
"""The package over the transport GPURX_LAB_TRANSPORT (devmem), in the lab's guest: the software NIC writes into the memory of the tensors' session.

    in_lab.py GPURXD        (tests/python/lab.sh runs it)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

import gpurx
import gpurx.numpy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "ingest"))
from daemon import NOBODY, gpurxd  # noqa: E402: found by the line above

DAEMON = ""
TRANSPORT = os.environ.get("GPURX_LAB_TRANSPORT", "devmem")
NIC = {"interface": "dms0", "transport": TRANSPORT, "size": 16 << 20}
INDEX = "model.safetensors.index.json"
WEIGHTS = {
    "a": np.random.default_rng(1).standard_normal((1000, 300), dtype=np.float32),
    "b": np.arange(100_000, dtype=np.int16),
}


@contextlib.contextmanager
def in_peer(*command: str) -> Iterator[subprocess.Popen[str]]:
    """A process on the other side of the wire."""
    command = ("ip", "netns", "exec", "peer", *command)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def serving(directory: Path, port: int) -> Iterator[str]:
    """The root of a server's URLs."""
    with in_peer(sys.executable, str(HERE / "ranges.py"), "10.77.0.2", str(port), str(directory)) as process:
        assert process.stdout
        process.stdout.readline()
        yield f"http://10.77.0.2:{port}/"


@contextlib.contextmanager
def s3(file: Path, *shards: Path) -> Iterator[None]:
    """A server of it under any key, and of shards under shards/, that checks signatures, and the environment that finds it."""
    known = {"AWS_ACCESS_KEY_ID": "written-id", "AWS_SECRET_ACCESS_KEY": "written/secret+key", "AWS_REGION": "us-east-1"}
    program = HERE.parent / "ingest" / "strict_s3.py"
    with in_peer(sys.executable, str(program), str(file), "10.77.0.2", *map(str, shards)) as process:
        assert process.stdout
        endpoint, _, _ = json.loads(process.stdout.readline())
        with unittest.mock.patch.dict(os.environ, known, AWS_ENDPOINT_URL=endpoint):
            yield
        process.communicate(timeout=60)


SEND = """
import sys, numpy as np
from gpurx._sender import TensorSender
with TensorSender(sys.argv[1]) as sender:
    for start in range(0, 20000, 500):
        i = np.arange(start, start + 500)
        sender.send(x=np.repeat(i, 64).reshape(500, 64).astype(np.float32), y=i)
"""

SERVE = """
import sys, gpurx
with gpurx.ModelServer(gpurx.load_safetensors(sys.argv[1]), sys.argv[2]) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""

# Python may be where its user alone can read: rights are given up when all is loaded.
LOAD_WITHOUT_RIGHTS = f"""
import hashlib, json, os, sys, gpurx, gpurx.numpy, numpy
os.setgroups([])
os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
with open("/proc/self/status") as status:
    assert "CapEff:\\t0000000000000000" in status.read()
with gpurx.Session(**{NIC}) as session:
    arrays = gpurx.numpy.load_file(sys.argv[1], session=session, chunk_size=64 << 10)
    found = {{name: hashlib.sha256(one.tobytes()).hexdigest() for name, one in arrays.items()}}
    print(json.dumps([session.explain(), session.stats(), found]))
"""

# The session has 5 MiB, what is read ahead 6 MiB; the first tensor starts all threads.
LOAD_UNDER_LIMIT = """
import os, sys
from pathlib import Path
group, url, transport, whole = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "whole"
(group / "cgroup.procs").write_text(str(os.getpid()))
import numpy, gpurx
nic = {"interface": "dms0"} if transport != "copy" else {}
limit = {} if whole else {"memory_limit": 6 << 20}
with gpurx.Session(transport=transport, size=5 << 20, **nic) as session, \\
        gpurx.safe_open(url, "np", session=session, chunk_size=256 << 10, **limit) as file:
    file.get_slice("00")[:1]
    try:
        (group / "memory.reclaim").write_text("1G")
    except BlockingIOError:
        pass  # there is less than that
    limit = int((group / "memory.current").read_text()) + file.nbytes // 10
    if whole:  # for comparison, without a limit
        kept = file.get_tensors()
        assert int((group / "memory.peak").read_text()) > limit + file.nbytes // 2
        sys.exit()
    (group / "memory.max").write_text(str(limit))
    for name, one in file:
        assert one[0] == one[-1] == int(name), name
        del one
"""


@contextlib.contextmanager
def memory_cgroup() -> Iterator[Path]:
    """An empty one, whose memory can be limited."""
    with tempfile.TemporaryDirectory(prefix="gpurx-python-") as root:
        subprocess.run(["mount", "-t", "cgroup2", "none", root], check=True)
        try:
            (Path(root) / "cgroup.subtree_control").write_text("+memory")
            group = Path(root) / "gpurx-python"
            group.mkdir()
            try:
                yield group
            finally:
                group.rmdir()
        finally:
            subprocess.run(["umount", "--lazy", root], check=True)


class OverDevmem(unittest.TestCase):
    directory: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = Path(tempfile.mkdtemp(prefix="gpurx-python-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        for name, one in WEIGHTS.items():
            safetensors.numpy.save_file({name: one}, cls.directory / f"{name}.safetensors")
        safetensors.numpy.save_file(WEIGHTS, cls.directory / "model.safetensors")
        weight_map = {name: f"{name}.safetensors" for name in WEIGHTS}
        (cls.directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    def receive(self, **options: Any) -> None:
        """20,000 rows, all of which the NIC has written."""
        with gpurx.TensorStream("10.77.0.1:9000", batch_size=512, **options) as stream:
            self.assertIn(f"{TRANSPORT}: in use", stream.explain())
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

    def check_arrays(self, arrays: dict[str, Any], received: int) -> None:
        """All of them, and so many bytes are enough for them."""
        self.assertEqual(arrays.keys(), WEIGHTS.keys())
        for name, one in arrays.items():
            self.assertTrue(np.array_equal(one, WEIGHTS[name]), name)
        self.assertGreater(received, sum(one.nbytes for one in WEIGHTS.values()))

    def check(self, place: str, session: gpurx.Session, **options: Any) -> None:
        """All of them come from there, and the NIC writes every byte."""
        before = session.stats()["device_bytes"]
        arrays = gpurx.numpy.load_file(place, session=session, chunk_size=64 << 10, **options)
        counted = session.stats()
        self.check_arrays(arrays, counted["device_bytes"] - before)
        self.assertEqual(counted["host_bytes"], 0)

    def test_weights_from_a_server(self) -> None:
        with serving(self.directory, 8080) as root, gpurx.Session(**NIC) as session:
            weights = gpurx.load_safetensors(root + "model.safetensors", session=session, chunk_size=256 << 10)
            arrays = {name: np.from_dlpack(one) for name, one in weights.items()}
            self.check_arrays(arrays, session.stats()["device_bytes"])
            self.assertEqual(weights.transport, TRANSPORT)
            pool = session.pool_stats()
            assert pool
            parts = ("free", "in_ring", "in_queues", "on_loan", "parked", "in_reads")
            self.assertEqual(sum(pool[part] for part in parts), pool["pages"])
            self.assertEqual((pool["ring_demand"], pool["overruns"]), (128, 0))
            self.assertEqual(pool["in_ring"], 128)

    def test_a_model_in_several_files(self) -> None:
        with serving(self.directory, 8080) as root, gpurx.Session(**NIC) as session:
            self.check(root + INDEX, session)

    def test_slices(self) -> None:
        with (
            serving(self.directory, 8080) as root,
            gpurx.Session(**NIC) as session,
            gpurx.safe_open(root + "model.safetensors", "np", session=session, chunk_size=32 << 10) as file,
        ):
            rows = file.get_slice("a")[700:800]
            self.assertTrue(np.array_equal(rows, WEIGHTS["a"][700:800]))
            # With headers, and what the first answer had beside that of the file.
            received = session.stats()["device_bytes"]
            self.assertTrue(rows.nbytes < received < 2 * rows.nbytes, received)
            for wanted in np.s_[:, 10:20], np.s_[5:900:7, 299], np.s_[-1]:
                self.assertTrue(np.array_equal(file.get_slice("a")[wanted], WEIGHTS["a"][wanted]), wanted)
            file.prefetch(["b", ("a", np.s_[:10])])
            self.assertTrue(np.array_equal(file.get_tensor("b"), WEIGHTS["b"]))
            self.assertTrue(np.array_equal(file.get_slice("a")[:10], WEIGHTS["a"][:10]))
            self.assertEqual(session.stats()["host_bytes"], 0)

    def test_s3(self) -> None:
        shards = [self.directory / f"{name}.safetensors" for name in WEIGHTS]
        with s3(self.directory / "model.safetensors", *shards), gpurx.Session(**NIC) as session:
            for place in "s3://models/any", "s3://models/alone/", "s3://models/shards/":
                self.check(place, session)
            with gpurx.safe_open("s3://models/any", "np", session=session) as file:
                self.assertTrue(np.array_equal(file.get_slice("b")[70:99_000], WEIGHTS["b"][70:99_000]))
            with unittest.mock.patch.dict(os.environ, AWS_SECRET_ACCESS_KEY="another"), self.assertRaises(gpurx.Forbidden):
                gpurx.load_safetensors("s3://models/any", session=session)

    def test_mirrors(self) -> None:
        other = Path(tempfile.mkdtemp(prefix="gpurx-python-"))
        self.addCleanup(shutil.rmtree, other)
        shutil.copy(self.directory / "model.safetensors", other / "copy")
        with serving(self.directory, 8080) as root, serving(other, 8081) as elsewhere, gpurx.Session(**NIC) as session:
            self.check(root + "model.safetensors", session, mirrors=[elsewhere + "copy"])
            # What one has not the other brings.
            self.check(root + "absent", session, mirrors=[elsewhere + "copy"])
            with self.assertRaises(gpurx.NotFound):
                gpurx.load_safetensors(root + "absent", session=session)

    def test_from_running_replicas(self) -> None:
        file = str(self.directory / "model.safetensors")
        command = (sys.executable, "-c", SERVE, file)
        with (
            in_peer(*command, "10.77.0.2:8080") as first,
            in_peer(*command, "10.77.0.2:8081") as second,
            gpurx.Session(**NIC) as session,
        ):
            url, other = (one.stdout.readline().strip() for one in (first, second) if one.stdout)
            self.check(url, session, mirrors=[other])
            first.kill()
            first.wait()
            self.check(url, session, mirrors=[other])

    @unittest.skipIf(TRANSPORT != "devmem", "gpurxd has no other transport")
    def test_without_rights(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="gpurx-python-"))
        self.addCleanup(shutil.rmtree, directory)
        with gpurxd(DAEMON, directory), serving(self.directory, 8080) as root:
            command = [sys.executable, "-c", LOAD_WITHOUT_RIGHTS, root + "model.safetensors"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        explanation, counted, found = json.loads(done.stdout)
        self.assertIn("devmem: in use", explanation)
        self.assertIn("set up by gpurxd", explanation)
        self.assertEqual(found, {name: hashlib.sha256(one.tobytes()).hexdigest() for name, one in WEIGHTS.items()})
        self.assertGreater(counted["device_bytes"], sum(one.nbytes for one in WEIGHTS.values()))
        self.assertEqual(counted["host_bytes"], 0)

    def test_under_a_cgroup_of_a_tenth_of_the_models_size(self) -> None:
        directory = Path(tempfile.mkdtemp(prefix="gpurx-python-"))
        self.addCleanup(shutil.rmtree, directory)
        tensors = {f"{i:02}": np.full(1 << 20, i, np.int32) for i in range(40)}
        safetensors.numpy.save_file(tensors, directory / "large.safetensors")
        with serving(directory, 8080) as root:
            for transport, whole in ("copy", False), (TRANSPORT, False), ("copy", True):
                with self.subTest(transport=transport, whole=whole), memory_cgroup() as group:
                    command = [sys.executable, "-c", LOAD_UNDER_LIMIT, str(group), root + "large.safetensors", transport]
                    command.append("whole" if whole else "one by one")
                    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    events = dict(line.split() for line in (group / "memory.events").read_text().splitlines())
                    self.assertEqual(events["oom_kill"], "0")

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
    DAEMON = sys.argv.pop(1)
    unittest.main(verbosity=2)
