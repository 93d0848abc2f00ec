#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurxd where it has nothing to do: gpurxd_test.py PROGRAM SOURCE-DIRECTORY [TEST...]."""

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
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


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def answers(scrape: Callable[[], str]) -> bool:
    with contextlib.suppress(OSError):
        return " 200 OK" in scrape()
    return False


NET_ADMIN = 1 << 12


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


def status_of(pid: int, field: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(rf"^{field}:\s*([0-9a-f]+)", text, re.MULTILINE)[1], 16)


class Daemon:
    """A gpurxd with files of its own, that listens for metrics at a Unix socket and a port of loopback."""

    def __init__(self, directory: Path, port: int, before: tuple[str, ...] = (), **started: object) -> None:
        self.directory = directory
        self.port = port
        policy = directory / "gpurxd.conf"
        policy.write_text(f"metrics 127.0.0.1:{port}\nallow user * interface gpurx-none\n", encoding="ascii")
        policy.chmod(0o600)
        with (directory / "stderr").open("w", encoding="utf-8") as stderr:
            self.process = subprocess.Popen(
                [*before, PROGRAM, "--socket", str(directory / "socket"), "--metrics-socket", str(directory / "metrics"),
                 "--policy", str(policy), "--state-directory", str(directory / "state")],
                stderr=stderr,
                **started,
            )

    def said(self) -> str:
        return (self.directory / "stderr").read_text(encoding="utf-8")

    def is_up(self) -> bool:
        return (self.directory / "socket").exists() and self.metrics_process() != 0

    def metrics_process(self) -> int:
        """0: there is none now. Others of its children serve clients."""
        for child in children_of(self.process.pid):
            with contextlib.suppress(OSError):
                if b"--answer-for-metrics" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
        return 0

    def connect(self, name: str, kind: socket.SocketKind) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, kind)
        try:
            # Waits where many others do before it; with a time limit Python would not.
            made.connect(str(self.directory / name))
        except OSError:
            made.close()
            raise
        made.settimeout(60)
        return made

    def scrape(self) -> str:
        with self.connect("metrics", socket.SOCK_STREAM) as asked:
            asked.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            return read_to_end(asked)

    def scrape_by_port(self) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as asked:
            asked.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
            return read_to_end(asked)

    def refused_client(self) -> bytes:
        """What gpurxd says to a client that does not speak its protocol."""
        with self.connect("socket", socket.SOCK_SEQPACKET) as client:
            client.sendall(b"what?")
            return client.recv(4096)


def read_to_end(connection: socket.socket) -> str:
    text = b""
    while part := connection.recv(65536):
        text += part
    return text.decode("utf-8")


@contextlib.contextmanager
def orphans_stay_here() -> Iterator[None]:
    """A stopped process is sent on its way when no parent of its session is left (setpgid(2)): this one is then."""
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_child_subreaper = 36
    if libc.prctl(pr_set_child_subreaper, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        libc.prctl(pr_set_child_subreaper, 0, 0, 0, 0)


def kill_if_there(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)


@contextlib.contextmanager
def running(port: int) -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory), port)
        try:
            if not comes_true(daemon.is_up):
                raise AssertionError(daemon.said())
            yield daemon
        finally:
            daemon.process.kill()
            daemon.process.wait()


