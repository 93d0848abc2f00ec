#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""samples/training_ingest and tensor_source with transport copy, on loopback, and the sender of the specification:

training_ingest_test.py TRAINING_INGEST TENSOR_SOURCE TENSOR-STREAM.MD [DIRECTORY]

DIRECTORY has the fake CUDA driver; without it the programs were built without CUDA.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path

RECEIVER = ""
SOURCE = ""
SPECIFICATION = ""
GPU_DRIVER = ""
ROWS = 1003


def start(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    drivers = {"LD_LIBRARY_PATH": GPU_DRIVER} if GPU_DRIVER else {}
    return subprocess.Popen(
        [program, *arguments],
        env={**os.environ, **drivers, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def port_of(process: subprocess.Popen[str]) -> int:
    assert process.stderr
    line = process.stderr.readline()
    port = re.match(r"listening on port (\d+)", line)
    if not port:
        process.kill()
        raise AssertionError(f"it does not listen: {line + process.communicate()[1]}")
    return int(port[1])


def npy(path: Path, descr: str, shape: tuple[int, ...], data: bytes) -> None:
    """As NumPy writes it, version 1.0."""
    header = str({"descr": descr, "fortran_order": False, "shape": shape})
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode() + data)


def idx(path: Path, code: int, shape: tuple[int, ...], data: bytes) -> None:
    """As MNIST's files are; `data` is big endian."""
    path.write_bytes(struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape) + data)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class TrainingIngest(unittest.TestCase):
    def setUp(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        folder = Path(self.directory.name)
        numbers = random.Random(1)
        self.x = numbers.randbytes(ROWS * 5 * 4)
        self.image = numbers.randbytes(ROWS * 28 * 28)
        labels = [numbers.randrange(-1000, 1000) for _ in range(ROWS)]
        self.label = struct.pack(f"<{ROWS}i", *labels)
        npy(folder / "x.npy", "<f4", (ROWS, 5), self.x)
        idx(folder / "image-idx3-ubyte", 8, (ROWS, 28, 28), self.image)
        idx(folder / "label-idx1-int", 0x0C, (ROWS,), struct.pack(f">{ROWS}i", *labels))
        (folder / "raw.bin").write_bytes(self.x)
        self.folder = folder
        self.files = (f"--tensor=x={folder}/x.npy", f"--tensor=image={folder}/image-idx3-ubyte",
                      f"--tensor=label={folder}/label-idx1-int")

    def run_process(self, process: subprocess.Popen[str], status: int) -> tuple[str, str]:
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, status, out + err)
        return out, err

    def listening(self, *arguments: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        receiver = start(RECEIVER, "--listen", "127.0.0.1:0", "--transport", "copy", "--json", "--sha256", *arguments,
                         **environment)
        return receiver, f"127.0.0.1:{port_of(receiver)}"

    def check_hashes(self, out: str, **data: bytes) -> dict[str, object]:
        report: dict[str, object] = json.loads(out)
        self.assertEqual(report["sha256"], {name: sha256(each) for name, each in data.items()})
        return report

    def test_files(self) -> None:
        receiver, where = self.listening("--batch-size", "64")
        sender = start(SOURCE, "--to", where, *self.files, "--epochs", "2", "--crc", "--rows-per-frame", "100")
        self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        report = self.check_hashes(out, x=2 * self.x, image=2 * self.image, label=2 * self.label)
        self.assertEqual(report["rows"], 2 * ROWS)
        self.assertEqual(report["batches"], 32)
        self.assertEqual(report["frames"], 22)
        self.assertEqual(report["errors"], [])

    def test_gpu(self) -> None:
        if not GPU_DRIVER:
            self.skipTest("built without CUDA")
        receiver, where = self.listening("--batch-size", "64", "--memory", "gpu:0")
        sender = start(SOURCE, "--to", where, *self.files, "--crc", "--rows-per-frame", "100")
        self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        self.check_hashes(out, x=self.x, image=self.image, label=self.label)

    def test_raw_and_synthetic(self) -> None:
        receiver, where = self.listening()
        sender = start(SOURCE, "--to", where, f"--tensor=x={self.folder}/raw.bin:F32:5", "--tensor=y=synthetic:BF16:2x3",
                       "--tensor=z=synthetic:I64:", "--rows", str(ROWS))
        self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        report = json.loads(out)
        self.assertEqual(report["sha256"]["x"], sha256(self.x))
        self.assertEqual(report["bytes"], ROWS * (20 + 12 + 8))

    def test_sources_in_rounds_are_the_files(self) -> None:
        """Of three sources each sends every third frame: in rounds they come together to what one would send."""
        receiver, where = self.listening("--sources", "3", "--order", "rounds", "--threads", "2", "--train-time", "0.1")
        senders = [
            start(SOURCE, "--to", where, *self.files, "--rows-per-frame", "10", RANK=str(rank), WORLD_SIZE="3")
            for rank in (2, 0, 1)
        ]
        for sender in senders:
            self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        self.check_hashes(out, x=self.x, image=self.image, label=self.label)

    def test_ranks_share_the_sources(self) -> None:
        receivers = [self.listening("--sources", "3", "--order", "rounds", RANK=str(rank), WORLD_SIZE="2")
                     for rank in (0, 1)]
        to = ["--to", receivers[0][1], "--to", receivers[1][1]]
        senders = [start(SOURCE, *to, *self.files, "--rows-per-frame", "200", "--source", str(rank), "--sources", "3")
                   for rank in range(3)]
        for sender in senders:
            self.run_process(sender, 0)
        rows = [json.loads(self.run_process(receiver, 0)[0])["rows"] for receiver, _ in receivers]
        # Frames 0 to 5, of which the last has 3 rows; rank 1 has source 1: frames 1 and 4.
        self.assertEqual(rows, [ROWS - 400, 400])

    def test_connects_to_sources(self) -> None:
        senders = [start(SOURCE, "--listen", "127.0.0.1:0", *self.files, "--source", str(source), "--sources", "2")
                   for source in (0, 1)]
        to = [argument for sender in senders for argument in ("--connect", f"127.0.0.1:{port_of(sender)}")]
        receiver = start(RECEIVER, *to, "--transport", "copy", "--json", "--sha256", "--order", "rounds")
        for sender in senders:
            self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        self.check_hashes(out, x=self.x, image=self.image, label=self.label)

    def test_killed_senders_come_again(self) -> None:
        """Nothing is lost or doubled, however often a sender is killed in the middle."""
        receiver, where = self.listening("--batch-size", "32")
        sends = (*self.files, "--rows-per-frame", "16", "--epochs", "20", "--crc")
        for resume in ([], ["--resume"], ["--resume"]):
            self.kill_in_the_middle(where, *sends, *resume)
        arguments = ("--to", where, *sends)
        _, err = self.run_process(start(SOURCE, *arguments), 1)
        self.assertRegex(err, "another sender of this number has sent .*--resume goes on")
        out, _ = self.run_process(start(SOURCE, *arguments, "--resume", "--json"), 0)
        self.assertLess(json.loads(out)["frames"], 20 * 63)
        out, err = self.run_process(receiver, 0)
        report = self.check_hashes(out, x=20 * self.x, image=20 * self.image, label=20 * self.label)
        errors = report["errors"]
        assert isinstance(errors, list)
        self.assertEqual(len(errors), 1, err)
        self.assertIn("the sender's number is invalid or in use", errors[0]["text"])

    def kill_in_the_middle(self, where: str, *arguments: str) -> None:
        """A sender, once some frames have gone to the receiver."""
        host, port = where.split(":")
        with contextlib.ExitStack() as held:
            listens = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            sender = start(SOURCE, "--to", "127.0.0.1:{}".format(listens.getsockname()[1]), *arguments)
            held.callback(sender.communicate)
            held.callback(sender.kill)
            listens.settimeout(60)
            sends = held.enter_context(listens.accept()[0])
            receives = held.enter_context(socket.create_connection((host, int(port))))

            def answer() -> None:
                with contextlib.suppress(OSError):
                    while data := receives.recv(4096):
                        sends.sendall(data)

            answers = threading.Thread(target=answer)
            answers.start()
            passed = 0
            while passed < 200_000:
                data = sends.recv(65536)
                self.assertTrue(data, "it ends too early")
                receives.sendall(data)
                passed += len(data)
            sender.kill()
            sender.wait()
            receives.shutdown(socket.SHUT_WR)
            answers.join()

    def test_a_secret(self) -> None:
        def written(name: str, text: str) -> tuple[str, str]:
            (self.folder / name).write_text(text, encoding="ascii")
            return "--secret-file", str(self.folder / name)

        right = written("right", "a secret of two hosts\n")
        receiver, where = self.listening(*right)
        for given, complaint in (((), "it requires a secret, and this sender has none (--secret-file)"),
                                 (written("wrong", "another secret of theirs"), "it has another secret")):
            _, err = self.run_process(start(SOURCE, "--to", where, *self.files, *given), 1)
            self.assertIn(f"send frame 0 of source 0 to {where}: the sender has another secret; {complaint}", err)
        self.run_process(start(SOURCE, "--to", where, *self.files, *written("same", "a secret of two hosts")), 0)
        out, _ = self.run_process(receiver, 0)
        self.check_hashes(out, x=self.x, image=self.image, label=self.label)
        for text, complaint in (("short", ": has less than 16 bytes"), (None, ": cannot be read")):
            given = written("short", text) if text else ("--secret-file", str(self.folder / "nothing"))
            _, err = self.run_process(start(SOURCE, "--to", where, *self.files, *given), 2)
            self.assertIn(complaint, err)

    def test_one_bad_sender(self) -> None:
        # Source 0 never comes. A machine where source 1 does not come in time either gets more.
        for patience in "0.5", "4", "30":
            receiver, where = self.listening("--sources", "2", "--start-timeout", patience)
            host, port = where.split(":")
            with socket.create_connection((host, int(port))) as bad:
                bad.sendall(b"no frame at all" * 10)
                good = start(SOURCE, "--to", where, *self.files, "--source", "1", "--sources", "2",
                             "--rows-per-frame", "500")
                good.communicate()
                out, err = self.run_process(receiver, 3)
            if good.returncode == 0:
                break
        self.assertRegex(err, r"note: read frame from 127.0.0.1:\d+: the sender does not send valid frames; it begins "
                              r'with "no f", not with "gpTS"')
        self.assertIn("receive frames of source 0: the sender's stream ended before its last frame", err)
        self.assertEqual(json.loads(out)["rows"], 500)

    def test_specification(self) -> None:
        """The sender that the specification shows is what it says: 30 lines, and taken."""
        program = re.search(r"```python\n(.*?)```", Path(SPECIFICATION).read_text(encoding="utf-8"), re.S)
        assert program
        lines = [line for line in program[1].splitlines() if line]
        self.assertLessEqual(len(lines), 30)
        receiver, where = self.listening("--batch-size", "40")
        sender = start(sys.executable, "-c", program[1], *where.split(":"))
        self.run_process(sender, 0)
        out, _ = self.run_process(receiver, 0)
        y = b"".join(4 * struct.pack("<q", i) for i in range(10))
        report = self.check_hashes(out, x=struct.pack("<120f", *range(120)), y=y)
        self.assertEqual((report["rows"], report["batches"], report["frames"]), (40, 1, 11))

    def test_interrupted(self) -> None:
        receiver, _ = self.listening()
        receiver.send_signal(signal.SIGINT)
        self.run_process(receiver, 130)

    def test_nobody_there(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        _, err = self.run_process(start(SOURCE, "--to", f"127.0.0.1:{port}", *self.files, "--retry", "0"), 1)
        self.assertIn("Connection refused", err)
        receiver = start(RECEIVER, "--connect", f"127.0.0.1:{port}", "--transport", "copy", "--start-timeout", "0.3")
        _, err = self.run_process(receiver, 3)
        self.assertIn("Connection refused", err)

    def test_wrong_files(self) -> None:
        npy(self.folder / "short.npy", "<f4", (ROWS, 6), self.x)
        npy(self.folder / "object.npy", "|O", (ROWS,), self.x)
        (self.folder / "cut.npy").write_bytes(b"\x93NUMPY\1\0\xff\xff{'descr'")
        for what, complaint in {
            "short.npy": "bytes for 1003 rows of 24",
            "object.npy": r"its elements are '\|O', which tensor streams do not support",
            "cut.npy": "its header is incomplete",
            "raw.bin": "it is neither .npy nor IDX",
            "raw.bin:F32:7": "not a whole number of rows",
            "nothing.npy": "No such file",
        }.items():
            with self.subTest(what):
                _, err = self.run_process(start(SOURCE, "--to", "127.0.0.1:1", f"--tensor=x={self.folder}/{what}"), 1)
                self.assertRegex(err, complaint)
        _, err = self.run_process(start(SOURCE, "--to", "127.0.0.1:1", self.files[0], "--tensor=y=synthetic:U8:"), 1)
        self.assertIn("the tensors must have the same number of rows: y has 1000, x has 1003", err)

    def test_wrong_command_line(self) -> None:
        listen = ("--listen", "127.0.0.1:0")
        for program, arguments in (
            (RECEIVER, ()),
            (RECEIVER, (*listen, "--connect", "127.0.0.1:1")),
            (RECEIVER, ("--connect", "127.0.0.1:1", "--sources", "2")),
            (RECEIVER, (*listen, "--order", "any")),
            (RECEIVER, (*listen, "--rank", "1")),
            (RECEIVER, (*listen, "--batch-size", "0")),
            (SOURCE, ("--to", "127.0.0.1:1")),
            (SOURCE, (*self.files,)),
            (SOURCE, ("--to", "127.0.0.1:1", *self.files, "--source", "1")),
        ):
            with self.subTest(arguments):
                _, err = self.run_process(start(program, *arguments), 2)
                self.assertNotEqual(err, "")


if __name__ == "__main__":
    RECEIVER, SOURCE, SPECIFICATION = sys.argv[1:4]
    del sys.argv[1:4]
    if len(sys.argv) > 1:
        GPU_DRIVER = sys.argv.pop(1)
    unittest.main()
