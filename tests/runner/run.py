#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs steps of tests/steps, each with its output in build/test-logs/STEP.log, and sums up. tests/run.sh starts it.

    run.py [quick|default|full|STEP...]     a tier, or steps by name
    run.py changed [--minutes N] [--again]  steps of full whose inputs differ from those of their last green run; --again:
                                            one more of the others, by chance
    run.py flaky N [STEP...]                N runs of what is built, every second one beside a busy loop on each core
    run.py status | record                  what is green, and what is not; keep it in tests/record

The exit status is 0 only if something ran and nothing failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from record import Records, state_of
from steps import Step, Table, may_start, of_tiers, read_table
from tally import Tally, read_log

LOGS = Path("build/test-logs")
FLAKY = Path("build/flaky.json")
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
        lines = file.read().decode(errors="replace").split("\n")
    line = next((line for line in reversed(lines) if line.strip()), "")
    return "".join(character for character in line if character.isprintable())


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
        try:
            os.killpg(self.process.pid, what)
        except ProcessLookupError:
            pass

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

    def __init__(self, steps: list[Step], records: Records, *, environment: dict[str, str] | None = None,
                 minutes: float | None = None) -> None:
        self.start = time.monotonic()
        self.records = records
        self.environment = os.environ | (environment or {})
        self.minutes = minutes
        self.waiting = list(steps)
        self.running: list[Running] = []
        self.tallies: dict[str, Tally] = {}
        self.seconds: dict[str, float] = {}
        self.order = [step.name for step in steps]
        self.cores = os.cpu_count() or 1
        self.gib = available_gib()
        self.last_shown = time.monotonic()

    def skip(self, step: Step, why: str) -> None:
        self.tallies[step.name] = Tally(skips=[f"{step.name}: {why}"])
        print(f"{step.name:<18} skipped: {why}", flush=True)

    def begin(self, step: Step) -> None:
        # A step that boots a kernel of ours builds it in its own time where it is not there.
        missing = [name for name in step.kernels if name in self.tallies and not self.tallies[name].passed]
        if missing:
            self.skip(step, f"its kernel is not there: {missing[0]} has not passed")
            return
        print(f"{step.name:<18} {step.command}", flush=True)
        with (LOGS / f"{step.name}.log").open("wb") as log:
            process = subprocess.Popen(["bash", "-c", step.command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                       env=self.environment, start_new_session=True)  # fmt: skip
        self.running.append(Running(step, process, state_of(step)))

    def begin_what_may(self) -> None:
        for step in list(self.waiting):
            left = None if self.minutes is None else 60 * self.minutes - (time.monotonic() - self.start)
            if left is not None and self.records.seconds(step) > left:
                self.waiting.remove(step)
                self.skip(step, f"it takes about {clock(self.records.seconds(step))}, and {clock(max(0, left))} are left; "
                                f"./run test {step.name} runs it")  # fmt: skip
            elif may_start(step, [one.step for one in self.running], cores=self.cores, gib=self.gib):
                self.waiting.remove(step)
                self.begin(step)
            else:
                return

    def end(self, one: Running) -> None:
        """Counts what a step did, once it has ended."""
        step, elapsed = one.step, one.elapsed
        tally = read_log(step.kind, one.process.returncode, one.log)
        self.tallies[step.name] = tally
        self.seconds[step.name] = elapsed
        last = self.records.last(step)
        slower = f"  (last time {clock(last.seconds)})" if last and elapsed > max(last.seconds * 4 / 3, last.seconds + 15) else ""
        print(f"{step.name:<18} {clock(elapsed):>6}  {tally.passed} passed, {len(tally.failures)} failed, "
              f"{len(tally.skips)} skipped{slower}", flush=True)  # fmt: skip
        if tally.failures:
            printed = tally.printed or {str(one.log): one.log.read_text(encoding="utf-8", errors="replace")}
            for name, text in list(printed.items())[:MOST_FAILURES_SHOWN]:
                print(f"---- {name}, to its end ----", *text.splitlines()[-LINES_OF_A_FAILURE:], sep="\n")
            print(f"---- all of it: {one.log} ----", flush=True)
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

    def all_steps(self) -> None:
        self.begin_what_may()
        while self.running:
            time.sleep(0.2)
            for one in [one for one in self.running if one.process.poll() is not None]:
                self.running.remove(one)
                if sys.stdout.isatty():
                    print("\r\x1b[K", end="")
                self.end(one)
            for one in self.running:
                if time.monotonic() - one.looked > SECONDS_BETWEEN_LOOKS:
                    one.end_if_it_hangs()
            self.begin_what_may()
            if self.running:
                self.show()

    def interrupt(self) -> None:
        for one in self.running:
            one.stop(signal.SIGTERM)

    def report(self) -> bool:
        """Prints the summary; returns whether the run counts as passed."""
        print(f"\n{'step':<18} {'passed':>7} {'failed':>7} {'skipped':>8} {'time':>8}")
        for name in self.order:
            tally = self.tallies[name]
            lasted = clock(self.seconds[name]) if name in self.seconds else "-"
            print(f"{name:<18} {tally.passed:>7} {len(tally.failures):>7} {len(tally.skips):>8} {lasted:>8}")
            for failure in tally.failures:
                print(f"    failed: {failure}")
            for skip in tally.skips:
                print(f"    skipped: {skip}")
        failed_logs = [str(LOGS / f"{name}.log") for name in self.order if name in self.seconds and self.tallies[name].failures]
        if failed_logs:
            print("\nlogs of what failed:", *failed_logs)
        passed = sum(tally.passed for tally in self.tallies.values())
        failed = sum(len(tally.failures) for tally in self.tallies.values())
        skipped = sum(len(tally.skips) for tally in self.tallies.values())
        print(f"\nin {clock(time.monotonic() - self.start)}\n{passed} passed, {failed} failed, {skipped} skipped")
        return failed == 0 and passed > 0


def carry_out(run: Run) -> bool:
    """Runs it to its end, or to that which an interrupt makes of it."""

    def interrupted(*_: object) -> NoReturn:
        run.interrupt()
        print("\ninterrupted")
        sys.exit(130)

    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    LOGS.mkdir(parents=True, exist_ok=True)
    run.all_steps()
    return run.report()


def units(table: Table) -> list[Step]:
    """The unit tests of each part: of the step `test` what `quick` runs by itself."""
    return [Step(name[1:], "style", "tests", 10, "all", (), pathspecs, f"tests/check.py test {name[1:]}")
            for name, pathspecs in table.groups.items() if name.startswith("@unit_")]  # fmt: skip


def quick(table: Table, records: Records) -> bool:
    """The steps of style, and the unit tests whose inputs differ from those of their last green run."""
    return carry_out(Run(of_tiers(table.steps, "style") + [step for step in units(table) if not records.is_green(step)], records))


def of_tier_or_by_name(table: Table, records: Records, words: list[str]) -> bool:
    chosen = of_tiers(table.steps, words[0]) if words[0] in ("default", "full") else [step for step in table.steps if step.name in words]
    states = {step: state_of(step) for step in units(table)}
    run = Run(chosen, records)
    passed = carry_out(run)
    if "test" in run.tallies and run.tallies["test"].green:
        for step, state in states.items():
            records.keep(step, 0, 1, state)
    if words[0] == "default":
        print("\n./run test changed runs what else has changed: sanitizers, fuzzers, all of the lab. ./run test status lists it.")
    return passed


def changed(table: Table, records: Records, arguments: list[str]) -> bool:
    minutes = float(arguments[arguments.index("--minutes") + 1]) if "--minutes" in arguments else None
    full = [step for step in table.steps if step.tier == "full"]
    chosen = [step for step in full if not records.is_green(step)]
    if "--again" in arguments and (green := [step for step in full if step not in chosen and records.seconds(step) < 300]):
        again = random.choice(green)
        print(f"{again.name} is green, and runs again by chance")
        chosen.insert(0, again)
    if not chosen:
        print("nothing has changed since each step was green")
        return True
    return carry_out(Run(chosen, records, minutes=minutes))


def flaky(table: Table, records: Records, arguments: list[str]) -> bool:
    """Runs what is built again and again; goes on where an earlier call of the same was interrupted."""
    times, names = int(arguments[0]), arguments[1:]
    steps = [step for step in table.steps if (step.name in names if names else step.tier == "default")]
    state = [[step.name, state_of(step)] for step in steps]
    before = json.loads(FLAKY.read_text(encoding="utf-8")) if FLAKY.exists() else {}
    runs: list[bool] = before["runs"] if before.get("state") == state and len(before["runs"]) < times else []
    while len(runs) < times:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)] if len(runs) % 2 else []
        print(f"\nrun {len(runs) + 1} of {times}{', beside a busy loop on each core' if busy else ''}")
        try:
            runs.append(carry_out(Run(steps, records, environment={"GPURX_TEST_AS_BUILT": "1"})))
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


def main(arguments: list[str]) -> bool:
    table = read_table(Path("tests/steps").read_text(encoding="utf-8"))
    records = Records()
    word, *rest = arguments or ["default"]
    match word:
        case "quick":
            return quick(table, records)
        case "changed":
            return changed(table, records, rest)
        case "flaky":
            return flaky(table, records, rest)
        case "status":
            return status(table, records)
        case "record":
            records.commit(table.steps)
            return True
        case _:
            return of_tier_or_by_name(table, records, [word, *rest])


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
