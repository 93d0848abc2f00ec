#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In the lab's guest, whose first process is init: systemd starts gpurxd by its units, as they are installed, and a program
without rights receives through it. What the units forbid, and what they must not."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
INSTALLED = REPO / "build/systemd/usr/local"
SYSTEM = Path("/lib/systemd/system")
UNITS = Path("/etc/systemd/system")
CLIENT = Path("/run/receive_file")
CGROUP = Path("/sys/fs/cgroup/system.slice/gpurxd.service")

NET_ADMIN = 1 << 12
NOBODY = 65534
PEER = "10.77.0.2"
METRICS = Path("/run/gpurx-metrics/gpurxd.prom")
QUEUES = f'gpurxd_queues{{interface="dms0",user="{NOBODY}"}}'
DATA = random.Random(7).randbytes(3 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()

POLICY = "allow user nobody interface dms0 queues 2 memory 64MiB clients 4 opens 1000\n"


def run(*command: str) -> str:
    """Its output; it has to succeed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def comes_true(condition: Callable[[], object], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


# What systemd needs of a machine, and this guest does not have: its root is the host's, and read-only.


def make_fresh(directory: str, mode: int) -> None:
    """Empty, and not the host's; what of the repository lies below stays to be seen."""
    Path("/run/fresh").mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", f"mode={mode:o}", "tmpfs", "/run/fresh")
    if REPO.is_relative_to(directory):
        inside = Path("/run/fresh", REPO.relative_to(directory))
        inside.mkdir(parents=True)
        run("mount", "--bind", str(REPO), str(inside))
    run("mount", "--move", "/run/fresh", directory)


def make_etc() -> None:
    """As much of it as programs ask for, and of systemd's nothing but our units."""
    kept = {}
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "hosts", "protocols", "services"):
        with contextlib.suppress(FileNotFoundError):
            kept[name] = Path("/etc", name).read_bytes()
    make_fresh("/etc", 0o755)
    for name, data in kept.items():
        Path("/etc", name).write_bytes(data)
    Path("/etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n", encoding="ascii")
    UNITS.mkdir(parents=True)
    # Of what every boot would start there remains the journal: the rest is about disks and terminals.
    for target in ("basic", "sysinit", "sockets", "local-fs", "timers", "paths"):
        for unit in (SYSTEM / f"{target}.target.wants").glob("*"):
            if not unit.name.startswith("systemd-journald"):
                (UNITS / unit.name).symlink_to("/dev/null")
    (UNITS / "tmp.mount").symlink_to("/dev/null")


def install() -> None:
    """What packages install, and what the administrator writes."""
    run("mount", "--bind", str(INSTALLED / "sbin"), "/usr/local/sbin")
    for unit in (INSTALLED / "lib/systemd/system").iterdir():
        shutil.copy(unit, UNITS)
    policy = Path("/etc/gpurx/gpurxd.conf")
    policy.parent.mkdir()
    policy.write_text(POLICY, encoding="utf-8")
    policy.chmod(0o600)
    Path("/dev/udmabuf").chmod(0o666)
    # Where everybody can reach it, wherever the repository lies.
    CLIENT.touch()
    run("mount", "--bind", str(REPO / "build/test/samples/receive_file/receive_file"), str(CLIENT))


def boot() -> None:
    if not Path("/lib/systemd/systemd").exists():
        raise unittest.SkipTest("there is no systemd on this machine")
    make_etc()
    for directory in ("/var", "/tmp"):
        make_fresh(directory, 0o755)
    Path("/tmp").chmod(0o1777)
    Path("/var/tmp").mkdir()
    Path("/var/tmp").chmod(0o1777)
    install()
    began = time.monotonic()
    Path("/run/start-systemd").touch()
    if not comes_true(lambda: Path("/run/systemd/private").exists(), 120):
        raise unittest.SkipTest(f"systemd does not start in this guest: PID 1 is {Path('/proc/1/comm').read_text().strip()}")
    state = subprocess.run(["systemctl", "is-system-running", "--wait"], capture_output=True, text=True, timeout=120,
                           check=False)
    print(f"{run('systemctl', '--version').splitlines()[0]} is {state.stdout.strip()} after {time.monotonic() - began:.0f} s",
          flush=True)


# What is measured.


def show(what: str, unit: str = "gpurxd.service") -> str:
    return run("systemctl", "show", "--value", "-p", what, unit).strip()


def main_process() -> int:
    return int(show("MainPID"))


