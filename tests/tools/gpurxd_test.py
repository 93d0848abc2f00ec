#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurxd where it has nothing to do: gpurxd_test.py PROGRAM SOURCE-DIRECTORY [TEST...]."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from pathlib import Path

PROGRAM = ""
SOURCES = Path()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def has_right(number: int) -> bool:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    return effective is not None and int(effective[1], 16) >> number & 1 == 1


def has_net_admin() -> bool:
    return has_right(12)


def comes_true(what, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


NET_ADMIN = 1 << 12


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def status_of(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(rf"^{field}:\s*([0-9a-f]+)", text, re.MULTILINE)[1], 16)


class Daemon:
    """A gpurxd with files of its own. `metrics`: the directory in which it writes what it counts."""

    def __init__(self, directory: Path, before: tuple[str, ...] = (), **started: object) -> None:
        self.directory = directory
        self.metrics = directory / "metrics"
        policy = directory / "gpurxd.conf"
        policy.write_text("allow user * interface gpurx-none\n", encoding="ascii")
        policy.chmod(0o600)
        with (directory / "stderr").open("a", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [*before, PROGRAM, "--socket", str(directory / "socket"), "--metrics-directory", str(self.metrics),
                 "--policy", str(policy), "--state-directory", str(directory / "state")],
                stderr=stderr,
                **started,
            )

    def said(self) -> str:
        return (self.directory / "stderr").read_text(encoding="utf-8")

    def is_up(self) -> bool:
        return self.page() != ""

    def page(self) -> str:
        """What node_exporter would read; empty: nothing."""
        with contextlib.suppress(FileNotFoundError):
            return (self.metrics / "gpurxd.prom").read_text(encoding="utf-8")
        return ""

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # Waits where many others do before it; with a time limit Python would not.
            made.connect(str(self.directory / "socket"))
        except OSError:
            made.close()
            raise
        made.settimeout(60)
        return made

    def refused_client(self) -> bytes:
        """What gpurxd says to a client that does not speak its protocol."""
        with self.connect() as client:
            client.sendall(b"what?")
            return client.recv(4096)


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextlib.contextmanager
def running() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "metrics").mkdir(0o700)
        daemon = Daemon(Path(directory))
        try:
            if not comes_true(daemon.is_up):
                raise AssertionError(daemon.said())
            yield daemon
        finally:
            # None, if the test has ended it.
            children = children_of(daemon.process.pid) if daemon.process.poll() is None else []
            daemon.process.kill()
            daemon.process.wait()
            # They end by themselves, and write to the directory until then.
            comes_true(lambda: all(has_ended(pid) for pid in children))


