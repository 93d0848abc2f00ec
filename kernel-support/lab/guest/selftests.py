#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run the kernel tree's own tests on the software NIC, in the guest, and judge them.

    selftests.py DIRECTORY [SUITE...]       DIRECTORY as selftests.sh leaves it
                                            suites: ncdevmem devmem iou-zcrx hds devmem_tokens, and
                                            devmem_tokens_races: those of its cases where threads meet

A required case must pass: one that is skipped or does not appear counts as failed, because these suites call a run
in which everything was skipped a success.
"""

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

NET = "tools/testing/selftests/drivers/net"
KERNEL = os.environ.get("GPURX_LAB")
HAS_SERIES = KERNEL in ("branch", "debug")
SUITE_LIMIT_S = 3600 if KERNEL == "debug" else 900


@dataclass(frozen=True)
class Suite:
    """One program of the kernel tree: which of its cases must pass, and which may."""

    name: str
    program: str
    required: tuple[str, ...]
    bonus: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What became of one case: verdict is pass, fail, skip or missing."""

    case: str
    verdict: str
    comment: str = ""


# The cases of devmem_tokens.py that run with both kinds of tokens, and with one alone
TOKENS_BOTH = ("two_bindings", "release_twice", "multiset", "close_then_unbind", "unbind_before_recv",
               "unbind_between_recv", "unbind_after_recv", "close_with_data_queued", "idle_socket", "killed",
               "many_frags", "many_ranges", "peek", "trunc", "small_control", "large_pages", "concurrent",
               "guessed_tokens")
TOKENS_ARRAY = ("default_is_array", "bad_value", "modes_side_by_side", "modes_one_socket", "consecutive_tokens",
                "never_given_out", "range_edges", "more_releases", "other_socket", "leak_at_close",
                "seventeen_bindings", "count_cap")
TOKENS_XARRAY = ("autorelease", "other_socket_xarray")

SUITES = (
    Suite("devmem", f"{NET}/hw/devmem.py",
          ("check_rx", "check_rx_hds", "check_rx_large_niov"), ("check_tx", "check_tx_chunks")),
    Suite("iou-zcrx", f"{NET}/hw/iou-zcrx.py",
          ("test_zcrx.single", "test_zcrx.rss", "test_zcrx_oneshot.single", "test_zcrx_oneshot.rss",
           "test_zcrx_large_chunks")),
    Suite("hds", f"{NET}/hds.py",
          ("get_hds", "get_hds_thresh", "set_hds_disable", "set_hds_enable", "set_hds_thresh_zero",
           "set_hds_thresh_random", "set_hds_thresh_max", "set_hds_thresh_gt", "set_xdp", "enabled_set_xdp",
           "ioctl", "ioctl_set_xdp", "ioctl_enabled_set_xdp")),
)
# Last, because its last case removes the device
TOKENS = Suite("devmem_tokens", f"{NET}/hw/devmem_tokens.py",
               (*(f"array.{case}" for case in TOKENS_ARRAY + TOKENS_BOTH),
                *(f"xarray.{case}" for case in TOKENS_XARRAY + TOKENS_BOTH),
                "stress", "netns_deleted.array", "netns_deleted.xarray", "unregister"))
# What a kernel that is slow for its checks has time for in every test run
RACES = ("array.killed", "array.concurrent", "xarray.concurrent", "xarray.guessed_tokens", "stress", "unregister")
TOKENS_RACES = Suite("devmem_tokens_races", TOKENS.program, RACES,
                     arguments=tuple(word for case in RACES for word in ("-t", case)))


def suites(names: set[str]) -> tuple[Suite, ...]:
    """What of these runs on this kernel; without names, all but the parts of others."""
    there = (*SUITES, TOKENS) if HAS_SERIES else SUITES
    if names and HAS_SERIES:
        there = (*there, TOKENS_RACES)
    return tuple(suite for suite in there if not names or suite.name in names)