def processes() -> dict[int, str]:
    """Those of the service: daemon or client."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for pid in map(int, (CGROUP / "cgroup.procs").read_text(encoding="ascii").split()):
            with contextlib.suppress(FileNotFoundError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found[pid] = "client" if b"--connection" in command else "daemon"
    return found


def processes_of(kind: str) -> list[int]:
    return [pid for pid, its_kind in processes().items() if its_kind == kind]


def as_it_sees(command: str) -> str:
    """What a shell says in the daemon's view of the file system. It has all rights, which the daemon does not."""
    done = subprocess.run(["nsenter", f"--mount=/proc/{main_process()}/ns/mnt", "sh", "-c", command], capture_output=True,
                          text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def nic() -> str:
    return "".join(run("ethtool", option, "dms0") for option in ("-l", "-x", "-n", "-g")) + re.sub(
        r"(?m)^(?!ntuple|rx-gro-hw).*\n", "", run("ethtool", "-k", "dms0"))


def journal(*options: str) -> str:
    run("journalctl", "--sync")
    return run("journalctl", "--quiet", "--no-pager", "-o", "cat", "-u", "gpurxd.service", "-u", "gpurxd.socket", *options)


def value_of(page: str, figure: str) -> float:
    found = re.search(rf"(?m)^{re.escape(figure)} (\S+)$", page)
    return float(found[1]) if found else -1


# Who sends, and who receives.


def in_peer(make: Callable[[], socket.socket]) -> socket.socket:
    """A socket made in the network namespace of the NIC's other end: there it stays."""
    made: list[socket.socket] = []

    def enter() -> None:
        with open("/run/netns/peer", "rb") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        made.append(make())

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return made[0]


def send_part(to: socket.socket, part: bytes) -> None:
    """Until the other side has all of it."""
    to.sendall(part)
    if not comes_true(lambda: struct.unpack("i", fcntl.ioctl(to, termios.TIOCOUTQ, bytes(4)))[0] == 0):
        raise AssertionError("what was sent does not arrive")


class Client:
    """A program of a user without rights."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all",
             "--no-new-privs", str(CLIENT), "--interface", "dms0", "--transport", "devmem", "--memory-size", "8MiB",
             "--expect-sha256", SHA256, "--json", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def report(self) -> dict:
        out, err = self.process.communicate(timeout=120)
        if self.process.returncode != 0:
            raise AssertionError(f"the client ended with {self.process.returncode}: {out}{err}")
        return json.loads(out)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def flowing() -> Iterator[tuple[Client, Callable[[], dict]]]:
    """In the middle of a flow; what is called then sends the rest, and has the client's report."""
    with in_peer(lambda: socket.create_server((PEER, 0))) as listening, contextlib.ExitStack() as held:
        client = Client("--connect", f"{PEER}:{listening.getsockname()[1]}")
        held.callback(client.end)
        # It ends, or it connects.
        comes_true(lambda: client.process.poll() is not None or select.select([listening], [], [], 0)[0], 60)
        if not select.select([listening], [], [], 0)[0]:
            client.process.kill()
            raise AssertionError("the client does not connect: " + "".join(client.process.communicate()))
        to = held.enter_context(listening.accept()[0])
        to.settimeout(60)
        send_part(to, DATA[: len(DATA) // 2])

        def finish() -> dict:
            to.sendall(DATA[len(DATA) // 2 :])
            to.close()
            return client.report()

        yield client, finish


class Gpurxd(unittest.TestCase):
    before: str

    @classmethod
    def setUpClass(cls) -> None:
        cls.before = nic()
        run("systemctl", "enable", "--now", "gpurxd.socket")

    def setUp(self) -> None:
        self.since = f"@{time.time():.6f}"

    def tearDown(self) -> None:
        self.assertTrue(comes_true(lambda: nic() == self.before), f"the NIC is not as before:\n{nic()}\n{journal()}")

    def check_devmem(self, report: dict) -> None:
        self.assertEqual((report["transport"], report["sha256"]), ("devmem", SHA256), report)
        self.assertEqual((report["bytes"]["total"], report["bytes"]["host"]), (len(DATA), 0), report)
        self.assertIn("set up by gpurxd", report["explanation"])

    def check_receives(self) -> None:
        with flowing() as (_, finish):
            self.check_devmem(finish())

    def check_accepts(self) -> None:
        client = Client("--listen", "10.77.0.1:0")
        self.addCleanup(client.end)
        assert client.process.stderr
        said = []
        for line in client.process.stderr:
            said.append(line)
            if port := re.match(r"listening on port (\d+)", line):
                with in_peer(lambda: socket.create_connection(("10.77.0.1", int(port[1])), timeout=60)) as to:
                    to.sendall(DATA)
                self.check_devmem(client.report())
                return
        self.fail("the client does not listen: " + "".join(said))

    def test_a_client_starts_it(self) -> None:
        self.assertTrue((UNITS / "sockets.target.wants/gpurxd.socket").is_symlink())
        run("systemctl", "stop", "gpurxd")
        self.assertEqual(show("ActiveState", "gpurxd.socket"), "active")
        self.assertEqual((show("ActiveState"), processes()), ("inactive", {}))
        self.check_receives()
        self.assertEqual((show("ActiveState"), show("SubState")), ("active", "running"))
        self.check_accepts()
        # The kernel loads that when somebody asks for sockets; that the service itself may load nothing does not matter.
        self.assertTrue(Path("/sys/module/tcp_diag").exists())
        self.assertEqual(Path("/run/gpurxd.sock").stat().st_mode & 0o777, 0o666)

    def test_its_processes_have_one_capability_and_a_filter_of_calls(self) -> None:
        self.assertEqual(show("CapabilityBoundingSet"), "cap_net_admin")
        with flowing() as (client, finish):
            kinds = processes()
            self.assertEqual(sorted(kinds.values()), ["client", "daemon"])
            for pid, kind in kinds.items():
                status = status_of(pid)
                has = {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")}
                self.assertEqual(has, dict.fromkeys(has, NET_ADMIN), kind)
                self.assertEqual((status["Name"], status["NoNewPrivs"], status["Seccomp"]), ("gpurxd", "1", "2"), kind)
            self.assertEqual(int(status_of(client.process.pid)["CapEff"], 16), 0)
            self.check_devmem(finish())

    def test_it_can_write_to_its_own_directories_alone(self) -> None:
        with flowing() as (_, finish):
            # Sessions that do without it look for what it does there.
            for own in ("gpurx/*.journal", "gpurx-clients/*"):
                self.assertTrue(list(Path("/run").glob(own)), own)
            self.check_devmem(finish())
        for own in ("/run/gpurx", "/run/gpurx-clients", "/run/gpurx-metrics", "/tmp"):
            self.assertEqual(as_it_sees(f"touch {own}/probe && rm {own}/probe"), "", own)
            self.assertFalse(Path(own, "probe").exists())
        # Root may write there outside of the service.
        for path in ("/etc/probe", "/run/probe", "/run/systemd/probe", "/var/probe", "/sys/fs/cgroup/probe",
                     "/proc/sys/net/core/somaxconn", "/sys/class/net/dms0/mtu"):
            self.assertRegex(as_it_sees(f"echo 1 >>{path}"), "Read-only file system|nonexistent directory", path)
        for directory in ("/root", "/home"):
            self.assertRegex(as_it_sees(f"touch {directory}/probe"), "Permission denied|Read-only file system")
        self.assertEqual(as_it_sees("ls -d /dev/udmabuf /dev/kmsg 2>/dev/null"), "")

    def test_it_reaches_no_other_service(self) -> None:
        """Such as systemd, which does at a socket what root says, whatever capabilities that has."""
        self.check_receives()
        self.assertTrue(Path("/run/systemd/private").is_socket())
        found = as_it_sees("find /run /tmp /var -type s").split()
        self.assertEqual([path for path in found if not path.startswith("/run/systemd/userdb/")], [])

    def test_it_can_be_started_without_being_asked(self) -> None:
        units = ("gpurxd.socket", "gpurxd.service")
        for what, one, state in (("stop", "gpurxd.socket", "inactive"), ("start", "gpurxd.service", "active")):
            run("systemctl", what, one)
            self.assertEqual([show("ActiveState", unit) for unit in units], [state, state], journal())
        self.check_receives()

    def test_metrics_are_for_everybody_to_read_and_end_with_the_daemon(self) -> None:
        with flowing() as (_, finish):
            self.assertTrue(comes_true(lambda: value_of(METRICS.read_text(encoding="utf-8"), QUEUES) == 1, 10), journal())
            for path, mode in (("/run/gpurx", 0o700), ("/run/gpurx-clients", 0o700), (METRICS.parent, 0o755), (METRICS, 0o644)):
                found = os.stat(path)
                self.assertEqual((found.st_mode & 0o7777, found.st_uid), (mode, 0), path)
            as_nobody = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "cat", str(METRICS))
            self.assertEqual(value_of(run(*as_nobody), QUEUES), 1)
            self.check_devmem(finish())
        self.assertTrue(comes_true(lambda: value_of(METRICS.read_text(encoding="utf-8"), QUEUES) == -1, 10), journal())
        run("systemctl", "stop", "gpurxd")
        self.assertEqual(list(METRICS.parent.iterdir()), [])
        self.check_receives()

    def test_clients_do_not_notice_a_restart(self) -> None:
        with flowing() as (_, finish):
            first = main_process()
            run("systemctl", "restart", "gpurxd")
            self.assertNotIn(main_process(), (0, first))
            self.assertEqual(len(processes_of("client")), 1, processes())
            self.check_receives()
            self.check_devmem(finish())
        self.assertTrue(comes_true(lambda: not processes_of("client")), processes())

    def test_it_is_started_again_when_it_is_killed(self) -> None:
        with flowing() as (_, finish):
            first = main_process()
            restarts = int(show("NRestarts"))
            os.kill(first, signal.SIGKILL)
            self.assertTrue(comes_true(lambda: main_process() not in (0, first)), journal())
            self.assertEqual(int(show("NRestarts")), restarts + 1)
            self.check_receives()
            self.check_devmem(finish())

    def test_it_puts_back_what_the_clients_of_the_one_before_it_leave(self) -> None:
        with flowing() as (_, finish):
            run("systemctl", "restart", "gpurxd")
            for pid in processes_of("client"):
                os.kill(pid, signal.SIGKILL)
            self.assertTrue(comes_true(lambda: nic() == self.before), nic() + journal())
            report = finish()
            self.assertEqual(report["sha256"], SHA256)
            self.assertGreater(report["bytes"]["host"], 0)
        self.assertIn("put back: ", journal("--since", self.since))

    def test_stop_leaves_clients_and_kill_takes_their_queues(self) -> None:
        with flowing() as (_, finish):
            run("systemctl", "stop", "gpurxd")
            self.assertEqual(list(processes().values()), ["client"])
            self.assertNotEqual(nic(), self.before)
            run("systemctl", "kill", "gpurxd")
            self.assertTrue(comes_true(lambda: nic() == self.before and not processes()), nic() + journal())
            report = finish()
            self.assertEqual(report["sha256"], SHA256)
            self.assertGreater(report["bytes"]["host"], 0)
        run("systemctl", "stop", "gpurxd.socket", "gpurxd.service")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking, self.assertRaises(OSError):
            asking.connect("/run/gpurxd.sock")
        run("systemctl", "start", "gpurxd.socket")
        self.check_receives()

    def test_no_call_is_refused(self) -> None:
        """What the filter of the unit refuses has an error, which may be passed over; here it is the end."""
        dropped_in = Path("/run/systemd/system/gpurxd.service.d")
        dropped_in.mkdir(parents=True)
        (dropped_in / "kill.conf").write_text("[Service]\nSystemCallErrorNumber=kill\nRestart=no\n", encoding="utf-8")

        def undo() -> None:
            shutil.rmtree(dropped_in)
            run("systemctl", "daemon-reload")
            run("systemctl", "reset-failed", "gpurxd.socket", "gpurxd.service")
            run("systemctl", "restart", "gpurxd.socket")

        run("systemctl", "stop", "gpurxd")
        run("systemctl", "daemon-reload")
        self.addCleanup(undo)
        self.check_receives()
        self.check_accepts()
        daemon = main_process()
        with flowing() as (_, finish):
            self.assertTrue(comes_true(lambda: value_of(METRICS.read_text(encoding="utf-8"), QUEUES) == 1))
            self.check_devmem(finish())
        self.assertEqual((main_process(), show("Result")), (daemon, "success"), journal("--since", self.since))
        run("systemctl", "stop", "gpurxd")
        self.assertEqual((show("Result"), show("ExecMainStatus")), ("success", "0"), journal("--since", self.since))
        # So the kernel says what a filter has ended.
        self.assertEqual([line for line in run("dmesg").splitlines() if "type=1326" in line], [])


class Journal(unittest.TestCase):
    """After all the others: nothing that either has said is of something that it may not do."""

    def test_nothing_is_missed(self) -> None:
        said = journal()
        self.assertIn("gpurxd ", said)
        for words in ("not permitted", "ermission denied", "Read-only", "Bad system call", "status=31/SYS",
                      "gpurxd undid no change", "metrics omit", "metrics are off", "cannot write metrics",
                      "Unknown key", "Unknown lvalue", "Failed to", "ignoring:", "dumped"):
            self.assertNotIn(words, said)


def load_tests(loader: unittest.TestLoader, _tests: unittest.TestSuite, _pattern: str | None) -> unittest.TestSuite:
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (Gpurxd, Journal))


def setUpModule() -> None:
    boot()


if __name__ == "__main__":
    unittest.main(verbosity=2)
