#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run the kernel tree's own tests on the software NIC, in the guest, and compare with what selftests.toml expects.

    selftests.py DIRECTORY MODULE [PARAMETER=VALUE...] -- [GROUP | SUITE | SUITE:CASE]...

DIRECTORY as selftests.sh leaves it; MODULE is the NIC's. Groups and suites are those of selftests.toml, all that run on
this kernel by default; of SUITE:CASE nothing is expected but that the case passes. Every suite gets a new NIC.
"""

import fnmatch
import os
import re
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

TESTS = "tools/testing/selftests/drivers/net"
KERNEL = os.environ.get("GPURX_LAB", "")
TESTS_OF = os.environ.get("SELFTESTS_OF") or KERNEL
SECOND_TRIES = 4
GUEST = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Suite:
    """One program of the kernel tree, and what is expected of it; see selftests.toml."""

    name: str
    group: str
    program: str
    passes: int
    fails: int = 0
    limit: int = 900
    arguments: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    by_name: bool = False
    once: bool = False
    setup: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def causes(self) -> dict[str, str]:
        """Why cases do not pass, by case or pattern."""
        return {**self.skipped, **self.left_out}


@dataclass(frozen=True)
class Result:
    """What became of one case: verdict is pass, fail, skip or xfail."""

    case: str
    verdict: str
    comment: str = ""


def read_suites(text: str) -> list[Suite]:
    """The suites of selftests.toml, in its order."""
    return [Suite(name, group, **{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
            for group, suites in tomllib.loads(text).items() for name, table in suites.items()]


def parse_results(output: str) -> list[Result]:
    """The results in the output of a suite: 'ok 1 devmem.check_rx', 'not ok 2 hds.ioctl', 'ok 3 x.y # SKIP why'."""
    results = []
    for line in output.splitlines():
        match = re.match(r"(not )?ok \d+ [^.\s]+\.(\S+)(?:\s+#\s*(.*))?$", line)
        if not match:
            continue
        failed, case, comment = match.group(1), match.group(2), match.group(3) or ""
        word = comment.split(" ", 1)[0].lower()
        verdict = "fail" if failed else word if word in ("skip", "xfail") else "pass"
        results.append(Result(case, verdict, comment))
    return results


def differences(suite: Suite, results: list[Result]) -> list[str]:
    """What is not as expected, a sentence each; nothing when all is."""
    found = [f"{result.case} failed" for result in results if result.verdict == "fail"]
    for result in results:
        expected = any(fnmatch.fnmatchcase(result.case, pattern) for pattern in suite.causes())
        if result.verdict in ("skip", "xfail") and not expected:
            found.append(f"{result.case} was skipped: {result.comment}")
        if result.verdict == "pass" and expected:
            found.append(f"{result.case} passed: selftests.toml calls it skipped")
    for verdict, name, expected in (("pass", "passed", suite.passes), ("xfail", "failed as upstream expects", suite.fails)):
        count = sum(result.verdict == verdict for result in results)
        if count != expected:
            found.append(f"{count} cases {name}, {expected} are expected to")
    return found


def sh(command: str) -> None:
    """A shell command of the guest, which must succeed."""
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


def new_nic(nic: list[str]) -> None:
    """A NIC nothing was done to yet. fd78::/64 stands for a network behind dms0, as the tests of containers want one."""
    sh("! grep -q ^devmemsim /proc/modules || rmmod devmemsim; ! ip netns list | grep -qw peer || ip netns del peer")
    subprocess.run([GUEST / "network", *nic], check=True)
    sh("echo 1 >/proc/sys/net/ipv6/conf/dms0/keep_addr_on_down")
    sh("ip netns exec peer sh -c 'echo 1 >/proc/sys/net/ipv6/conf/dms1/keep_addr_on_down'")
    sh("ip -n peer -6 route add fd78::/64 via fd77::1")


def environment(directory: Path) -> dict[str, str]:
    """What the suites take from their environment: which device, where its peer is, and that QEMU emulates the CPU."""
    return {**os.environ, "PATH": f"{directory}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "NO_COLOR": "1", "NETIF": "dms0",
            "LOCAL_V4": "10.77.0.1", "REMOTE_V4": "10.77.0.2", "LOCAL_V6": "fd77::1", "REMOTE_V6": "fd77::2",
            "LOCAL_PREFIX_V6": "fd78::/64", "REMOTE_TYPE": "netns", "REMOTE_ARGS": "peer", "KSFT_MACHINE_SLOW": "yes"}


def run(command: list[str], directory: Path, limit: int) -> tuple[int, str]:
    """The status and the output of a command that runs in its own folder."""
    try:
        done = subprocess.run(command, cwd=Path(command[0]).parent, env=environment(directory), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return 124, f"{output}\nended by the limit of {limit} s\n"
    return done.returncode, done.stdout


def probe(directory: Path) -> str:
    """Bind and unbind once, and say what went wrong: the suites skip everything when this fails, and do not show why."""
    status, output = run([f"{directory}/{TESTS}/hw/ncdevmem", "-f", "dms0"], directory, 60)
    return "" if status == 0 else f"ncdevmem -f dms0: status {status}\n{output}"


def report(suite: Suite, results: list[Result], found: list[str], how: str) -> None:
    """One line of totals, one for each skipped case with the cause, one for each pattern of expected failures."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in ("pass", "fail", "skip", "xfail")}
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    print(f"{'ok' if not found else 'NOT OK':8}{suite.name:28}{words or 'no result'}  ({how})", flush=True)
    for pattern, cause in suite.causes().items():
        cases = [result for result in results if fnmatch.fnmatchcase(result.case, pattern)]
        for result in cases:
            if result.verdict == "skip":
                print(f"SKIP {suite.name}.{result.case}: {cause}", flush=True)
        failures = sum(result.verdict == "xfail" for result in cases)
        if failures:
            print(f"        {pattern}: {failures} fail as expected: {cause}", flush=True)


