#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the steps of tests/steps, each with its output in build/test-logs/STEP.log, and sums up.

    run.py [--quick] [STEP...]        as tests/run.sh, which has looked at them, hands them on

The exit status is 0 only if something ran and nothing failed. What begins late in a run is in steps.py: what is left comes
with the next runs, or by name. How long each step took is kept in the cache; one that became a third slower is named.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import once
import times
from steps import RUN_END, Step, choose, is_too_late, may_start, read_steps
from tally import Tally, read_cut_log, read_log

LOGS = Path("build/test-logs")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpurx"
LINES_OF_A_FAILURE = 40
MOST_FAILURES_SHOWN = 5


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def times_slower() -> int:
    """How many times slower than most this machine is now: a loop that takes 80 ms on a core of 2022 with nothing else to
    do. At least 1."""
    start = time.perf_counter()
    for _ in range(2_000_000):
        pass
    return math.ceil((time.perf_counter() - start) / 0.08)


def available_gib() -> float:
    """Memory that guests may take."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) / (1 << 20)


def last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        lines = file.read().decode(errors="replace").split("\n")
    line = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(character for character in line if character.isprintable())


def later(step: Step) -> str:
    return f"it comes with the next one, or with ./run test {step.name}"


@dataclass
class Running:
    step: Step
    process: subprocess.Popen[bytes]
    seconds: float
    is_cut: bool  # the run is over before the step's own limit
    stamp: Path | None
    start: float = field(default_factory=time.monotonic)

    @property
    def log(self) -> Path:
        return LOGS / f"{self.step.name}.log"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start


class Run:
    """One run of the steps that were chosen."""

    def __init__(self, steps: list[Step], *, named: bool) -> None:
        self.start = time.monotonic()
        self.named = named
        self.waiting = list(steps)
        self.running: list[Running] = []
        self.tallies: dict[str, Tally] = {}
        self.seconds: dict[str, int] = {}
        self.failed_logs: list[Path] = []
        self.order = [step.name for step in steps]
        # An emulated guest computes for two thirds of its time. More than one for a core were tried: tests that have limits of
        # their own, upstream's above all, then meet them.
        self.guests = os.cpu_count() or 1
        self.gib = available_gib()
        self.last_shown = time.monotonic()

    def skip(self, step: Step, why: str) -> None:
        self.tallies[step.name] = Tally(skips=[f"{step.name}: {why}"])
        print(f"{step.name:<12} skipped: {why}", flush=True)

    def begin(self, step: Step) -> None:
        stamp = once.stamp(step, CACHE) if step.kind == "once" else None
        if step.kind == "once" and not self.named:
            if stamp and stamp.exists():
                self.skip(step, f"{stamp.read_text()}, and nothing it hangs on has changed; ./run test {step.name} runs it again")
                return
        minutes = step.minutes * times_slower()
        lasted = time.monotonic() - self.start
        if not self.named and is_too_late(step, lasted / 60, minutes):
            self.skip(step, f"this run has lasted for {clock(lasted)}; {later(step)}")
            return
        # A test step that builds its own kernel does so in its own time, and late.
        missing = [name for name in step.kernels if name in self.tallies and not self.tallies[name].passed]
        if missing:
            self.skip(step, f"its kernel is not there: {missing[0]} has not passed")
            return
        seconds = 60.0 * minutes
        is_cut = not self.named and lasted + seconds > 60 * RUN_END
        if is_cut:
            seconds = max(1.0, 60 * RUN_END - lasted)
        print(f"{step.name:<12} {step.command}", flush=True)
        with (LOGS / f"{step.name}.log").open("wb") as log:
            # timeout makes a process group, and hands on the signal that ends it.
            process = subprocess.Popen(["timeout", "--kill-after=10", f"{seconds:.1f}", "bash", "-c", step.command],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.running.append(Running(step, process, seconds, is_cut, stamp))

    def begin_what_may(self) -> None:
        while self.waiting and may_start(self.waiting[0], [one.step for one in self.running], guests=self.guests, gib=self.gib):
            self.begin(self.waiting.pop(0))

    def end(self, one: Running) -> None:
        """Count what a step did, once it has ended."""
        step, status = one.step, one.process.returncode
        # What timeout says, with or without --kill-after. Its clock began a moment before ours.
        overran = status in (124, 137) and one.elapsed > one.seconds - 1
        if overran and one.is_cut:
            tally = read_cut_log(one.log, f"{step.name}: ended after {clock(one.seconds)}, as this run is over; {later(step)}")
        else:
            if overran:
                with one.log.open("a", encoding="utf-8") as log:
                    log.write(f"\nended after its limit of {clock(one.seconds)}\n")
            tally = read_log("check" if step.kind == "check" else "tests", status, one.log)
        self.tallies[step.name] = tally
        self.seconds[step.name] = int(one.elapsed)
        print(f"{step.name:<12} {clock(one.elapsed):>6}  {tally.passed} passed, {len(tally.failures)} failed, "
              f"{len(tally.skips)} skipped", flush=True)
        if tally.failures:
            self.failed_logs.append(one.log)
            printed = tally.printed or {str(one.log): one.log.read_text(encoding="utf-8", errors="replace")}
            for name, text in list(printed.items())[:MOST_FAILURES_SHOWN]:
                print(f"---- {name}, to its end ----", *text.splitlines()[-LINES_OF_A_FAILURE:], sep="\n")
            print(f"---- all of it: {one.log} ----", flush=True)
        elif one.stamp and tally.passed and status == 0:
            one.stamp.parent.mkdir(parents=True, exist_ok=True)
            one.stamp.write_text(f"{tally.passed} passed on {time.strftime('%F %H:%M')}")

    def show(self) -> None:
        """What runs now, in one line: rewritten on a terminal, else printed once a minute."""
        terminal = sys.stdout.isatty()
        if not terminal and time.monotonic() - self.last_shown < 60:
            return
        self.last_shown = time.monotonic()
        line = "   ".join(f"{one.step.name} {clock(one.elapsed)}  {last_line(one.log)[:120 // (2 * len(self.running))]}"
                          for one in self.running)
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", flush=True)

    def all_steps(self) -> None:
        self.begin_what_may()
        while self.running or self.waiting:
            time.sleep(0.3)
            for one in [one for one in self.running if one.process.poll() is not None]:
                self.running.remove(one)
                if sys.stdout.isatty():
                    print("\r\x1b[K", end="")
                self.end(one)
            self.begin_what_may()
            if self.running:
                self.show()

    def interrupt(self) -> None:
        for one in self.running:
            one.process.terminate()

    def report(self) -> bool:
        """The summary; returns whether the run counts as passed."""
        print(f"\n{'step':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>8}")
        for name in self.order:
            tally = self.tallies[name]
            lasted = clock(self.seconds[name]) if name in self.seconds else "-"
            print(f"{name:<12} {tally.passed:>7} {len(tally.failures):>7} {len(tally.skips):>8} {lasted:>8}")
            for failure in tally.failures:
                print(f"    failed: {failure}")
            for skip in tally.skips:
                print(f"    skipped: {skip}")
        if self.seconds:
            times.keep(CACHE / "test-times.json", self.seconds)
        if self.failed_logs:
            print("\nlogs of what failed:", *self.failed_logs)
        passed = sum(tally.passed for tally in self.tallies.values())
        failed = sum(len(tally.failures) for tally in self.tallies.values())
        skipped = sum(len(tally.skips) for tally in self.tallies.values())
        print(f"\nin {clock(time.monotonic() - self.start)}\n{passed} passed, {failed} failed, {skipped} skipped")
        return failed == 0 and passed > 0


def main(arguments: list[str]) -> int:
    quick = "--quick" in arguments
    names = [argument for argument in arguments if argument != "--quick"]
    steps = read_steps(Path("tests/steps").read_text(encoding="utf-8"))
    LOGS.mkdir(parents=True, exist_ok=True)
    run = Run(choose(steps, quick=quick, names=names), named=bool(names))

    def interrupted(*_: object) -> NoReturn:
        run.interrupt()
        print("\ninterrupted")
        sys.exit(130)

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    run.all_steps()
    return 0 if run.report() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