@unittest.skipUnless(has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
class Rights(unittest.TestCase):
    def check(self, *sets: str) -> None:
        with running(free_port()) as daemon, daemon.connect("socket", socket.SOCK_SEQPACKET):
            # One process serves the client, another one answers for metrics.
            self.assertTrue(comes_true(lambda: len(children_of(daemon.process.pid)) == 2))
            (client,) = set(children_of(daemon.process.pid)) - {daemon.metrics_process()}
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
    def test_both_doors_answer_and_refusals_are_counted(self) -> None:
        with running(free_port()) as daemon:
            self.assertTrue(comes_true(lambda: " 200 OK" in daemon.scrape()))
            self.assertIn("gpurxd_connections_total 0\n", daemon.scrape())
            self.assertTrue(daemon.refused_client())
            counted = 'gpurxd_refusals_total{request="message",reason="protocol"} 1\n'
            self.assertTrue(comes_true(lambda: counted in daemon.scrape_by_port()))
            self.assertIn("gpurxd_connections_total 1\n", daemon.scrape())

    def test_the_process_that_answers_has_no_rights(self) -> None:
        with running(free_port()) as daemon:
            pid = daemon.metrics_process()
            self.assertTrue(comes_true(lambda: status_of(pid, "CapPrm") == 0))
            for which in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
                self.assertEqual(status_of(pid, which), 0, which)
            self.assertEqual(status_of(pid, "NoNewPrivs"), 1)
            self.assertTrue(comes_true(lambda: status_of(pid, "Seccomp") == 2))
            self.assertIn(" 200 OK", daemon.scrape())
            # The figures it can read, and nothing that it could write to but sockets and what it says to people.
            flags = {}
            for one in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # a connection that has just ended
                    info = (Path(f"/proc/{pid}/fdinfo") / one.name).read_text(encoding="ascii")
                    flags[os.readlink(one)] = int(re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)[1], 8)
            (figures,) = (flags[name] for name in flags if name.endswith("/figures"))
            self.assertEqual(figures & os.O_ACCMODE, os.O_RDONLY)

    def test_it_is_started_again_and_ends_with_the_daemon(self) -> None:
        with running(free_port()) as daemon:
            self.assertTrue(comes_true(lambda: " 200 OK" in daemon.scrape()))
            first = daemon.metrics_process()
            os.kill(first, signal.SIGKILL)
            self.assertTrue(daemon.refused_client())
            self.assertTrue(comes_true(lambda: daemon.metrics_process() not in (0, first)))
            self.assertIn("gpurxd_connections_total 1\n", daemon.scrape())
            second = daemon.metrics_process()
            daemon.process.kill()
            self.assertTrue(comes_true(lambda: not Path(f"/proc/{second}").exists() or status_state(second) == "Z"))

    def test_it_does_not_begin_when_the_daemon_has_ended(self) -> None:
        ended = run("--answer-for-metrics", "1", "--daemon", "1")
        self.assertEqual(ended.returncode, 1, ended.stderr)
        self.assertIn("a gpurxd that has ended", ended.stderr)

    def test_what_is_counted_outlives_the_daemon(self) -> None:
        with running(free_port()) as daemon, orphans_stay_here():
            self.assertTrue(daemon.refused_client())
            # It listens where the daemon does, and is in no hurry to end.
            stopped = os.pidfd_open(daemon.metrics_process())
            self.addCleanup(os.close, stopped)
            self.addCleanup(kill_if_there, stopped)
            signal.pidfd_send_signal(stopped, signal.SIGSTOP)
            daemon.process.terminate()
            daemon.process.wait(60)
            again = Daemon(daemon.directory, daemon.port)
            try:
                self.assertTrue(comes_true(again.is_up), daemon.said())
                self.assertTrue(comes_true(lambda: "gpurxd_connections_total 1\n" in again.scrape()))
                self.assertNotIn("no metrics there", daemon.said())
            finally:
                again.process.kill()
                again.process.wait()

    def test_slow_and_greedy_scrapers_disturb_nobody(self) -> None:
        with running(free_port()) as daemon, contextlib.ExitStack() as held:
            self.assertTrue(comes_true(lambda: " 200 OK" in daemon.scrape()))
            for _ in range(60):
                slow = held.enter_context(daemon.connect("metrics", socket.SOCK_STREAM))
                slow.sendall(b"GET /met")
            for _ in range(20):
                greedy = held.enter_context(socket.create_connection(("127.0.0.1", daemon.port), timeout=60))
                greedy.sendall(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 3000)
            for _ in range(20):
                self.check_beside_a_slow_one(daemon, lambda: self.assertTrue(daemon.refused_client()))
            self.check_beside_a_slow_one(daemon, lambda: self.assertIn(" 200 OK", daemon.scrape()))
            # Beside what the daemon has for itself, a connection costs the process that answers one descriptor.
            self.assertLess(len(list(Path(f"/proc/{daemon.metrics_process()}/fd").iterdir())), 40)

    def check_beside_a_slow_one(self, daemon: Daemon, ask: Callable[[], None]) -> None:
        """Has its answer before the slow one is given up. A machine may be too slow for that, but not each time."""
        for _ in range(10):
            with daemon.connect("metrics", socket.SOCK_STREAM) as slow:
                slow.sendall(b"GET /met")
                ask()
                if not select.select([slow], [], [], 0)[0]:
                    return
        self.fail("each time a slow one was given up first")

    def test_sockets_of_systemd(self) -> None:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as held:
            directory = Path(name)
            clients = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            metrics = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            for listening, file in ((clients, "socket"), (metrics, "metrics")):
                listening.bind(str(directory / file))
                listening.listen(16)
            # That an administrator may have added, without thinking.
            open_to_all = held.enter_context(socket.create_server(("0.0.0.0", 0)))

            def place() -> None:
                high = [os.dup2(each.fileno(), 100 + i) for i, each in enumerate((metrics, open_to_all, clients))]
                for i, each in enumerate(high):
                    os.dup2(each, 3 + i)

            daemon = Daemon(
                directory, free_port(), ("sh", "-c", 'LISTEN_FDS=3 LISTEN_PID=$$ exec "$0" "$@"'), preexec_fn=place, pass_fds=(3, 4, 5))
            held.callback(daemon.process.wait)
            held.callback(daemon.process.kill)
            self.assertTrue(comes_true(lambda: " 200 OK" in daemon.scrape()))
            self.assertTrue(daemon.refused_client())
            self.assertIn(" 200 OK", daemon.scrape_by_port())
            self.assertEqual(daemon.said().count("no metrics at a socket of systemd's"), 1, daemon.said())


