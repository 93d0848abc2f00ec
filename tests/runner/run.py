#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs what is missing, builds, and runs the steps of tests/steps.

  quick                            style, and the unit tests of what changed since they were green
  (nothing), default               style, every test of one build, the Python package, and one boot of the lab
  changed [--minutes N] [--again]  all other steps whose inputs differ from those of their last green run; within N minutes;
                                   and one of the rest by chance
  full                             all steps; hours
  STEP...                          these steps
  flaky N [STEP...]                N runs of what is built, every second one beside a busy loop on each core
  status                           each step: whether it is green for the tree as it is, when it was, and how long it took
  record                           keep what was green here in tests/record

The output of a step is in build/test-logs/STEP.log. The exit status is 0 only if something ran and nothing failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from record import Records, state_of
from steps import Step, Table, may_start, of_tiers, read_table
from tally import Tally, first_fault, read_log

LOGS = Path("build/test-logs")
FLAKY = Path("build/flaky.json")
ALONE = ("quick", "default", "changed", "full", "status", "record")
LINES_OF_A_FAILURE = 40
MOST_FAILURES_SHOWN = 5
SECONDS_BETWEEN_LINES = 30
SECONDS_BETWEEN_LOOKS = 20


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def times_slower() -> float:
    """How many times slower than most this machine is now, by a loop that takes 8 ms on a core of 2022 with nothing else to
    do. At least 1."""
    start = time.perf_counter()
    for _ in range(200_000):
        pass
    return max(1.0, (time.perf_counter() - start) / 0.008)