def parse_results(output: str) -> list[Result]:
    """The results in the output of a suite: 'ok 1 devmem.check_rx', 'not ok 2 hds.ioctl', 'ok 3 x.y # SKIP why'."""
    results = []
    for line in output.splitlines():
        match = re.match(r"(not )?ok \d+ [^.\s]+\.(\S+)(?:\s+#\s*(.*))?$", line)
        if not match:
            continue
        failed, case, comment = match.group(1), match.group(2), match.group(3) or ""
        if failed:
            verdict = "fail"
        elif comment.upper().startswith(("SKIP", "XFAIL")):
            verdict = "skip"
        else:
            verdict = "pass"
        results.append(Result(case, verdict, comment))
    return results


def judge(suite: Suite, results: list[Result]) -> tuple[list[Result], list[Result]]:
    """The results of the required and of the bonus cases, in the suite's order; a case that is not there is missing."""
    by_case = {result.case: result for result in results}

    def pick(cases: tuple[str, ...]) -> list[Result]:
        return [by_case.get(case, Result(case, "missing")) for case in cases]

    return pick(suite.required), pick(suite.bonus)


def environment(directory: Path) -> dict[str, str]:
    """What the suites take from their environment: which device, and where its peer is."""
    path = f"{directory}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "NETIF": "dms0",
            "LOCAL_V4": "10.77.0.1", "REMOTE_V4": "10.77.0.2", "LOCAL_V6": "fd77::1", "REMOTE_V6": "fd77::2",
            "REMOTE_TYPE": "netns", "REMOTE_ARGS": "peer", "DEVMEM_TOKENS_REMOVE": "rmmod devmemsim"}


def run(command: list[str], directory: Path) -> tuple[int, str]:
    """The status and the output of a command that runs in its own folder."""
    try:
        done = subprocess.run(command, cwd=Path(command[0]).parent, env=environment(directory), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=SUITE_LIMIT_S, check=False, errors="replace")
    except subprocess.TimeoutExpired as error:
        output = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        return 124, f"{output}\nended by the limit of {SUITE_LIMIT_S} s\n"
    return done.returncode, done.stdout


def show(suite: str, result: Result, kind: str = "") -> None:
    """One line of the report."""
    comment = f"  ({result.comment})" if result.comment else ""
    print(f"{result.verdict:8}{suite}.{result.case}{kind}{comment}", flush=True)


def run_probe(directory: Path) -> bool:
    """Bind and unbind once: the suites skip everything when this fails, and do not show why."""
    status, output = run([f"{directory}/{NET}/hw/ncdevmem", "-f", "dms0"], directory)
    show("ncdevmem", Result("probe", "pass" if status == 0 else "fail", "" if status == 0 else f"status {status}"))
    if status != 0:
        print(output)
    return status == 0


def run_suite(suite: Suite, directory: Path) -> tuple[int, int]:
    """Run one suite; returns how many required cases passed and how many did not."""
    start = time.monotonic()
    status, output = run([f"{directory}/{suite.program}", *suite.arguments], directory)
    required, bonus = judge(suite, parse_results(output))
    for result in required:
        show(suite.name, result)
    for result in bonus:
        show(suite.name, result, " [bonus]")
    passed = sum(result.verdict == "pass" for result in required)
    failed = len(required) - passed
    print(f"        {suite.name}: status {status}, {time.monotonic() - start:.0f} s", flush=True)
    if failed or any(result.verdict != "pass" for result in bonus):
        print(output, flush=True)
    elif "stress" in suite.required:
        print("\n".join(re.findall(r"^# .*(?:seed|steps).*$", output, re.MULTILINE)), flush=True)
    return passed, failed


def main(arguments: list[str]) -> int:
    """Run what was asked for and print the total."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    directory, names = Path(arguments[0]), set(arguments[1:])
    chosen = suites(names)
    unknown = names - {"ncdevmem"} - {suite.name for suite in chosen}
    if unknown:
        print(f"no such suite on this kernel: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    passed = failed = 0
    if not names or "ncdevmem" in names:
        if run_probe(directory):
            passed += 1
        else:
            failed += 1
    for suite in chosen:
        suite_passed, suite_failed = run_suite(suite, directory)
        passed += suite_passed
        failed += suite_failed
    print(f"{passed} passed, {failed} failed")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
