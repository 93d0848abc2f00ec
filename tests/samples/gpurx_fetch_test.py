#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-fetch with transport copy, from nginx and an S3 server on loopback: gpurx_fetch_test.py PROGRAM [DIRECTORY].

DIRECTORY has the fake CUDA driver; without it the program was built without CUDA.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / other) for other in ("ingest", "python")]

import fetching
import ranges
import tls
from crc import crc32c
from fetching import FetchTest, start
from safetensors_file import ODD_TENSORS, Tensor, write_safetensors
from servers import Nginx, S3Server, StrictAzure, StrictGcs, free_port, model_file

# More than a chunk, no multiple of anything.
DATA = random.Random(1).randbytes(3_000_001)
SHA256 = hashlib.sha256(DATA).hexdigest()
SMALL = DATA[:300_007]
# More than any disk here has free, less than file systems allow.
HUGE = 1 << 43

LOCATIONS = """
    location /few/ { alias ROOT/; keepalive_requests 2; }
    location /single/ { alias ROOT/; keepalive_requests 1; }
    location /whole/ { alias ROOT/; max_ranges 0; }
    location /dated/ { alias ROOT/; etag off; }
    location /packed/ { alias ROOT/; gzip on; gzip_types *; gzip_min_length 1; }
    location /encoded/ { alias ROOT/; add_header Content-Encoding gzip; }
    location /chunked/ { alias ROOT/; max_ranges 0; ssi on; ssi_types *; }
    location /moved/ { rewrite ^/moved/(.*) /$1 redirect; }
    location /away/ { absolute_redirect off; rewrite ^/away/(.*) /moved/$1 permanent; }
    location /signed/ { rewrite ^/signed/(.*) /$1?X-Amz-Signature=abcdef redirect; }
    location /loop { return 307 /loop; }
    location /secure { return 301 https://127.0.0.1/object; }
    location /denied { deny all; }
    location /known/ { alias ROOT/; if ($http_authorization != "Bearer secret") { return 401; } }
    location /field/ { alias ROOT/; if ($http_x_team != "one: two") { return 403; } }
    location /busy { return 503; }
    location /wide/ { alias ROOT/; add_header X-Wide "WIDE"; add_header X-Wider "WIDE"; }
    location /too-wide/ { alias ROOT/; WIDER }
"""

root: Path
server: Nginx


class HeldBack(ranges.Server):
    """Answers the first request. The others wait until another server was asked."""

    def __init__(self, other: ranges.Server) -> None:
        super().__init__()
        self.other = other

    def is_stalling(self) -> bool:
        return len(self.ranges) > 1 and not self.other.ranges


def setUpModule() -> None:
    global root, server
    root = Path(tempfile.mkdtemp(prefix="gpurx-fetch-"))
    (root / "object").write_bytes(DATA)
    (root / "small").write_bytes(SMALL)
    (root / "empty").touch()
    (root / "tensors").write_bytes(write_safetensors(ODD_TENSORS))
    # nginx takes a value of at most 4 KiB; a header of more than 16 KiB takes several.
    wider = " ".join(f'add_header X-Wide-{number} "{"w" * 3000}";' for number in range(6))
    locations = LOCATIONS.replace("ROOT", str(root)).replace("WIDER", wider).replace("WIDE", "w" * 3000)
    server = Nginx(root, server=locations)


def tearDownModule() -> None:
    server.stop()
    shutil.rmtree(root)


def sanitized() -> bool:
    program = Path(fetching.program).read_bytes()
    return b"__asan_init" in program or b"__tsan_init" in program


class Patient(ranges.Server):
    """A server that waits with bodies, and has at most so many answers under way; 0: any number."""

    def __init__(self, most: int = 0) -> None:
        super().__init__()
        self.RequestHandlerClass = PatientHandler
        self.most = most
        self.under_way = 0
        self.refused = 0


class PatientHandler(ranges.Handler):
    server: Patient

    def do_GET(self) -> None:
        with self.server.lock:
            self.server.under_way += 1
            too_many = 0 < self.server.most < self.server.under_way
        if too_many:
            self.send_error(503)
        else:
            super().do_GET()
        with self.server.lock:
            self.server.under_way -= 1
            self.server.refused += too_many


