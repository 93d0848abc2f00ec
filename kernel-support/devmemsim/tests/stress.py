#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Rounds of random changes to the pair, under traffic and with live bindings.

The module comes and goes, links and channels and rings change, memory is bound
and unbound; nothing may break, no byte may differ, no page may be left behind.
The lab looks at the kernel log afterwards.

    stress.py [--rounds N] [--seed N]
"""

import argparse
import os
import random
import sys
import time
from typing import Callable, Optional

import devmem
import lab
import netlink
import xdp
from flow import Flow
from tap import eventually

PAGE = 4096
MAX_FLOWS = 4
FAULTS = (("drop", 50), ("duplicate", 7), ("reorder", 9), ("delay_us", 500),
          ("alloc_fail", 60), ("linear_bytes", 64), ("no_split", 5),
          ("pack", 1))


class World:
    """What there is now, and what can be done to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.loaded = False
        self.up = {"dms0": False, "dms1": False}
        self.channels = 4
        self.program = False
        self.bound: dict[int, devmem.Binding] = {}
        self.stray: list[devmem.Binding] = []
        self.flows: list[Flow] = []
        self.bytes = {"plain": 0, "device": 0}

    # Actions: each returns what it did, or None if it does not apply now

    def load(self) -> Optional[str]:
        if self.loaded:
            return None
        lab.setup()
        lab.run("ethtool -X dms0 equal 1")
        netlink.rings_set("dms0", tcp_data_split=netlink.SPLIT_ON)
        self.loaded, self.channels, self.program = True, 4, False
        self.up = {"dms0": True, "dms1": True}
        return "load"

    def unload(self) -> Optional[str]:
        if not self.loaded or self.random.random() < 0.4:
            return None
        keep = self.random.random() < 0.5
        lab.run("rmmod devmemsim")
        self.loaded = False
        self.stray += self.bound.values()
        self.bound = {}
        if not keep:
            self.close_stray()
        return f"unload, {len(self.flows)} flows, {len(self.stray)} bindings"

    def close_stray(self) -> Optional[str]:
        """Bindings whose device has gone."""
        if not self.stray:
            return None
        for binding in self.stray:
            self.stop_flows_of(binding)
            binding.close()
        count, self.stray = len(self.stray), []
        return f"close {count} bindings without device"

    def link_down(self) -> Optional[str]:
        device = self.random.choice(list(self.up))
        if not self.loaded or not self.up[device]:
            return None
        command = lab.run if device == "dms0" else lab.peer
        command(f"ip link set {device} down")
        self.up[device] = False
        return f"down {device}"

    def link_up(self) -> Optional[str]:
        if not self.loaded or all(self.up.values()):
            return None
        lab.addresses()
        self.up = {"dms0": True, "dms1": True}
        return "up"

    def set_channels(self) -> Optional[str]:
        if not self.loaded:
            return None
        count = self.random.randint(1, 16)
        out = lab.run(f"ethtool -L dms0 combined {count}", check=False)
        # The latter while queues that went are still looked at in sysfs
        if ("too low for existing" in out or "no change" in out.lower() or
                "temporarily unavailable" in out):
            return f"channels {count} refused"
        if "error" in out:
            raise RuntimeError(out)
        self.channels = count
        return f"channels {count}"

    def set_rings(self) -> Optional[str]:
        if not self.loaded:
            return None
        rx, tx = self.random.choice((32, 64, 100, 512)), self.random.choice(
            (32, 256, 1000))
        netlink.rings_set("dms0", rx=rx, tx=tx)
        return f"rings {rx} {tx}"

    def set_features(self) -> Optional[str]:
        if not self.loaded:
            return None
        features = " ".join(f"{name} {self.random.choice(('on', 'off'))}"
                            for name in ("rx-gro-hw", "gro"))
        lab.run(f"ethtool -K dms0 {features}")
        return features

    def set_fault(self) -> Optional[str]:
        if not self.loaded:
            return None
        name, value = self.random.choice(FAULTS)
        value = self.random.choice((0, value))
        lab.set_fault(name, value)
        return f"fault {name} {value}"

    def bind(self) -> Optional[str]:
        queues = self.free_queues()
        if not self.loaded or not queues or self.program:
            return None
        queue = self.random.choice(queues)
        size = PAGE * self.random.choice((16, 200, 1024))
        self.bound[queue] = devmem.Binding("dms0", [queue], size)
        return f"bind {size >> 10}K to queue {queue}"

    def set_program(self) -> Optional[str]:
        if not self.loaded or self.bound:
            return None
        if self.program and self.random.random() < 0.5:
            xdp.detach()
            self.program = False
            return "detach a program"
        end = xdp.return_(self.random.choice((xdp.PASS, xdp.TX)))
        fd = xdp.load(xdp.echo(end), frags=True)
        xdp.attach(fd)
        os.close(fd)
        self.program = True
        return "attach a program"

    def unbind(self) -> Optional[str]:
        if not self.bound:
            return None
        queue = self.random.choice(list(self.bound))
        binding = self.bound.pop(queue)
        early = self.random.random() < 0.5
        if early:
            self.stop_flows_of(binding)
        binding.unbind()
        self.stop_flows_of(binding)
        binding.close()
        return f"unbind queue {queue}{'' if early else ' under traffic'}"

    def start_flow(self) -> Optional[str]:
        if not all(self.up.values()) or not self.loaded:
            return None
        if len(self.flows) >= MAX_FLOWS:
            return self.stop_flow()
        version = self.random.choice((4, 6))
        queue = self.random.choice([0, *self.bound, *self.bound])
        hold = self.random.choice((0, 0, 64, 2000))
        inward = bool(queue) or self.random.random() < 0.5
        try:
            self.flows.append(Flow(version, inward, self.bound.get(queue),
                                   queue, hold))
        except TimeoutError:
            return "flow does not connect"
        return f"flow v{version} {'in' if inward else 'out'} queue {queue}"

    def stop_flow(self) -> Optional[str]:
        if not self.flows:
            return None
        self.end(self.random.choice(self.flows))
        return "stop a flow"

    # Helpers

    def free_queues(self) -> list[int]:
        """Queues that memory can be bound to; ordinary traffic has queue 0."""
        return [q for q in range(1, self.channels) if q not in self.bound]

    def end(self, flow: Flow) -> None:
        flow.stop()
        self.flows.remove(flow)
        self.bytes["device" if flow.binding else "plain"] += flow.received
        if flow.problem:
            raise AssertionError(flow.problem)
        if flow.rule is not None and self.loaded:
            lab.run(f"ethtool -N dms0 delete {flow.rule}", check=False)

    def stop_flows_of(self, binding: devmem.Binding) -> None:
        for flow in [f for f in self.flows if f.binding is binding]:
            self.end(flow)

    def step(self) -> str:
        actions: list[Callable[[], Optional[str]]] = [
            self.load, self.unload, self.close_stray, self.link_down,
            self.link_up, self.link_up, self.link_up,
            self.set_channels, self.set_rings, self.set_features,
            self.set_fault, self.set_program, self.bind, self.bind,
            self.unbind, self.start_flow, self.start_flow, self.start_flow,
            self.stop_flow]
        while True:
            done = self.random.choice(actions)()
            if done:
                break
        time.sleep(self.random.choice((0, 0.05, 0.2)))
        for flow in self.flows:
            if flow.problem:
                raise AssertionError(flow.problem)
        return done

    def probe(self) -> None:
        """The pair carries bytes as it should, also into bound memory."""
        if not self.loaded:
            self.load()
        lab.addresses()
        self.up = {"dms0": True, "dms1": True}
        for name, _ in FAULTS:
            lab.set_fault(name, 0)
        lab.transfer(4, 1 << 18)
        lab.transfer(6, 1 << 18, inward=False)
        self.probe_device()

    def probe_device(self) -> None:
        """A flow into memory of its own; both stay for what comes next."""
        if self.channels == 1:
            lab.set_channels(4)
            self.channels = 4
        while not self.free_queues():
            self.unbind()
        if self.program:
            xdp.detach()
            self.program = False
        if len(self.flows) >= MAX_FLOWS:
            self.stop_flow()
        queue = self.free_queues()[0]
        self.bound[queue] = devmem.Binding("dms0", [queue], 1024 * PAGE)
        flow = Flow(4, True, self.bound[queue], queue)
        self.flows.append(flow)
        eventually(lambda: flow.received >= 1 << 18 or flow.problem,
                   lambda: f"{flow.received} bytes and no more")

    def finish(self) -> None:
        """Everything away, with traffic and bindings still there."""
        self.probe()
        lab.run("rmmod devmemsim")
        self.loaded = False
        for flow in list(self.flows):
            self.end(flow)
        for binding in [*self.bound.values(), *self.stray]:
            binding.close()


