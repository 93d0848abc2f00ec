#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Interrupts of the channels. Affinity needs two possible CPUs: --cpus 2, and --append maxcpus=1 for an emulated Debian."""

import contextlib
import os
import re
from typing import Callable, Iterator, Optional

import devmem
import lab
import netlink
from tap import Skip, check, equal, main

PAGE = 4096


def interrupts() -> dict[str, tuple[int, list[int]]]:
    """Number, and count for each online CPU, by name."""
    found = {}
    with open("/proc/interrupts", encoding="ascii") as file:
        cpus = len(file.readline().split())
        for line in file:
            number, *words = line.split()
            if words and re.fullmatch(r"dms\d-\d+", words[-1]):
                found[words[-1]] = (int(number[:-1]), list(map(int, words[:cpus])))
    return found


def total(name: str) -> int:
    return sum(interrupts()[name][1])


def affinity(name: str, value: Optional[str] = None) -> str:
    path = f"/proc/irq/{interrupts()[name][0]}/smp_affinity"
    if value is not None:
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    with open(path, encoding="ascii") as file:
        return file.read().strip().lstrip("0,")


def possible_cpus() -> int:
    with open("/sys/devices/system/cpu/possible", encoding="ascii") as file:
        return int(file.read().split("-")[-1]) + 1


def test_reported() -> None:
    """Each NAPI instance has one, and it is the one of that name."""
    numbers = {name: number for name, (number, _) in interrupts().items()}
    for count in (16, 3, 4):
        lab.set_channels(count)
        now = {name: number for name, (number, _) in interrupts().items()
               if name.startswith("dms0")}
        equal(set(now), {f"dms0-{n}" for n in range(count)}, "names")
        irqs = netlink.napi_irqs(lab.index())
        equal([irqs[netlink.queue_get(lab.index(), n)["napi-id"]]
               for n in range(count)], [now[f"dms0-{n}"] for n in range(count)],
              "of the queues")
        for name in set(now) & set(numbers):
            equal(now[name], numbers[name], f"number of {name}")


@contextlib.contextmanager
def bursts(packets: int) -> Iterator[None]:
    """The other end sends as many packets at once, at least. TCP sends fewer
    the slower it is acknowledged, down to 2."""
    name = "net.ipv4.tcp_min_tso_segs"
    old = lab.peer(f"sysctl -n {name}").strip()
    lab.peer(f"sysctl -w {name}={packets}")
    try:
        yield
    finally:
        lab.peer(f"sysctl -w {name}={old}")


def test_raised_by_traffic() -> None:
    """By that of its own queue, and not for each packet of a burst."""
    lab.run("ethtool -X dms0 equal 1")
    # A burst comes as the packets that it has on a wire
    lab.run("ethtool -K dms0 rx-gro-hw off")
    before = {n: total(f"dms0-{n}") for n in range(4)}
    packets = netlink.rx_stats(lab.index())[2]["packets"]
    with lab.listen(lab.LOCAL[4]) as server:
        port = server.getsockname()[1]
        with lab.rule(f"tcp4 dst-port {port} action 2"), bursts(16):
            lab.transfer(4, 8 << 20, listener=server)
            packets = netlink.rx_stats(lab.index())[2]["packets"] - packets
            grown = {n: total(f"dms0-{n}") - before[n] for n in range(4)}
    check(grown[2] > 10, f"interrupts of the queue: {grown}")
    check(4 * grown[2] < packets, f"{grown[2]} interrupts for {packets} packets")
    check(grown[1] + grown[3] == 0, f"of idle queues: {grown}")


def test_affinity_is_spread() -> None:
    cpus = os.cpu_count() or 1
    for n in range(4):
        equal(bin(int(affinity(f"dms0-{n}").replace(",", ""), 16)).count("1"),
              1, f"CPUs of dms0-{n}")
    equal(len({affinity(f"dms0-{n}") for n in range(4)}), min(cpus, 4),
          "different CPUs")


def resize() -> None:
    for count in (1, 16, 4):
        lab.set_channels(count)


def down_and_up() -> None:
    lab.run("ip link set dms0 down")
    lab.addresses()


def bind() -> None:
    netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
    with devmem.Binding("dms0", [3], 64 * PAGE):
        pass


def test_affinity_survives() -> None:
    if possible_cpus() < 2:
        raise Skip("one CPU")
    old = affinity("dms0-3")
    new = "3" if old != "3" else "1"
    changes: tuple[Callable[[], None], ...] = (
        resize, down_and_up, lambda: netlink.rings_set("dms0", rx=256), bind)
    for change in changes:
        equal(affinity("dms0-3", new), new, "as written")
        change()
        equal(affinity("dms0-3"), new, "afterwards")
        lab.transfer(4, 1 << 16)
        affinity("dms0-3", old)


def test_affinity_is_honoured() -> None:
    cpus = os.cpu_count() or 1
    if cpus < 2:
        raise Skip("one CPU is online")
    lab.run("ethtool -X dms0 weight 0 0 1 0")
    old = affinity("dms0-2")
    for cpu in list(range(cpus)) * 2:
        affinity("dms0-2", f"{1 << cpu:x}")
        before = interrupts()["dms0-2"][1]
        for version in (4, 6):
            lab.transfer(version, 4 << 20)
        grown = [now - then for now, then in zip(interrupts()["dms0-2"][1], before)]
        check(grown[cpu] > 10, f"on CPU {cpu}: {grown}")
        equal(sum(grown) - grown[cpu], 0, f"on others than {cpu}: {grown}")
    affinity("dms0-2", old)


if __name__ == "__main__":
    main(globals(), lab.setup, lab.reset)