class Objects(FetchTest):
    """What a file server answers."""

    def test_ranges(self) -> None:
        report = self.check_undisturbed(server.url("object"), "--chunk-size", "100KiB", data=DATA)
        self.assertEqual(report["requests"], 30)
        self.assertLessEqual(report["connections"], 4)
        self.assertRegex(report["etag"], '^"[0-9a-f]+-[0-9a-f]+"$')
        self.assertEqual(report["url"], server.url("object"))

    def test_one_chunk(self) -> None:
        report = self.check_undisturbed(server.url("object"), data=DATA)
        self.assertEqual((report["requests"], report["connections"]), (1, 1))

    def test_odd_chunks(self) -> None:
        for size in "777", "4096", "300006", "300007", "300008":
            with self.subTest(size):
                self.check_undisturbed(server.url("small"), "--chunk-size", size, data=SMALL)

    def test_flows(self) -> None:
        for flows in 1, 2, 64:
            with self.subTest(flows):
                arguments = ("--flows", str(flows), "--chunk-size", "16KiB")
                report = self.check_undisturbed(server.url("object"), *arguments, data=DATA)
                # The last find nothing left to do where the others are quick.
                self.assertLessEqual(report["connections"], flows)

    def test_mirrors(self) -> None:
        other = ranges.Server()
        first = HeldBack(other)
        denied = server.url("denied/object")
        with ranges.running(first), ranges.running(other):
            first.files = other.files = {"object": DATA}
            report = self.check(first.url("object"), "--mirror", other.url("object"), "--mirror", denied, "--chunk-size", "16KiB",
                                data=DATA)
            self.assertEqual([each["url"] for each in report["mirrors"]], [first.url("object"), other.url("object"), denied])
        self.assertEqual(sum(each["bytes"] for each in report["mirrors"]), len(DATA))
        self.assertGreater(report["mirrors"][1]["bytes"], 0)
        self.assertEqual(report["mirrors"][2]["bytes"], 0)
        self.assertIn("403", report["mirrors"][2]["left_out"])

    def test_mirrors_that_differ(self) -> None:
        other = ranges.Server()
        first = HeldBack(other)
        with ranges.running(first), ranges.running(other):
            first.files, other.files = {"object": DATA}, {"object": SMALL}
            error = self.refused(first.url("object"), "--mirror", other.url("object"), "--chunk-size", "64KiB")
        self.assertIn("it has 300007 bytes there, and 3000001 here", error)

    def test_threads(self) -> None:
        for threads in "1", "4":
            self.check_undisturbed(server.url("object"), "--threads", threads, "--chunk-size", "64KiB", data=DATA)

    def test_no_ranges(self) -> None:
        report = self.check_undisturbed(server.url("whole/object"), "--chunk-size", "64KiB", data=DATA)
        self.assertEqual((report["requests"], report["connections"]), (1, 1))

    def test_as_many_chunks_as_flows(self) -> None:
        # One for each, though each connection may have two under way: no body comes before all are asked for.
        patient = Patient()
        with ranges.running(patient):
            running = self.begin_at(patient, "--chunk-size", "750KiB")
            self.wait_until(lambda: len(patient.ranges) == 4)
            patient.stalls = False
            report = json.loads(self.finish(running)[0])
        self.assertEqual(self.output.read_bytes(), DATA)
        self.assertEqual((report["requests"], report["connections"], report["retries"]), (4, 4, 0))

    def test_more_flows_than_the_server_likes(self) -> None:
        for arguments in (), ("--attempts", "2"):
            patient = Patient(most=2)
            with ranges.running(patient):
                running = self.begin_at(patient, "--chunk-size", "600KiB", *arguments)
                self.wait_until(lambda: patient.refused >= 1)
                patient.stalls = False
                report = json.loads(self.finish(running)[0])
            self.assertEqual(self.output.read_bytes(), DATA)
            self.assertGreaterEqual(report["retries"], 1)

    def begin_at(self, patient: "Patient", *arguments: str) -> subprocess.Popen[str]:
        patient.files["object"] = DATA
        patient.stalls = True
        return start(patient.url("object"), "--json", "--output", str(self.output), *arguments)

    def test_connections_that_end(self) -> None:
        # Chunks that do not fit into a socket: what is not sent yet when the server closes is lost.
        report = self.check_undisturbed(server.url("single/object"), "--chunk-size", "400KiB", data=DATA)
        self.assertGreaterEqual(report["connections"], 8)
        # Until the first has ended, each may lose an answer.
        report = self.check(server.url("few/object"), "--chunk-size", "100KiB", data=DATA)
        self.assertGreaterEqual(report["connections"], 15)
        self.assertLessEqual(report["retries"], 4)

    def test_empty(self) -> None:
        for place in "empty", "whole/empty":
            with self.subTest(place):
                self.check_undisturbed(server.url(place), data=b"")

    def test_redirects(self) -> None:
        self.assertEqual(self.check_undisturbed(server.url("moved/object"), data=DATA)["redirects"], 1)
        report = self.check_undisturbed(server.url("away/object"), data=DATA)
        self.assertEqual(report["redirects"], 2)
        self.assertEqual(report["url"], server.url("object"))

    def test_secrets_of_urls_are_not_shown(self) -> None:
        user = server.url("object").replace("://", "://me:secret@")
        for output in (), ("--json",):
            self.assertNotIn("abcdef", self.fetch(server.url("signed/object"), *output))
            self.assertIn(server.url("object") + ("" if output else "\n"), self.fetch(user, *output))
            self.assertNotIn("secret", self.fetch(user, *output))

    def test_redirects_to_nowhere(self) -> None:
        self.assertIn("more than 10 redirects", self.refused(server.url("loop")))
        self.assertIn("https", self.refused(server.url("secure"), "--attempts", "2"))

    def test_no_etag(self) -> None:
        report = self.check_undisturbed(server.url("dated/object"), "--chunk-size", "400KiB", data=DATA)
        self.assertEqual(report["etag"], "")

    def test_wide_header(self) -> None:
        report = json.loads(self.fetch(server.url("wide/object"), "--json", "--sha256", "--chunk-size", "400KiB"))
        self.assertEqual(report["sha256"], SHA256)
        self.assertIn("16 KiB", self.refused(server.url("too-wide/object")))

    def test_encodings(self) -> None:
        self.check_undisturbed(server.url("packed/object"), data=DATA)
        self.assertIn("Content-Encoding: gzip", self.refused(server.url("encoded/object")))
        self.assertIn("Transfer-Encoding: chunked", self.refused(server.url("chunked/object")))

    def test_refusals(self) -> None:
        for place, words in ("missing", "404 Not Found"), ("denied", "403 Forbidden"):
            err = self.refused(server.url(place))
            self.assertIn(words, err)
            self.assertIn(server.url(place), err)
        err = self.refused(server.url("busy"), "--attempts", "2")
        self.assertIn("503 Service Temporarily Unavailable", err)
        self.assertIn("2 attempts", err)

    def test_who_asks(self) -> None:
        token = self.directory / "token"
        token.write_text("secret\n")
        self.check_undisturbed(server.url("known/object"), "--bearer-file", str(token), data=DATA)
        self.check_undisturbed(server.url("field/object"), "--header", "X-Team: one: two", data=DATA)
        self.assertIn("401", self.refused(server.url("known/object")))
        for wrong in (["--header", "X-Team"], ["--header", ": x"], ["--bearer-file", "/dev/null"]):
            self.refused(server.url("object"), *wrong, status=2)

    def test_whom_to_trust(self) -> None:
        for option in ("--ca", "--cert"):
            self.assertIn("/no/such.pem", self.refused("https://127.0.0.1:1/object", option, "/no/such.pem"))

    def test_addresses(self) -> None:
        # The name's first address may be the one of IPv6, where nobody listens.
        self.check_undisturbed(f"http://localhost:{server.port}/object", data=DATA)

    def test_ipv6(self) -> None:
        try:
            free_port("::1")
        except OSError as error:
            self.skipTest(f"no IPv6 on this machine: {error}")
        six = Nginx(root, hosts=("::1",))
        self.addCleanup(six.stop)
        self.check_undisturbed(f"http://[::1]:{six.port}/object", "--chunk-size", "400KiB", data=DATA)

    def test_urls_that_cannot_be_used(self) -> None:
        self.assertIn("https", self.refused("https://127.0.0.1/object", "--attempts", "2"))
        for url in "ftp://127.0.0.1/object", "http://", "http://127.0.0.1:99999/object", "http://a b/object":
            with self.subTest(url):
                self.assertNotEqual(self.refused(url), "")
        self.assertIn("/no/such: No such file", self.refused("/no/such"))
        self.assertIn("another machine", self.refused("file://elsewhere/object"))
        self.assertIn("mirrors", self.refused(str(root / "object"), "--mirror", server.url("object")))

    def test_nobody_there(self) -> None:
        port = free_port()
        err = self.refused(f"http://127.0.0.1:{port}/object", "--attempts", "2")
        self.assertIn("Connection refused", err)
        self.assertIn("2 attempts", err)
        self.assertIn("does-not-exist.invalid", self.refused("http://does-not-exist.invalid/object", "--attempts", "1"))


