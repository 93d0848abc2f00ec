# SPDX-License-Identifier: GPL-2.0-only
"""Runs the tests of a script and reports in TAP."""

import sys
import time
import traceback
from typing import Any, Callable, Optional


class Skip(Exception):
    """Cannot be tested here; says why."""


def main(scope: dict[str, Any], before: Callable[[], Any],
         after: Callable[[], Any]) -> None:
    """Run test_* of a module, or those named on the command line."""
    wanted = sys.argv[1:]
    tests = [(name[5:], test) for name, test in scope.items()
             if name.startswith("test_")]
    if wanted:
        tests = [(name, test) for name, test in tests if name in wanted]
    print(f"1..{len(tests)}", flush=True)
    before()
    failed = 0
    for number, (name, test) in enumerate(tests, 1):
        start = time.monotonic()
        problem = run(test) or run(after)
        note = f"{time.monotonic() - start:.1f} s"
        if problem and isinstance(problem[0], Skip):
            print(f"ok {number} {name} # SKIP {problem[0]}", flush=True)
            continue
        if problem:
            failed += 1
            for line in problem[1].splitlines():
                print(f"# {line}")
        print(f"{'not ok' if problem else 'ok'} {number} {name} # {note}",
              flush=True)
        if problem:
            run(after)
    sys.exit(bool(failed) or not tests)


def run(function: Callable[[], Any]) -> Optional[tuple[Exception, str]]:
    try:
        function()
    except Exception as error:  # pylint: disable=broad-except
        return error, traceback.format_exc()
    return None


def equal(got: Any, want: Any, what: str = "") -> None:
    if got != want:
        raise AssertionError(f"{what or 'value'}: got {got!r}, want {want!r}")


def eventually(condition: Callable[[], Any], what: Callable[[], str]) -> None:
    """Wait until it is true. The limit counts looks: it grows with how slow the
    machine is, and only what hangs reaches it."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(what())


def once_below(seconds: float, measure: Callable[[], float], what: str) -> None:
    """Repeat until it is below that. A slow machine manages that now and then,
    what waits for that long never does."""
    taken = []
    for _ in range(30):
        taken.append(measure())
        if taken[-1] < seconds:
            return
    raise AssertionError(f"{what}: at least {min(taken)} s")


def check(condition: Any, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def raises(errno: Optional[int], text: str, function: Callable[..., Any],
           *args: Any, **kwargs: Any) -> None:
    """The call fails with this errno, and with this in its message."""
    try:
        function(*args, **kwargs)
    except OSError as error:
        equal(error.errno, errno, f"errno of {error}")
        check(text in str(error), f"{text!r} is not in {str(error)!r}")
        return
    raise AssertionError(f"no error, want {text!r}")