def run_cases(suite: Suite, directory: Path) -> tuple[int, str, list[Result]]:
    """The status, the output and the results of a suite; the cases that are left out are skipped."""
    program = f"{directory}/{TESTS}/{suite.program}"
    left_out: list[Result] = []
    for pattern in suite.left_out:
        _, names = run([program, "-l", "-t", pattern], directory, 60)
        left_out += [Result(name, "skip") for name in names.split() if fnmatch.fnmatchcase(name, pattern)]
    without = [word for pattern in suite.left_out for word in ("-T", pattern)]
    status, output = run([program, *suite.arguments, *without], directory, suite.limit * (4 if KERNEL in ("debug", "kcsan") else 1))
    return status, output, parse_results(output) + left_out


def run_again(suite: Suite, results: list[Result], directory: Path, nic: list[str]) -> list[Result]:
    """The results, with those of cases that failed replaced by the ones of a second try, alone and with a new NIC.

    Upstream's tests wait for seconds of a real machine's time; an emulated one now and then needs more. Those of the series
    here do not, and a race that they find may not come up again: what fails there has failed.
    """
    failed = [result.case for result in results if result.verdict == "fail"]
    if suite.once or not 0 < len(failed) <= SECOND_TRIES:
        return results
    prepare(suite, directory, nic)
    words = tuple(word for case in failed for word in ("-t", case))
    _, _, again = run_cases(replace(suite, arguments=words, left_out={}), directory)
    second = {result.case: result for result in again}
    for case in failed:
        if case in second and second[case].verdict == "pass":
            print(f"        {suite.name}.{case} passed on a second try", flush=True)
    return [second.get(result.case, result) if result.verdict == "fail" else result for result in results]


def prepare(suite: Suite, directory: Path, nic: list[str]) -> None:
    """A new NIC as the suite wants it."""
    new_nic(nic)
    for command in suite.setup:
        sh(f"PATH={directory}/bin:$PATH; {command}")


def run_suite(suite: Suite, directory: Path, nic: list[str]) -> tuple[list[Result], list[str]]:
    """Run one suite; returns its results, and what is not as expected."""
    start = time.monotonic()
    prepare(suite, directory, nic)
    status, output, results = run_cases(suite, directory)
    results = run_again(suite, results, directory, nic)
    found = differences(suite, results)
    report(suite, results, found, f"status {status}, {time.monotonic() - start:.0f} s")
    print("".join(f"{line}\n" for line in re.findall(r"^# .*(?:seed|steps|attacks|connections|sockets were|rebinds).*$", output, re.MULTILINE)), end="", flush=True)
    if found:
        print(f"{output}\n" + "".join(f"FAIL {suite.name}: {line}\n" for line in found), flush=True)
    return results, found


def choose(suites: list[Suite], kernel: str, names: list[str]) -> list[Suite]:
    """The suites that were asked for, in the order of selftests.toml; SUITE:CASE becomes a suite of that case."""
    suites = [suite for suite in suites if not suite.kernels or kernel in suite.kernels]
    if not names:
        return [suite for suite in suites if not suite.by_name]
    chosen = [suite for suite in suites if suite.name in names or (suite.group in names and not suite.by_name)]
    for name in names:
        suite_name, _, case = name.partition(":")
        there = [suite for suite in suites if suite_name in (suite.name, suite.group)]
        if not there:
            raise SystemExit(f"no such suite on this kernel: {suite_name} "
                             f"(there are: {' '.join(suite.name for suite in suites)})")
        if case:
            chosen.append(replace(there[0], name=name, passes=1, fails=0, arguments=("-t", case), skipped={}, left_out={}))
    return chosen


def main(arguments: list[str]) -> int:
    """Run what was asked for and print the totals."""
    if "--" not in arguments or arguments.index("--") < 2:
        print(__doc__, file=sys.stderr)
        return 2
    separator = arguments.index("--")
    directory, nic, names = Path(arguments[0]), arguments[1:separator], arguments[separator + 1:]
    chosen = choose(read_suites((GUEST / "selftests.toml").read_text()), TESTS_OF, names)
    new_nic(nic)
    trouble = probe(directory)
    if trouble:
        print(f"FAIL {trouble}\n0 passed, 1 failed, 0 skipped")
        return 1
    results: list[Result] = []
    failed = 0
    for suite in chosen:
        of_suite, found = run_suite(suite, directory, nic)
        results += of_suite
        failed += len(found)
    passed = sum(result.verdict == "pass" for result in results)
    skipped = sum(result.verdict == "skip" for result in results)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