def available() -> int:
    """Memory that could be had, in KiB."""
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file
                    if line.startswith("MemAvailable"))


def nothing_left() -> None:
    """No page pool, no module."""
    eventually(lambda: not netlink.page_pools(),
               lambda: f"page pools are left: {netlink.page_pools()}")
    if os.path.isdir("/sys/module/devmemsim"):
        raise AssertionError("the module is left")


def run(rounds: int, seed: int) -> None:
    with open("/proc/sys/net/core/skb_defer_max", "w",
              encoding="ascii") as file:
        file.write("0")
    world = World(seed)
    if os.path.isdir("/sys/module/devmemsim"):
        lab.run("rmmod devmemsim")
    before = None
    for number in range(1, rounds + 1):
        print(f"# {number}/{rounds} {world.step()}", flush=True)
        if number % 20 == 0:
            world.probe()
        if number == rounds // 4:
            before = available()
    world.finish()
    nothing_left()
    lost = (before or 0) - available()
    print(f"# plain {world.bytes['plain'] >> 20} MiB, device "
          f"{world.bytes['device'] >> 20} MiB, {lost} KiB less memory")
    if lost > 16 << 10:
        raise AssertionError(f"{lost} KiB of memory are gone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int,
                        default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"1..1\n# seed {options.seed}", flush=True)
    try:
        run(options.rounds, options.seed)
    except Exception as error:  # pylint: disable=broad-except
        print(f"# {type(error).__name__}: {error}\n"
              f"not ok 1 stress, seed {options.seed}", flush=True)
        sys.exit(1)
    print(f"ok 1 stress, {options.rounds} rounds, seed {options.seed}")


if __name__ == "__main__":
    main()
