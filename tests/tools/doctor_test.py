#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpurx-doctor where there is no NIC for it: doctor_test.py PROGRAM MAN-PAGE [DIRECTORY-OF-A-FAKE-LIBCUDA]."""

import json
import re
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import pcapng
import socket_calls

PROGRAM = ""
MAN_PAGE = ""
FAKE_CUDA = ""

# The tap runs while a megabyte crosses the loopback, and something else at another port.
TRANSFER = r"""
ip link set lo up
"$1" tap lo --port 5001 --write "{directory}/flows.pcapng" --json &
tap=$!
python3 - <<'END'
import socket
import time
for port in (5001, 5002):
    for _ in range(600):  # until the tap's socket sees packets
        if any(line.split()[5] == "1" for line in open("/proc/net/packet")):
            break
        time.sleep(0.1)
    listener = socket.create_server(("127.0.0.1", port))
    sender = socket.create_connection(("127.0.0.1", port))
    receiver, _ = listener.accept()
    left = 1000000
    while left > 0:
        sender.sendall(bytes(min(left, 10000)))
        got = 0
        while got < min(left, 10000):
            got += len(receiver.recv(65536))
        left -= got
    sender.close()
    receiver.close()
END
kill -INT $tap
wait $tap
"""

# The tap runs while a connection is busy, until a table has shown packets of both directions; and for some time.
BUSY = r"""
ip link set lo up
python3 - <<'END' &
import socket
listener = socket.create_server(("127.0.0.1", 5001))
sender = socket.create_connection(("127.0.0.1", 5001))
receiver, _ = listener.accept()
open("{directory}/begun", "w").close()
while True:
    sender.sendall(bytes(1000))
    receiver.recv(1000, socket.MSG_WAITALL)
END
busy=$!
trap 'kill $busy' EXIT
while ! [[ -e "{directory}/begun" ]]; do sleep 0.05; done
"$1" tap lo --port 5001 >"{directory}/shown" &
tap=$!
until grep -q "^lo: [1-9][0-9]* packets of 2 flows" "{directory}/shown"; do sleep 0.05; done
kill -INT $tap
wait $tap
cat "{directory}/shown"
echo ====
"$1" tap lo --port 5001 --seconds 0.5
"""

# How the tap opens its packet socket. What looks for leaks as a program ends is not traced itself.
OPENED = r"""
ip link set lo up
ASAN_OPTIONS="${{ASAN_OPTIONS:+$ASAN_OPTIONS:}}detect_leaks=0" \
    python3 "{tracer}" "{directory}/calls" "$1" tap lo --port 5001 --seconds 0.1 --json
"""

# Of the fake driver's GPU, whose window (region 1) ends at this address.
GPU = r"""
mount -t tmpfs none /sys/bus/pci
mkdir -p /sys/bus/pci/devices/0000:17:00.0
printf '0x0 0xffffff 0x40200\n0x0 {end:#x} 0x14220c\n' >/sys/bus/pci/devices/0000:17:00.0/resource
LD_LIBRARY_PATH="{directory}" "$1" lo --gpu 0 --json
"""