def available_gib() -> float:
    """Memory that guests may take."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) / (1 << 20)


def last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 400))
        text = file.read().decode(errors="replace").strip()
    return "".join(filter(str.isprintable, text.rsplit("\n", 1)[-1]))


@dataclass
class Running:
    step: Step
    process: subprocess.Popen[bytes]
    state: str
    start: float = field(default_factory=time.monotonic)
    looked: float = field(default_factory=time.monotonic)
    used: float = 0.0  # seconds, on a machine that is not slower than most

    @property
    def log(self) -> Path:
        return LOGS / f"{self.step.name}.log"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def stop(self, what: signal.Signals) -> None:
        # The step has a process group of its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, what)

    def end_if_it_hangs(self) -> None:
        """Ends a step after its limit. Its clock runs as slowly as the machine."""
        now = time.monotonic()
        self.used += (now - self.looked) / times_slower()
        self.looked = now
        if self.used > 60 * self.step.minutes:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"\nended after its limit of {self.step.minutes} minutes\n")
            self.stop(signal.SIGKILL)


class Run:
    """One run of the steps that were chosen."""

    def __init__(self, steps: list[Step], records: Records, *, minutes: float = math.inf) -> None:
        self.start = self.last_shown = time.monotonic()
        self.steps = steps
        self.records = records
        self.minutes = minutes
        self.waiting = list(steps)
        self.running: list[Running] = []
        self.tallies: dict[str, Tally] = {}
        self.cores = os.cpu_count() or 1
        self.gib = available_gib()

    def begin(self, step: Step) -> None:
        print(f"{step.name:<18} {step.command}", flush=True)
        with (LOGS / f"{step.name}.log").open("wb") as log:
            process = subprocess.Popen(["bash", "-c", step.command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                       start_new_session=True)  # fmt: skip
        self.running.append(Running(step, process, state_of(step)))

    def why_not(self, step: Step) -> str:
        """Why it cannot run at all; nothing if it can."""
        left = 60 * self.minutes - (time.monotonic() - self.start)
        if (takes := self.records.seconds(step)) > left:
            return f"it takes about {clock(takes)}, and {clock(max(0, left))} are left; ./run test {step.name} runs it"
        # A step that boots a kernel of ours builds it in its own time where no step of this run is to.
        missing = [name for name in step.kernels if name in self.tallies and not self.tallies[name].passed]
        return f"its kernel is missing: {missing[0]} has not passed" if missing else ""

    def begin_what_may(self) -> None:
        for step in list(self.waiting):
            why = self.why_not(step)
            if why:
                self.tallies[step.name] = Tally(skips=[f"{step.name}: {why}"])
                print(f"{step.name:<18} skipped: {why}", flush=True)
            elif may_start(step, [one.step for one in self.running], cores=self.cores, gib=self.gib):
                self.begin(step)
            else:
                return
            self.waiting.remove(step)

    def end(self, one: Running) -> None:
        """Counts what a step did, once it has ended."""
        step, elapsed = one.step, one.elapsed
        tally = read_log(step.kind, one.process.returncode, one.log)
        tally.seconds = elapsed
        self.tallies[step.name] = tally
        last = self.records.last(step)
        slower = f"  (last time {clock(last.seconds)})" if last and elapsed > max(last.seconds * 4 / 3, last.seconds + 15) else ""
        print(f"{step.name:<18} {clock(elapsed):>6}  {tally}{slower}", flush=True)
        if tally.failures:
            printed = tally.printed or {str(one.log): one.log.read_text(encoding="utf-8", errors="replace")}
            for name, text in list(printed.items())[:MOST_FAILURES_SHOWN]:
                print(f"---- {name}, to its end ----", *text.splitlines()[-LINES_OF_A_FAILURE:], sep="\n")
            print(f"---- the whole log: {one.log} ----", flush=True)
        elif tally.green and one.process.returncode == 0:
            self.records.keep(step, elapsed, tally.passed, one.state)

    def show(self) -> None:
        """Where the steps are: on a terminal in one line that changes, elsewhere now and then."""
        said = "; ".join(f"{one.step.name} {clock(one.elapsed)}: {last_line(one.log)[:100]}" for one in self.running)
        if sys.stdout.isatty():
            print(f"\r\x1b[K{said[: os.get_terminal_size().columns - 1]}", end="", flush=True)
        elif time.monotonic() - self.last_shown > SECONDS_BETWEEN_LINES:
            self.last_shown = time.monotonic()
            print(said, flush=True)

    def look(self) -> None:
        for one in list(self.running):
            if one.process.poll() is not None:
                self.running.remove(one)
                print("\r\x1b[K" if sys.stdout.isatty() else "", end="")
                self.end(one)
            elif time.monotonic() - one.looked > SECONDS_BETWEEN_LOOKS:
                one.end_if_it_hangs()

    def carry_out(self) -> bool:
        """Runs the steps, and ends them if it is interrupted; returns whether the run counts as passed."""
        LOGS.mkdir(parents=True, exist_ok=True)
        try:
            self.begin_what_may()
            while self.running:
                self.show()
                time.sleep(0.2)
                self.look()
                self.begin_what_may()
        finally:
            for one in self.running:
                one.stop(signal.SIGTERM)
        return self.report()

    def report(self) -> bool:
        print(f"\n{'step':<18} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>8}")
        total = Tally()
        for name in (step.name for step in self.steps):
            tally = self.tallies[name]
            total.add(tally)
            lasted = "-" if tally.seconds is None else clock(tally.seconds)
            print(f"{name:<18} {tally.passed:>7} {len(tally.failures):>7} {len(tally.skips):>8} {lasted:>8}")
            for failure in tally.failures:
                print(f"    failed: {failure}")
                if fault := first_fault(tally.printed.get(failure, "")):
                    print(f"      {fault}")
            print("".join(f"    skipped: {skip}\n" for skip in tally.skips), end="")
            if tally.failures:
                print(f"    log: {LOGS}/{name}.log")
        print(f"\nin {clock(time.monotonic() - self.start)}\n{total}")
        return total.green


def units(table: Table) -> list[Step]:
    """The unit tests of each part: of the step `test` what `quick` runs by itself."""
    return [Step(name[1:], "style", "tests", 10, "all", (), pathspecs, f"tests/check.py test {name[1:]}")
            for name, pathspecs in table.groups.items() if name.startswith("@unit_")]  # fmt: skip


def choose(table: Table, records: Records, options: argparse.Namespace) -> list[Step]:
    word = options.words[0]
    match word:
        case "quick":
            return of_tiers(table.steps, "style") + [step for step in units(table) if not records.is_green(step)]
        case "default" | "full":
            return of_tiers(table.steps, word)
        case "changed":
            full = [step for step in table.steps if step.tier == "full"]
            chosen = [step for step in full if not records.is_green(step)]
            others = [step for step in full if step not in chosen and records.seconds(step) < 300]
            if options.again and others:
                chosen.insert(0, random.choice(others))
                print(f"{chosen[0].name} is green, and runs again as a random check")
            return chosen
        case _:
            return [step for step in table.steps if step.name in options.words]


def run_chosen(table: Table, records: Records, options: argparse.Namespace) -> bool:
    steps = choose(table, records, options)
    if not steps:
        print("nothing has changed since each step was green")
        return True
    states = [(step, state_of(step)) for step in units(table)]
    run = Run(steps, records, minutes=options.minutes)
    passed = run.carry_out()
    if run.tallies.get("test", Tally()).green:
        for step, state in states:
            records.keep(step, 0, 1, state)
    if options.words[0] == "default":
        print("\n./run test changed runs the other changed steps: sanitizers, fuzzers, the lab. ./run test status lists them.")
    return passed


def flaky(table: Table, records: Records, times: int, names: list[str]) -> bool:
    """Goes on where an earlier call of the same was interrupted."""
    os.environ["GPURX_TEST_AS_BUILT"] = "1"
    steps = [step for step in table.steps if (step.name in names if names else step.tier == "default")]
    state = [[step.name, state_of(step)] for step in steps]
    before = json.loads(FLAKY.read_text(encoding="utf-8")) if FLAKY.exists() else {}
    runs: list[bool] = before["runs"] if before.get("state") == state and len(before["runs"]) < times else []
    while len(runs) < times:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)] if len(runs) % 2 else []
        print(f"\nrun {len(runs) + 1} of {times}{', beside a busy loop on each core' if busy else ''}")
        try:
            runs.append(Run(steps, records).carry_out())
        finally:
            for one in busy:
                one.kill()
        FLAKY.write_text(json.dumps({"state": state, "runs": runs}), encoding="utf-8")
    print(f"\n{len(runs)} runs, {runs.count(False)} with a failure")
    return all(runs)


def status(table: Table, records: Records) -> bool:
    """Prints each step with its last green run; returns whether all are green but those that run by name only."""
    words = []
    for step in table.steps:
        last = records.last(step)
        words.append("green" if records.is_green(step) else "named" if step.tier == "named" else "open")
        why = "" if words[-1] == "green" else "changed since" if last else "never run"
        print(f"{words[-1]:<6} {step.name:<18} {last.date if last else '-':<11} {clock(last.seconds) if last else '-':>6} {why}".rstrip())
    return "open" not in words


def read_arguments(arguments: list[str], names: set[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run test", usage="./run test [TIER|STEP...]", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("words", nargs="*", default=["default"], help=argparse.SUPPRESS)
    parser.add_argument("--minutes", type=float, default=math.inf, help=argparse.SUPPRESS)
    parser.add_argument("--again", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    word, *rest = options.words
    if word == "flaky" and not (rest and rest.pop(0).isdecimal()):
        parser.error("flaky: give the number of runs")
    if word != "changed" and {"--minutes", "--again"} & {*arguments}:
        parser.error(f"{word} has no options")
    unknown = set(rest) if word in ALONE else set(rest if word == "flaky" else options.words) - names
    if unknown:
        parser.error(f"no step '{' '.join(unknown)}'; there are: {' '.join(sorted(names))}")
    return options


def prepare(word: str) -> None:
    """Installs packages, and fetches the rest beside the compiler: a step that comes to need a part of it waits for it, or
    fetches it and says why that fails."""
    groups = ["build", "tests", "lint"]
    if word not in ("quick", "default"):
        groups += ["python", "docs", "plot", "browser", "module", "kernel", "lab", "selftests", "trace", "systemd"]
    # Every preset finds the toolkit again by itself.
    for command, output in ((["kernel-support/lab/packages.sh", *groups], None), (["cmake/cuda-toolkit.sh"], subprocess.DEVNULL)):
        if subprocess.run(command, stdout=output, check=False).returncode != 0:
            sys.exit(1)
    if word != "quick":
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / "fetch.log").open("wb") as log:
            subprocess.Popen(["tests/fetch.sh"], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def main(arguments: list[str]) -> bool:
    table, records = read_table(Path("tests/steps").read_text(encoding="utf-8")), Records()
    options = read_arguments(arguments, {step.name for step in table.steps})
    word, *rest = options.words
    if word == "status":
        return status(table, records)
    if word == "record":
        records.commit(table.steps)
        return True
    prepare(word)
    return flaky(table, records, int(rest[0]), rest[1:]) if word == "flaky" else run_chosen(table, records, options)


if __name__ == "__main__":
    # What starts this in the background may have it ignore Ctrl-C.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.default_int_handler)
    try:
        sys.exit(0 if main(sys.argv[1:]) else 1)
    except KeyboardInterrupt:
        print("\ninterrupted")
        sys.exit(130)
