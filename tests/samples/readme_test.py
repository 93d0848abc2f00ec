#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of samples/README.md, as they are printed:  readme_test.py BUILD_DIRECTORY | --lab | --ml

With a build directory, those that run anywhere, with its programs in the place of build/release; with --lab, the build
and those that need the lab; with --ml, those that need torch, vLLM and Ray. On this machine they have ports of their
own.
"""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
LIMIT = 300  # seconds for a block; the build may have to compile, and vLLM's engine takes minutes to start on a slow machine
# What is not everywhere: these have a block run by --ml.
ML = re.compile(r"^python3 .*-m torch|^import .*\btorch\b|vllm", re.M)
PORT = re.compile(r"\b90\d\d\b")
# What blocks print that have this program: the same over both transports.
PRINTED = {
    "receive_frames": (
        "1000 frames, 18481500 bytes,",
        "SHA-256 b04063e36b08bfa3be8c07743c8a320bc3e1dc75f3c7b92ff6c1e7a7d2ac1e5c",
    )
}


def blocks() -> list[str]:
    text = (REPO / "samples/README.md").read_text()
    return re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)


def kind_of(block: str) -> str:
    """What it needs."""
    if ML.search(block):
        return "ml"
    return "lab" if "./run lab" in block or "cmake" in block else "anywhere"


def are_free(ports: set[int]) -> bool:
    with contextlib.ExitStack() as held:
        try:
            for port in ports:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True


def with_own_ports(block: str) -> str:
    """As several runs go on at once; those that follow each other do so still."""
    named = {int(port) for port in PORT.findall(block)}
    # The kernel gives to connections those above.
    for base in random.sample(range(12_000, 32_000, 100), 200):
        ports = {port: base + port % 100 for port in named}
        if are_free(set(ports.values())):
            return PORT.sub(lambda port: str(ports[int(port[0])]), block)
    raise RuntimeError("no ports are free")


def lacks(block: str, printed: str) -> list[str]:
    """What it should have printed and has not."""
    expected = [text for program, texts in PRINTED.items() if program in block for text in texts]
    return [text for text in expected if text not in printed]


def run(block: str, limit: int) -> bool:
    print(f"--- $\n{block}", flush=True)
    # Users' builds go on after a warning; a new build/release does not here, so that they see none.
    environment = os.environ | ({"CXXFLAGS": "-Werror", "CFLAGS": "-Werror"} if "cmake" in block else {})
    # A file, and no pipe: what the block leaves in the background would hold that open.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        # In a group of its own, so that nothing which it started stays behind.
        shell = subprocess.Popen(["bash", "-euo", "pipefail", "-c", block], cwd=REPO, stdin=subprocess.DEVNULL, stdout=output,
                                 env=environment, start_new_session=True)
        try:
            good = shell.wait(limit) == 0
        except subprocess.TimeoutExpired:
            print(f"ended after {limit} s")
            good = False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
        output.seek(0)
        printed = output.read()
    print(printed, end="", flush=True)
    missing = lacks(block, printed) if good else []
    for text in missing:
        print(f"it did not print: {text}")
    return good and not missing


def main() -> int:
    # Whoever ends this test ends what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kind, least = {"--lab": ("lab", 3), "--ml": ("ml", 3)}.get(sys.argv[1], ("anywhere", 3))
    chosen = [block for block in blocks() if kind_of(block) == kind]
    if kind == "anywhere":
        chosen = [block.replace("build/release", sys.argv[1]) for block in chosen]
    if len(chosen) < least:
        print(f"not ok - samples/README.md has only {len(chosen)} blocks of commands for this")
        return 1
    if kind != "lab":
        chosen = [with_own_ports(block) for block in chosen]
    failed = 0
    for number, block in enumerate(chosen):
        good = run(block, 4 * LIMIT if "cmake" in block or "vllm" in block else LIMIT)
        failed += not good
        print(f"{'ok' if good else 'not ok'} - block {number + 1}: {block.splitlines()[-1].strip()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