def run(*arguments: str, inside: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*inside, PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def finding(interface: dict, topic: str) -> dict:
    return next(one for one in interface["findings"] if one["topic"] == topic)


class Doctor(unittest.TestCase):
    def test_loopback(self) -> None:
        answer = run("lo", "--json")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        interface = json.loads(answer.stdout)["interfaces"][0]
        self.assertEqual(interface["verdict"], "not possible")
        driver = finding(interface, "driver")
        self.assertEqual(driver["severity"], "blocking")
        self.assertIn("loopback", driver["what"])
        self.assertIn("the loopback device cannot", run("lo").stdout)

    def test_a_queue_for_io_uring(self) -> None:
        """It is taken where that was asked for only; and the loopback has none."""
        untried = json.loads(run("lo", "--json").stdout)["interfaces"][0]
        self.assertNotIn("zcrx-queue", [one["topic"] for one in untried["findings"]])
        self.assertTrue(finding(untried, "zcrx")["evidence"])
        answer = run("lo", "--try-zcrx", "--json")
        self.assertEqual(answer.returncode, 2, answer.stderr)
        tried = finding(json.loads(answer.stdout)["interfaces"][0], "zcrx-queue")
        self.assertEqual(tried["severity"], "note")
        self.assertIn("no queue of lo can be registered", tried["what"])
        self.assertTrue(tried["evidence"])

    def test_all_interfaces(self) -> None:
        answer = run()
        self.assertIn(answer.returncode, (0, 1, 2), answer.stderr)
        marked = [line for line in answer.stdout.splitlines() if line.startswith("* ")]
        everything = json.loads(run("--json").stdout)
        self.assertEqual([one.split()[1] for one in marked], [everything["best"]] if everything["best"] else [])
        self.assertIn("lo", [one["name"] for one in everything["interfaces"]])

    def namespace(self, script: str) -> subprocess.CompletedProcess[str]:
        """What `script` prints in a network namespace of its own, where "$1" is the program."""
        inside = ("unshare", "--user", "--map-root-user", "--net", "--mount", "bash", "-ec")
        return subprocess.run(
            [*inside, script, "bash", PROGRAM], capture_output=True, text=True, timeout=60, check=False
        )

    def check_namespaces(self) -> None:
        probe = self.namespace("true")
        if probe.returncode != 0:
            self.skipTest(f"no network namespace can be made here: {probe.stderr.strip()}")

    def test_nothing(self) -> None:
        """A network namespace with a loopback that is down, and nothing else."""
        self.check_namespaces()
        answer = self.namespace('"$1"')
        self.assertEqual(answer.returncode, 2, answer.stderr)
        self.assertIn("  lo", answer.stdout)
        self.assertNotIn("*", answer.stdout)
        self.assertIn("transport copy works", answer.stdout)

    def test_veth(self) -> None:
        self.check_namespaces()
        made = self.namespace("ip link add name one type veth peer name two")
        if made.returncode != 0:
            self.skipTest(f"no veth can be made here: {made.stderr.strip()}")
        answer = self.namespace('ip link add name one type veth peer name two; "$1" one --json')
        self.assertEqual(answer.returncode, 2, answer.stderr)
        driver = finding(json.loads(answer.stdout)["interfaces"][0], "driver")
        self.assertEqual(driver["severity"], "blocking")
        self.assertIn("driver veth cannot bind memory", driver["what"])

    def test_rights_are_those_over_the_network_namespace(self) -> None:
        """All rights in a user namespace of one's own are none over a network namespace of others."""
        self.check_namespaces()
        theirs = run("lo", "--json", inside=("unshare", "--user", "--map-root-user"))
        own = self.namespace('"$1" lo --json')
        severities = [
            finding(json.loads(answer.stdout)["interfaces"][0], "rights")["severity"] for answer in (theirs, own)
        ]
        self.assertEqual(severities, ["blocking", "ok"])

    def test_a_gpu_that_is_not_there(self) -> None:
        answer = run("lo", "--gpu", "99", "--json")
        gpu = finding(json.loads(answer.stdout)["interfaces"][0], "gpu")
        self.assertEqual(gpu["severity"], "blocking")
        self.assertTrue(gpu["evidence"])

    def test_a_gpu(self) -> None:
        """The fake driver's: its memory, and the window that NICs reach it through."""
        if not FAKE_CUDA:
            self.skipTest("built without the fake driver")
        probe = self.namespace("mount -t tmpfs none /sys/bus/pci")
        if probe.returncode != 0:
            self.skipTest(f"no PCI device can be made up here: {probe.stderr.strip()}")
        for size, severity, said in ((128 << 30, "ok", "BAR1 has 128 GiB"),
                                     (16 << 20, "blocking", "BAR1 has 16 MiB, 64 MiB of memory")):
            answer = self.namespace(GPU.format(end=size - 1, directory=FAKE_CUDA))
            self.assertEqual(answer.returncode, 2, answer.stderr)  # a loopback it remains
            interface = json.loads(answer.stdout)["interfaces"][0]
            gpu = finding(interface, "gpu")
            self.assertEqual(gpu["severity"], "ok")
            self.assertRegex(gpu["what"], r"^memory of GPU 0 \(.*\) can be exported to a NIC$")
            # What device_memory::explain() says.
            self.assertRegex(gpu["evidence"], r"^memory of GPU 0 .*, 2 MiB by cuMemCreate, exported by the CUDA driver; ")
            window = finding(interface, "bar1")
            self.assertEqual((window["severity"], window["evidence"]), (severity, said))

    def test_nothing_to_fix(self) -> None:
        answer = run("lo", "--fix", "--dry-run")
        self.assertTrue(answer.stdout.startswith("# --fix has nothing to do; "), answer.stdout)
        self.assertEqual(answer.returncode, 2)

    def test_wrong_usage(self) -> None:
        for arguments in (["--no-such"], ["no-such-if0"], ["--fix"], ["--try-zcrx"], ["lo", "--dry-run"],
                          ["lo", "--memory", "much"]):
            answer = run(*arguments)
            self.assertEqual(answer.returncode, 3, arguments)
            self.assertTrue(answer.stderr, arguments)
            self.assertEqual(answer.stdout, "", arguments)

    def test_version(self) -> None:
        answer = run("--version")
        self.assertEqual(answer.returncode, 0)
        self.assertRegex(answer.stdout, r"^gpurx-doctor \d+\.\d+\.\d+\n$")

    def test_tap(self) -> None:
        """A transfer over the loopback of a network namespace: the table, the file, and what is of the filter."""
        self.check_namespaces()
        with tempfile.TemporaryDirectory() as directory:
            answer = self.namespace(TRANSFER.format(directory=directory))
            self.assertEqual(answer.returncode, 0, answer.stderr)
            totals = json.loads(answer.stdout)
            file = pcapng.read(Path(directory, "flows.pcapng").read_bytes())
        ends = {flow["local"]: flow for flow in totals["flows"]}
        self.assertEqual(len(ends), 2, totals)
        self.assertEqual(ends["127.0.0.1:5001"]["bytes"], 1000000)
        # Of the loopback everything can be read.
        self.assertEqual(ends["127.0.0.1:5001"]["unsplit"], ends["127.0.0.1:5001"]["packets"])
        self.assertEqual((totals["dropped"], totals["odd"]), (0, 0))
        self.assertEqual(file.interface, "lo")
        self.assertEqual(len(file.packets), totals["packets"])
        self.assertEqual((file.received, file.dropped), (totals["packets"], 0))
        for packet in file.packets:
            ports = struct.unpack_from("!HH", packet.captured, 34)
            self.assertIn(5001, ports)
            headers = 34 + (packet.captured[46] >> 4) * 4
            self.assertEqual(len(packet.captured), headers, "headers, and nothing of the payload")
        self.assertGreaterEqual(sum(packet.length - len(packet.captured) for packet in file.packets), 1000000)

    def test_tap_table(self) -> None:
        """What people see: a table while it runs, and the totals when it is stopped, or the time is over."""
        self.check_namespaces()
        with tempfile.TemporaryDirectory() as directory:
            answer = self.namespace(BUSY.format(directory=directory))
        self.assertEqual(answer.returncode, 0, answer.stderr)
        stopped, timed = answer.stdout.split("====\n")
        *tables, totals = stopped.rstrip("\n").split("\n\n")
        live = next(one for one in tables if re.search(r"^lo: [1-9]\d* packets of 2 flows", one, re.MULTILINE))
        self.assertNotEqual(live, totals, answer.stdout)
        for table in (live, totals):
            head, *flows = table.splitlines()
            sums = next(line for line in flows if line.startswith("lo: "))
            self.assertEqual(head.split(")")[1].split(),
                             ["rate", "packets", "gaps", "reorder", "retrans", "unsplit", "window"])
            (row,) = [flow for flow in flows if "-> 127.0.0.1:5001 " in flow]
            columns = re.match(r"127\.0\.0\.1:\d+ -> 127\.0\.0\.1:5001 +[\d.]+ [KMG]?i?B/s +(\d+) +\d+ +\d+ +\d+ +(\d+) ", row)
            self.assertIsNotNone(columns, table)
            # Of the loopback everything can be read.
            self.assertGreater(int(columns[1]), 0)
            self.assertEqual(columns[1], columns[2])
            self.assertRegex(sums, r"^lo: [1-9]\d* packets of 2 flows in \d+\.\d s; the tap dropped")
        self.assertGreaterEqual(float(re.search(r"in (\d+\.\d) s", timed)[1]), 0.5)

    def test_tap_opens_its_socket_the_cheap_way(self) -> None:
        """No protocol at socket(), and one bind() to protocol and interface, after all else: so bind() waits for nobody."""
        self.check_namespaces()
        with tempfile.TemporaryDirectory() as directory:
            answer = self.namespace(OPENED.format(tracer=socket_calls.__file__, directory=directory))
            if answer.returncode == socket_calls.CANNOT_TRACE:
                self.skipTest(f"no program can be traced here: {answer.stderr.strip()}")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            calls = Path(directory, "calls").read_text()
        self.assertRegex(calls, r"\Asocket\(.* = \d+\n")
        number = calls.splitlines()[0].split()[-1]
        self.assertEqual(calls.splitlines(), [
            f"socket(AF_PACKET, SOCK_RAW|SOCK_CLOEXEC, htons(0)) = {number}",
            f"setsockopt({number}, SOL_PACKET, PACKET_VERSION) = 0",
            f"setsockopt({number}, SOL_PACKET, PACKET_RX_RING) = 0",
            f"setsockopt({number}, SOL_SOCKET, SO_ATTACH_FILTER) = 0",
            f'bind({number}, {{AF_PACKET, htons(ETH_P_ALL), "lo"}}) = 0',
        ])

    def test_tap_without_sessions(self) -> None:
        answer = run("tap", "lo", "--state-directory", "/nonexistent")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("--port", answer.stderr)

    def test_tap_wrong_usage(self) -> None:
        for arguments in ([], ["no-such-if0", "--port", "1"], ["lo", "--flow", "x"], ["lo", "--port", "0"]):
            answer = run("tap", *arguments)
            self.assertEqual(answer.returncode, 3, arguments)
            self.assertTrue(answer.stderr, arguments)
            self.assertEqual(answer.stdout, "", arguments)

    def test_man_page(self) -> None:
        """It has every option of --help and of tap --help, and no other."""
        described = "".join(run(*which, "--help").stdout.split("Exit status:")[0] for which in ((), ("tap",)))
        options = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", described, re.MULTILINE)) - {"--help"}
        page = Path(MAN_PAGE).read_text().replace(r"\-", "-")
        self.assertEqual(options, set(re.findall(r"^\.TP\n\.BI? (--[a-z-]+)", page, re.MULTILINE)))


if __name__ == "__main__":
    PROGRAM, MAN_PAGE, FAKE_CUDA = (*sys.argv[1:], "")[:3]
    unittest.main(argv=sys.argv[:1], verbosity=2)