@unittest.skipUnless(has_net_admin(), "gpurxd needs CAP_NET_ADMIN")
class DoorsInUse(unittest.TestCase):
    """gpurxd looks every five seconds whether it can have a door: two of them wait for that at the same time."""

    @classmethod
    def setUpClass(cls) -> None:
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        directory = Path(made.name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as taken:
            taken.bind(str(directory / "metrics"))
            taken.listen()
            cls.without_socket = Daemon(directory, free_port())
            cls.addClassCleanup(cls.without_socket.process.wait)
            cls.addClassCleanup(cls.without_socket.process.kill)
            cls.was_up = comes_true(cls.without_socket.is_up)

    def test_a_port_that_is_in_use_keeps_nobody_from_their_queues(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, running(taken.getsockname()[1]) as daemon:
            self.assertTrue(daemon.refused_client())
            self.assertTrue(comes_true(lambda: " 200 OK" in daemon.scrape()))
            self.assertIn("no metrics there for now: listen at 127.0.0.1", daemon.said())
            taken.close()
            self.assertTrue(comes_true(lambda: answers(daemon.scrape_by_port)), daemon.said())
            self.assertIn(" 200 OK", daemon.scrape())
            self.assertEqual(daemon.said().count("no metrics there"), 1, daemon.said())

    def test_a_socket_that_is_in_use_is_had_later(self) -> None:
        daemon = self.without_socket
        self.assertTrue(self.was_up, daemon.said())
        self.assertTrue(comes_true(lambda: answers(daemon.scrape)), daemon.said())
        self.assertIn(" 200 OK", daemon.scrape_by_port())


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

    def test_what_is_named_is_allowed(self) -> None:
        unit = (self.directory / "gpurxd.service").read_text(encoding="utf-8")
        for call in ("landlock_create_ruleset", "landlock_restrict_self"):
            self.assertIn(call, re.search(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE)[1])
        socket_unit = (self.directory / "gpurxd.socket").read_text(encoding="utf-8")
        page = (SOURCES / "gpurxd.8").read_text(encoding="utf-8").replace("\\-", "-")
        for kind, path in (("ListenSequentialPacket", "/run/gpurxd.sock"), ("ListenStream", "/run/gpurxd-metrics.sock")):
            self.assertIn(f"{kind}={path}\n", socket_unit)
            self.assertIn(f"{path} by default", page)


def status_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


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
        self.assertIn("let nobody but root write it", open_to_all.stderr)
        self.assertEqual(run("--check", "--policy", "/nonexistent").returncode, 1)

    def test_metrics_are_for_this_machine_alone(self) -> None:
        self.assertEqual(self.check_policy("metrics 127.0.0.1:9710\n").returncode, 0)
        abroad = self.check_policy("metrics 0.0.0.0:9710\n")
        self.assertEqual(abroad.returncode, 1)
        self.assertIn("not an address of loopback", abroad.stderr)

    def test_policy_as_shipped(self) -> None:
        shipped = (SOURCES / "gpurxd.conf").read_text(encoding="utf-8")
        self.assertIn("0 lines", self.check_policy(shipped).stdout)
        metrics, example = (line.removeprefix("# ") for line in shipped.splitlines()[-2:])
        self.assertIn("1 lines", self.check_policy(f"{metrics}\n{example}\n").stdout)

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