@unittest.skipUnless(has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
class Rights(unittest.TestCase):
    def check(self, *sets: str) -> None:
        with running() as daemon, daemon.connect():
            self.assertTrue(comes_true(lambda: len(children_of(daemon.process.pid)) == 1))
            (client,) = children_of(daemon.process.pid)
            for pid in (daemon.process.pid, client):
                for which in sets:
                    self.assertEqual(status_of(pid, which), NET_ADMIN, (pid, which))
                self.assertEqual(status_of(pid, "NoNewPrivs"), 1)

    def test_it_has_cap_net_admin_alone(self) -> None:
        self.check("CapPrm", "CapEff", "CapInh", "CapAmb")

    @unittest.skipUnless(has_right(8), "without CAP_SETPCAP nobody can cut the bounding set")
    def test_it_can_get_no_other_right_back(self) -> None:
        self.check("CapBnd")


@unittest.skipUnless(has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
class Metrics(unittest.TestCase):
    def test_refusals_are_counted_in_a_file_that_everybody_can_read(self) -> None:
        with running() as daemon:
            self.assertIn("gpurxd_connections_total 0\n", daemon.page())
            self.assertTrue(daemon.refused_client())
            counted = 'gpurxd_refusals_total{request="message",reason="protocol"} 1\n'
            self.assertTrue(comes_true(lambda: counted in daemon.page()))
            self.assertIn("gpurxd_connections_total 1\n", daemon.page())
            for path, mode in ((daemon.metrics, 0o755), (daemon.metrics / "gpurxd.prom", 0o644)):
                found = path.stat()
                self.assertEqual((found.st_mode & 0o7777, found.st_uid), (mode, os.geteuid()), path)

    def test_the_file_ends_with_the_daemon_and_what_is_counted_does_not(self) -> None:
        with running() as daemon:
            self.assertTrue(daemon.refused_client())
            daemon.process.terminate()
            self.assertEqual(daemon.process.wait(60), 0)
            self.assertEqual(list(daemon.metrics.iterdir()), [])
            again = Daemon(daemon.directory)
            try:
                self.assertTrue(comes_true(again.is_up), daemon.said())
                self.assertIn("gpurxd_connections_total 1\n", again.page())
            finally:
                again.process.kill()
                again.process.wait()

    def test_a_directory_that_cannot_be_written_is_an_error_at_the_start(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            daemon = Daemon(Path(directory))
            self.assertEqual(daemon.process.wait(60), 1)
            self.assertIn(f"write metrics to {daemon.metrics}/gpurxd.prom", daemon.said())
            self.assertIn("--metrics-directory", daemon.said())

    def test_a_directory_that_goes_is_said_once_and_keeps_nobody_from_their_queues(self) -> None:
        with running() as daemon:
            shutil.rmtree(daemon.metrics)
            self.assertTrue(comes_true(lambda: "gpurxd cannot write metrics: write metrics to" in daemon.said()))
            self.assertTrue(daemon.refused_client())
            daemon.metrics.mkdir()
            self.assertTrue(comes_true(lambda: "gpurxd_connections_total 1\n" in daemon.page()), daemon.said())
            self.assertTrue(comes_true(lambda: "gpurxd.prom again" in daemon.said()), daemon.said())
            self.assertEqual(daemon.said().count("gpurxd cannot write metrics"), 1, daemon.said())
            self.assertIsNone(daemon.process.poll())


@unittest.skipUnless(has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
class Doors(unittest.TestCase):
    def test_sockets_of_systemd(self) -> None:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
            directory = Path(name)
            (directory / "metrics").mkdir()
            clients = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            clients.bind(str(directory / "socket"))
            clients.listen(16)
            # Of a gpurxd.socket that was not read anew at an update.
            old = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            old.bind(str(directory / "old"))
            old.listen(16)

            def place() -> None:
                high = [os.dup2(each.fileno(), 100 + i) for i, each in enumerate((old, clients))]
                for i, each in enumerate(high):
                    os.dup2(each, 3 + i)

            before = ("sh", "-c", 'LISTEN_FDS=2 LISTEN_PID=$$ exec "$0" "$@"')
            daemon = Daemon(directory, before, preexec_fn=place, pass_fds=(3, 4))
            held.callback(daemon.process.wait)
            held.callback(daemon.process.kill)
            self.assertTrue(comes_true(daemon.is_up), daemon.said())
            self.assertTrue(daemon.refused_client())


class Units(unittest.TestCase):
    """The systemd units, as far as systemd says without running them."""

    def setUp(self) -> None:
        if shutil.which("systemd-analyze") is None:
            self.skipTest("systemd-analyze is not there")
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        unit = (SOURCES / "gpurxd.service.in").read_text(encoding="utf-8")
        (self.directory / "gpurxd.service").write_text(
            unit.replace("@CMAKE_INSTALL_FULL_SBINDIR@/gpurxd", str(Path(PROGRAM).resolve())), encoding="utf-8")
        shutil.copy(SOURCES / "gpurxd.socket", self.directory)

    def analyze(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, timeout=60, check=False)

    def test_verify(self) -> None:
        for unit in ("gpurxd.service", "gpurxd.socket"):
            said = self.analyze("verify", "--man=no", str(self.directory / unit))
            if "unrecognized option" in said.stderr:
                self.skipTest("this systemd-analyze does not know --man")
            self.assertEqual((said.returncode, said.stdout + said.stderr), (0, ""), unit)

    def test_security(self) -> None:
        # 24 of 100 with systemd 252: root, its own network and CAP_NET_ADMIN are what it is for.
        said = self.analyze("security", "--offline=true", "--threshold=25", "--no-pager", str(self.directory / "gpurxd.service"))
        if "unrecognized option" in said.stderr:
            self.skipTest("this systemd-analyze does not judge units offline (systemd 250 does)")
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

    def test_what_is_named_fits(self) -> None:
        unit = (self.directory / "gpurxd.service").read_text(encoding="utf-8")
        (directory,) = re.findall(r"^ExecStart=.* --metrics-directory /run/(\S+)$", unit, re.MULTILINE)
        self.assertIn(directory, re.search(r"^RuntimeDirectory=(.*)$", unit, re.MULTILINE)[1].split())
        self.assertIn(f"/run/{directory}", re.search(r"^BindPaths=(.*)$", unit, re.MULTILINE)[1].split())
        page = (SOURCES / "gpurxd.8").read_text(encoding="utf-8").replace("\\-", "-")
        self.assertIn(f"/run/{directory}/gpurxd.prom", page)
        self.assertIn("ListenSequentialPacket=/run/gpurxd.sock\n", (self.directory / "gpurxd.socket").read_text(encoding="utf-8"))
        self.assertIn("/run/gpurxd.sock by default", page)


class Gpurxd(unittest.TestCase):
    def check_policy(self, text: str, mode: int = 0o600) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory() as directory:
            policy = Path(directory) / "gpurxd.conf"
            policy.write_text(text, encoding="utf-8")
            policy.chmod(mode)
            return run("--check", "--policy", str(policy))

    def test_version_and_usage(self) -> None:
        self.assertRegex(run("--version").stdout, r"^gpurxd \d+\.\d+\.\d+\n$")
        self.assertEqual(run("--nonsense").returncode, 2)

    def test_policy(self) -> None:
        good = self.check_policy("allow user * interface eth1 queues 2\n")
        self.assertEqual(good.returncode, 0, good.stderr)
        self.assertIn("1 lines", good.stdout)
        bad = self.check_policy("\nallow user * interface\n")
        self.assertEqual(bad.returncode, 1)
        self.assertIn("line 2", bad.stderr)
        worse = self.check_policy("allow user * interface\nallow user * interface eth1\ndeny all\n")
        self.assertEqual(worse.returncode, 1)
        self.assertRegex(worse.stderr, r"(?s)/gpurxd\.conf line 1: .*/gpurxd\.conf line 3: ")
        self.assertNotIn("line 2", worse.stderr)
        self.assertNotIn("/etc/gpurx", worse.stderr)
        open_to_all = self.check_policy("", 0o666)
        self.assertEqual(open_to_all.returncode, 1)
        self.assertIn("only root may have the right to write it", open_to_all.stderr)
        self.assertEqual(run("--check", "--policy", "/nonexistent").returncode, 1)

    def test_an_address_for_metrics_is_refused_with_what_there_is_instead(self) -> None:
        old = self.check_policy("metrics 127.0.0.1:9710\n")
        self.assertEqual(old.returncode, 1)
        self.assertRegex(old.stderr, "line 1: .*--metrics-directory")

    def test_policy_as_shipped(self) -> None:
        shipped = (SOURCES / "gpurxd.conf").read_text(encoding="utf-8")
        self.assertIn("0 lines", self.check_policy(shipped).stdout)
        example = shipped.splitlines()[-1].removeprefix("# ")
        self.assertIn("1 lines", self.check_policy(f"{example}\n").stdout)

    def test_man_page(self) -> None:
        """It has every option of --help, and no other."""
        page = (SOURCES / "gpurxd.8").read_text(encoding="utf-8").replace("\\-", "-")
        options = set(re.findall(r"--[a-z-]+", run("--help").stdout)) - {"--help"}
        self.assertGreater(len(options), 3)
        self.assertEqual(options, set(re.findall(r"^\.TP\n\.BI? (--[a-z-]+)", page, re.MULTILINE)))


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    SOURCES = Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