class Consumption(FetchTest):
    """What is done with the bytes, and what the program says."""

    def test_table(self) -> None:
        out = self.fetch(server.url("object"), "--sha256", "--crc32c", "always")
        for line in (
            "copy: in use",
            "devmem: not in use: transport copy was requested",
            f"object                {server.url('object')}",
            f"size                  {len(DATA)} (2.9 MiB)",
            "in device memory      0",
            "requests              1 on 1 connections, 0 retries",
            f"CRC32C                {crc32c(DATA):08x}\n",
            f"SHA-256               {SHA256}",
        ):
            self.assertIn(line, out)

    def test_crc32c(self) -> None:
        for arguments in (), ("--flows", "8", "--chunk-size", "10KiB"), ("--flows", "1", "--chunk-size", "1MiB"):
            report = self.check(server.url("object"), "--crc32c", "always", *arguments, data=DATA)
            self.assertEqual(report["crc32c"], f"{crc32c(DATA):08x}")
            self.assertFalse(report["crc32c_announced"])
        for when in "none", "automatic":
            self.assertNotIn("crc32c", self.check(server.url("object"), "--crc32c", when, data=DATA))
        self.assertEqual(self.check(server.url("empty"), "--crc32c", "always", data=b"")["crc32c"], "00000000")

    def test_expectation(self) -> None:
        self.fetch(server.url("object"), "--expect-sha256", SHA256.upper())
        out, err = self.finish(start(server.url("object"), "--json", "--expect-sha256", "0" * 64), 3)
        self.assertIn("the SHA-256 differs from the expected one, " + "0" * 64, err)
        self.assertFalse(json.loads(out)["as_expected"])
        self.assertEqual(json.loads(out)["sha256"], SHA256)

    def test_nowhere_to_write(self) -> None:
        # Nobody is asked: nobody is there.
        url = f"http://127.0.0.1:{free_port()}/object"
        place = self.directory / "no" / "such"
        err = self.refused(url, "--output", str(place))
        self.assertIn(f"create {place}: No such file or directory; its directory must exist", err)
        self.assertIn("Is a directory", self.refused(url, "--output", str(self.directory)))

    def test_old_file_stays(self) -> None:
        self.output.write_bytes(b"old")
        self.output.chmod(0o640)
        err = self.refused(server.url("missing"), "--output", str(self.output))
        self.assertIn("404 Not Found", err)
        wrong = ("--expect-sha256", "0" * 64, "--json", "--output", str(self.output))
        self.finish(start(server.url("object"), *wrong), 3)
        self.assertEqual(self.output.read_bytes(), b"old")
        self.assertEqual([each.name for each in self.directory.iterdir()], ["received"])
        # One that is right takes its place, and its mode; a link to it stays a link.
        link = self.directory / "link"
        link.symlink_to(self.output)
        self.fetch(server.url("object"), "--output", str(link))
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.output.read_bytes(), DATA)
        self.assertEqual(self.output.stat().st_mode & 0o777, 0o640)
        self.assertEqual(sorted(each.name for each in self.directory.iterdir()), ["link", "received"])

    def test_mount_point(self) -> None:
        """A file of a container's volume, which no rename replaces."""
        volume = self.directory / "volume"
        volume.write_bytes(b"older, and longer" * len(DATA))
        self.output.touch()
        inside = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")
        script = f"mount --bind {volume} {self.output}"
        probe = subprocess.run([*inside, script], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"nothing can be mounted here: {probe.stderr.strip()}")
        with unittest.mock.patch.object(fetching, "before", (*inside, script + ' && exec "$@"', "sh")):
            self.finish(start(server.url("object"), "--output", str(self.output)), 0)
        self.assertEqual(volume.read_bytes(), DATA)
        self.assertEqual(sorted(each.name for each in self.directory.iterdir()), ["received", "volume"])

    def test_standard_output(self) -> None:
        for place in "object", "whole/object":
            command = [fetching.program, *fetching.options, server.url(place), "--output", "-", "--chunk-size",
                       "100KiB", "--sha256", "--json"]
            done = subprocess.run(command, capture_output=True, check=True, timeout=60)
            self.assertEqual(done.stdout, DATA)
            self.assertEqual(json.loads(done.stderr.splitlines()[-1])["sha256"], SHA256)

    def test_pipe(self) -> None:
        pipe = self.directory / "pipe"
        os.mkfifo(pipe)
        running = start(server.url("object"), "--output", str(pipe), "--chunk-size", "100KiB")
        self.assertEqual(pipe.read_bytes(), DATA)
        self.finish(running)
        self.assertTrue(pipe.is_fifo())

    def test_reader_that_goes_away(self) -> None:
        command = [fetching.program, *fetching.options, server.url("object"), "--output", "-"]
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert running.stdout is not None and running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        err = running.stderr.read()
        running.stderr.close()
        self.assertEqual(running.wait(60), 1)
        self.assertIn(b"write -: Broken pipe", err)

    def test_devices(self) -> None:
        self.fetch(server.url("object"), "--output", "/dev/null")
        err = self.refused(server.url("object"), "--output", "/dev/full")
        self.assertIn("write /dev/full: No space left on device", err)

    def test_no_room(self) -> None:
        (root / "huge").touch()
        os.truncate(root / "huge", HUGE)
        self.addCleanup((root / "huge").unlink)
        err = self.refused(server.url("huge"), "--output", str(self.output))
        self.assertIn(f"No space left on device; {HUGE} bytes are expected", err)
        self.assertFalse(self.output.exists())

    def test_does_not_fit_into_memory(self) -> None:
        (root / "huge").touch()
        os.truncate(root / "huge", HUGE)
        self.addCleanup((root / "huge").unlink)
        if sanitized():
            self.skipTest("a sanitizer's allocator ends the program where memory is short")
        command = ["prlimit", "--as=4294967296", fetching.program, *fetching.options, server.url("huge")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"fetch {server.url('huge')}: Cannot allocate memory; the object needs {HUGE} bytes", done.stderr)

    def test_memory(self) -> None:
        if sanitized():
            self.skipTest("a sanitizer needs memory of its own for each byte")
        (root / "large").touch()
        os.truncate(root / "large", 300 << 20)
        self.addCleanup((root / "large").unlink)
        command = [fetching.program, *fetching.options, server.url("large"), "--output", str(self.output), "--crc32c",
                   "always"]
        measure = [sys.executable, "-S", str(Path(fetching.__file__).with_name("measure.py")), *command]
        done = subprocess.run(measure, stdout=subprocess.PIPE, check=False, timeout=self.limit)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.output.stat().st_size, 300 << 20)
        _, _, used = json.loads(done.stdout)
        self.assertLess(used, 64 << 10)  # KiB

    def test_memory_size(self) -> None:
        self.check_undisturbed(server.url("object"), "--memory-size", "1MiB", "--chunk-size", "256KiB", data=DATA)

    def test_gpu(self) -> None:
        if not fetching.driver:
            self.skipTest("built without CUDA")
        report = self.check_undisturbed(server.url("small"), "--memory", "gpu:0", "--crc32c", "always",
                                        "--chunk-size", "64KiB", data=SMALL)
        self.assertEqual(report["crc32c"], f"{crc32c(SMALL):08x}")
        # Without a file all of it is in the GPU's memory.
        out = self.fetch(server.url("small"), "--memory", "gpu:0", "--crc32c", "always", "--chunk-size", "64KiB",
                         "--sha256", "--json")
        report = json.loads(out)
        self.assertEqual(report["crc32c"], f"{crc32c(SMALL):08x}")
        self.assertEqual(report["sha256"], hashlib.sha256(SMALL).hexdigest())
        self.check_undisturbed(server.url("whole/small"), "--memory", "gpu:0", data=SMALL)
        self.check_undisturbed(server.url("empty"), "--memory", "gpu:0", data=b"")

    def test_no_session(self) -> None:
        err = self.refused(server.url("object"), "--memory", "gpu:99", status=4)
        self.assertRegex(err, "error: .*(open GPU 99|on_host)")
        self.assertIn("interface", self.refused(server.url("object"), "--transport", "devmem", status=4))

    def test_an_interface_that_does_not_exist(self) -> None:
        """Nothing is copied instead. All samples have their session of the same options."""
        for transport in "automatic", "devmem", "zcrx", "copy":
            with self.subTest(transport):
                arguments = ("--transport", transport, "--interface", "gpurx-eht0", "--output", str(self.output))
                err = self.refused(server.url("small"), *arguments, status=4)
                self.assertRegex(err, "^error: find interface gpurx-eht0: No such device; interfaces in .*: lo")
                self.assertFalse(self.output.exists())

    def test_an_interface_that_goes(self) -> None:
        """Those of the program's network namespace count, and of the moment."""
        inside = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c")
        script = 'ip link set lo name here && "$@" && ip link set here name gone && exec "$@"'
        probe = subprocess.run([*inside, "ip link set lo name here"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"no network namespace can be made here: {probe.stderr.strip()}")
        with unittest.mock.patch.object(fetching, "before", (*inside, script, "sh")):
            arguments = ("--transport", "copy", "--interface", "here", "--sha256")
            out, err = self.finish(start(str(root / "small"), *arguments), 4)
        self.assertIn(hashlib.sha256(SMALL).hexdigest(), out)
        self.assertEqual(err.splitlines()[-1], "error: find interface here: No such device; interfaces in this network "
                         "namespace: gone")

    def test_wrong_command_line(self) -> None:
        url = server.url("object")
        for arguments in (
            [],
            [url, "more"],
            [url, "--flows", "0"],
            [url, "--chunk-size", "0"],
            [url, "--chunk-size", "many"],
            [url, "--attempts", "0"],
            [url, "--timeout", "0"],
            [url, "--deadline", "0"],
            [url, "--min-speed", "many"],
            [url, "--s3-addressing", "sideways"],
            [url, "--threads", "0"],
            [url, "--crc32c", "sometimes"],
            [url, "--expect-sha256", "12"],
            [url, "--safetensors", "--sha256"],
            [url, "--memory", "gpu"],
            [url, "--transport", "magic"],
        ):
            with self.subTest(arguments):
                self.assertNotEqual(self.refused(*arguments, status=2), "")

    def test_help(self) -> None:
        self.assertIn("Exit status: 0 received", self.fetch("--help"))
        self.assertRegex(self.fetch("--version"), r"^gpurx-fetch \d+\.\d+\.\d+\n$")


class Tensors(FetchTest):
    """--safetensors."""

    def check_odd_tensors(self, *arguments: str) -> None:
        report = self.load(server.url("tensors"), *arguments)
        block = self.output.read_bytes()
        self.assertEqual([tensor["name"] for tensor in report["tensors"]], [tensor.name for tensor in ODD_TENSORS])
        first = report["tensors"][0]
        end = 0
        for found, expected in zip(report["tensors"], ODD_TENSORS):
            with self.subTest(expected.name):
                self.assertEqual((found["dtype"], found["shape"]), (expected.dtype, expected.shape))
                at, size = found["offset"], found["bytes"]
                self.assertEqual(block[at:at + size], expected.data)
                self.assertEqual(at % 16, 0)
                self.assertGreaterEqual(at, end)
                self.assertEqual(found["address"] - at, first["address"] - first["offset"])
                end = at + size
        self.assertEqual(len(block), end)

    def test_odd_tensors(self) -> None:
        self.check_odd_tensors()
        self.check_odd_tensors("--chunk-size", "100", "--flows", "8")

    def test_gpu(self) -> None:
        if not fetching.driver:
            self.skipTest("built without CUDA")
        self.check_odd_tensors("--memory", "gpu:0")

    def test_no_ranges(self) -> None:
        (root / "whole-tensors").write_bytes(write_safetensors(ODD_TENSORS))
        report = self.load(server.url("whole/whole-tensors"))
        self.assertEqual(report["connections"], 1)

    def test_table(self) -> None:
        out = self.fetch(server.url("tensors"), "--safetensors")
        self.assertRegex(out, r"0x[0-9a-f]+  F32 +\[2, 3\] +matrix\n")
        self.assertIn(' ключ "quoted" \U0001f511\n', out)

    def test_names_are_not_obeyed_by_a_terminal(self) -> None:
        (root / "hostile").write_bytes(write_safetensors([Tensor("a\x1b[2J\x07", "U8", [1], b"x")]))
        self.assertIn("a\\x1b[2J\\x07\n", self.fetch(server.url("hostile"), "--safetensors"))

    def test_checksum(self) -> None:
        # Of the whole file, though its header never was in the block.
        data = (root / "tensors").read_bytes()
        report = self.load(server.url("tensors"), "--crc32c", "always", "--chunk-size", "1000")
        self.assertEqual(report["crc32c"], f"{crc32c(data):08x}")

    def test_no_tensors(self) -> None:
        self.assertIn("safetensors", self.refused(server.url("object"), "--safetensors"))
        self.assertNotEqual(self.refused(server.url("empty"), "--safetensors"), "")
        whole = write_safetensors(ODD_TENSORS)
        for name, data in ("cut", whole[:-1]), ("more", whole + b"x"), ("headless", whole[:20]), ("size", whole[:7]):
            with self.subTest(name):
                (root / name).write_bytes(data)
                self.assertNotEqual(self.refused(server.url(name), "--safetensors"), "")

    def test_model(self) -> None:
        model = model_file()
        big = Nginx(model.parent)
        self.addCleanup(big.stop)
        self.check_tensors(model, big.url(model.name))


# Of a model in two files, which its index names in this order.
SHARDS = {"second.safetensors": ODD_TENSORS[4:], "first.safetensors": ODD_TENSORS[:4]}
INDEX = "model.safetensors.index.json"
BY_NAME = [*SHARDS["first.safetensors"], *SHARDS["second.safetensors"]]
BY_INDEX = [*SHARDS["second.safetensors"], *SHARDS["first.safetensors"]]


class Kinds(FetchTest):
    """Each kind of place that an object or a model can have."""

    s3: S3Server

    @classmethod
    def setUpClass(cls) -> None:
        for directory in "many", "bare":
            (root / directory).mkdir()
            (root / directory / "README.md").write_text("a model")
            for name, tensors in SHARDS.items():
                (root / directory / name).write_bytes(write_safetensors(tensors))
        weight_map = {tensor.name: name for name, tensors in SHARDS.items() for tensor in tensors}
        (root / "many" / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        cls.s3 = S3Server(root / "object", *(root / "many").iterdir())
        cls.addClassCleanup(cls.s3.stop)

    def setUp(self) -> None:
        super().setUp()
        known = {"AWS_ENDPOINT_URL": self.s3.urls["endpoint"], "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret",
                 "AWS_CONFIG_FILE": str(self.directory / "config")}
        patch = unittest.mock.patch.dict(os.environ, known)
        patch.start()
        self.addCleanup(patch.stop)

    def test_objects(self) -> None:
        path = root / "object"
        for url in (str(path), os.path.relpath(path), path.as_uri(), server.url("object"), "s3://models/public"):
            for more in [], ["--output", "-"], ["--crc32c", "always"]:
                with self.subTest(url, more=more):
                    output = [] if more else ["--output", str(self.output)]
                    command = [fetching.program, *fetching.options, url, "--sha256", "--json", *more, *output]
                    done = subprocess.run(command, capture_output=True, check=False, timeout=self.limit)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    report = json.loads(done.stderr.splitlines()[-1] if "-" in more else done.stdout)
                    self.assertEqual((report["sha256"], report["size"]), (SHA256, len(DATA)))
                    self.assertEqual("\nfile: " in report["explanation"], "://127" not in url and "s3:" not in url)
                    if "always" in more:
                        self.assertEqual(report["crc32c"], f"{crc32c(DATA):08x}")
                    if not more:
                        self.assertEqual(self.output.read_bytes(), DATA)
                        self.output.unlink()

    def test_models(self) -> None:
        path = root / "tensors"
        many, bare = root / "many", root / "bare"
        for place, expected in {
            str(path): ODD_TENSORS,
            path.as_uri(): ODD_TENSORS,
            server.url("tensors"): ODD_TENSORS,
            "s3://models/many/first.safetensors": SHARDS["first.safetensors"],
            str(many / INDEX): BY_INDEX,
            (many / INDEX).as_uri(): BY_INDEX,
            server.url(f"many/{INDEX}?version=1"): BY_INDEX,
            f"s3://models/many/{INDEX}": BY_INDEX,
            str(many): BY_INDEX,
            many.as_uri() + "/": BY_INDEX,
            str(bare): BY_NAME,
            "s3://models/many/": BY_INDEX,
            "s3://models/bare/": BY_NAME,
        }.items():
            with self.subTest(place):
                report = self.load(place)
                self.assertEqual([one["name"] for one in report["tensors"]], [one.name for one in expected])
                block = self.output.read_bytes()
                for found, one in zip(report["tensors"], expected):
                    self.assertEqual(block[found["offset"]:found["offset"] + found["bytes"]], one.data, one.name)
                self.assertEqual(report["url"].split("?")[0].rsplit("/", 1)[-1], place.rsplit("/", 1)[-1].split("?")[0])
                self.assertGreater(report["size"], sum(len(one.data) for one in expected))

    def hub(self) -> ranges.Server:
        """A hub with the model, of one commit, and a file. Its branch leads nowhere."""
        identity = tls.make_identity(self.directory, "hub")
        one = self.enterContext(tls.serving(identity))
        commit = "c" * 40
        files = {each.name: each.read_bytes() for each in (root / "many").iterdir()} | {"config.json": b"{}"}
        about = {"sha": commit, "siblings": [{"rfilename": name} for name in files]}
        one.files = {f"org/model/resolve/{commit}/{name}": data for name, data in files.items()}
        one.files["api/models/org/model/revision/v1.0"] = json.dumps(about).encode()
        one.files["org/model/resolve/main/config.json"] = files["config.json"]
        known = {"HF_ENDPOINT": one.url(""), "HF_TOKEN": "secret", "SSL_CERT_FILE": str(identity[0])}
        self.enterContext(unittest.mock.patch.dict(os.environ, known))
        return one

    def test_the_hub(self) -> None:
        hub = self.hub()
        report = self.load("hf://org/model@v1.0")
        self.assertEqual([one["name"] for one in report["tensors"]], [one.name for one in BY_INDEX])
        self.assertIn("\nhttps: the CPU decrypts", report["explanation"])
        self.assertEqual({one.get("authorization") for one in hub.asked}, {"Bearer secret"})
        self.assertIn("names a model without a file", self.refused("hf://org/model"))
        self.assertIn("hf://ORG/MODEL@REVISION/FILE", self.refused("hf://org"))

    def test_lines_of_the_page(self) -> None:
        """With the servers of this machine in the place of those that where-models-are.md names."""
        page = Path(__file__).parents[2] / "framework/docs/where-models-are.md"
        lines = [line.split()[1:] for line in page.read_text().splitlines() if line.startswith("    gpurx-fetch ")]
        self.assertEqual(len(lines), 7)
        self.hub()
        shutil.copytree(root / "many", self.directory / "objects/many")
        google, azure = StrictGcs(self.directory / "objects"), StrictAzure(self.directory / "objects")
        self.addCleanup(google.stop)
        self.addCleanup(azure.stop)
        known = {"STORAGE_EMULATOR_HOST": google.endpoint, "AZURE_STORAGE_BLOB_ENDPOINT": azure.endpoint}
        self.enterContext(unittest.mock.patch.dict(os.environ, known))
        (self.directory / "token").write_text("secret\n")
        (self.directory / "models").mkdir()
        (self.directory / "models/many").symlink_to(root / "many")
        for url, *more in lines:
            with self.subTest(url):
                here = url.replace("http://10.77.0.2/", server.url("")).replace("llama/", "many/")
                command = [str(Path(fetching.program).resolve()), *fetching.options, here, *more, "--json"]
                done = subprocess.run(command, capture_output=True, check=False, timeout=self.limit, cwd=self.directory)
                self.assertEqual(done.returncode, 0, done.stderr)
                tensors = [one["name"] for one in json.loads(done.stdout).get("tensors", [])]
                self.assertEqual(tensors, [one.name for one in BY_INDEX] if "--safetensors" in more else [])
        self.assertEqual((self.directory / "config.json").read_bytes(), b"{}")

    def test_what_is_no_model(self) -> None:
        empty = self.directory / "empty"
        empty.mkdir()
        for place, words in {
            str(empty): "no .safetensors file",
            "s3://models/nothing/": "no .safetensors file",
            "s3://models": "no .safetensors file",
            "s3://none-such/x/": "404",
            str(root / "absent"): "No such file",
        }.items():
            with self.subTest(place):
                self.assertIn(words, self.refused(place, "--safetensors"))
        self.assertIn("Is a directory", self.refused(str(empty)))
        mirrored = (server.url(f"many/{INDEX}"), "--safetensors", "--mirror", server.url(f"bare/{INDEX}"))
        self.assertIn("--mirror", self.refused(*mirrored))

    def test_addressing(self) -> None:
        """By the bucket's own host name, which nobody here knows: the server is asked as a proxy."""
        host = "http://s3.us-east-1.amazonaws.com"
        proxy = {"AWS_ENDPOINT_URL": host, "http_proxy": self.s3.urls["endpoint"], "no_proxy": ""}
        config = Path(os.environ["AWS_CONFIG_FILE"])
        own = host.replace("//", "//models.")
        with unittest.mock.patch.dict(os.environ, proxy):
            for style, arguments, root_url in (
                ("", [], host + "/models"),
                ("", ["--s3-addressing", "virtual"], own),
                ("virtual", [], own),
                ("virtual", ["--s3-addressing", "path"], host + "/models"),
                ("auto", [], host + "/models"),
            ):
                config.write_text(f"[default]\ns3 =\n    addressing_style = {style}\n" if style else "")
                with self.subTest(style=style, arguments=arguments):
                    report = self.check("s3://models/public", *arguments, data=DATA)
                    self.assertEqual(report["url"], root_url + "/public")
            config.write_text("[default]\ns3 =\n    addressing_style = sideways\n")
            self.assertIn("addressing_style", self.refused("s3://models/public"))


class S3(FetchTest):
    """An S3 server, path-style."""

    data = random.Random(3).randbytes((5 << 20) + 12_345)
    urls: dict[str, str]

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.NamedTemporaryFile(prefix="gpurx-fetch-") as file:
            file.write(cls.data)
            file.flush()
            s3 = S3Server(Path(file.name))
        cls.addClassCleanup(s3.stop)
        cls.urls = s3.urls

    def test_public(self) -> None:
        report = self.check_undisturbed(self.urls["public"], "--chunk-size", "1MiB", data=self.data)
        self.assertEqual(report["etag"], f'"{hashlib.md5(self.data).hexdigest()}"')

    def test_pre_signed(self) -> None:
        self.check_undisturbed(self.urls["signed"], "--chunk-size", "1MiB", data=self.data)

    def test_checksum(self) -> None:
        # S3 announces it with all of the object only.
        report = self.check_undisturbed(self.urls["public"], "--chunk-size", "8MiB", data=self.data)
        self.assertTrue(report["crc32c_announced"])
        self.assertEqual(report["crc32c"], f"{crc32c(self.data):08x}")
        self.assertIn(", as the server announced", self.fetch(self.urls["public"]))

    def test_checksum_of_parts(self) -> None:
        report = self.check_undisturbed(self.urls["parts"], "--crc32c", "always", data=self.data)
        self.assertFalse(report["crc32c_announced"])
        self.assertTrue(report["etag"].endswith('-2"'))

    def test_wrong_checksum(self) -> None:
        err = self.refused(self.urls["lying"], status=3)
        self.assertIn(f"the server announced {crc32c(self.data):08x}", err)
        self.check(self.urls["lying"], "--crc32c", "none", data=self.data[::-1])

    def test_refusals(self) -> None:
        err = self.refused(self.urls["missing"])
        self.assertIn("404", err)
        self.assertIn("NoSuchKey: ", err)
        self.assertIn("403", self.refused(self.urls["private"]))

    def test_empty(self) -> None:
        self.check_undisturbed(self.urls["empty"], data=b"")


if __name__ == "__main__":
    fetching.program = sys.argv.pop(1)
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        fetching.driver = sys.argv.pop(1)
    unittest.main()
