#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench perf`: gpurx-perf over the lab's wire: reads, loans and transport copy in turn. In an emulated guest: what
the ways cost beside each other is meant, not the speed. It has no bars."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from report import OUTPUT

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("--loan", "--transport copy", "--transport copy --loan")


def script(program: Path, rounds: int, flows: int) -> str:
    server = [str(program), "server", "--interface", "dms0", "--transport", "devmem", "--rounds", str(rounds)]
    for way in WAYS:
        server += ["--compare", way]
    client = ["ip", "netns", "exec", "peer", str(program), "client", "10.77.0.1", "--flows", str(flows), "--message", "64KiB",
              "--rounds", str(rounds), "--seconds", "1", "--warm-up", "0.2", "--json", "-"]  # fmt: skip
    return f"{shlex.join(server)} & {shlex.join(client)} && wait $!"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run bench perf", description=__doc__)
    parser.add_argument("program", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("rounds", type=int, nargs="?", default=7, help="of each way (7)")
    parser.add_argument("--flows", type=int, default=4)
    arguments = parser.parse_args()
    rounds = arguments.rounds * (len(WAYS) + 1)
    print(f"perf: {rounds} rounds in the lab, some minutes", file=sys.stderr, flush=True)
    command = [str(ROOT / "run"), "lab", "--timeout", "900", "--", "bash", "-c", script(arguments.program, rounds, arguments.flows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    found = next((line for line in done.stdout.splitlines() if line.startswith('{"gpurx_perf"')), None)
    if done.returncode != 0 or found is None:
        sys.exit(f"perf: the lab run failed (exit code {done.returncode}); its output was:\n{done.stdout}")
    made = json.loads(found)
    for one in made["settings"]:
        latency = one["latency_us"]
        print(f"{one['transport']:<7} {one['setting']:<28} {one['gib_per_second'] * 1024:7.1f} MiB/s, per GiB "
              f"{one['process_cpu_per_gib']:.2f} s of the process and {one['machine_cpu_per_gib']:.2f} s of the machine, "
              f"p50 {latency['p50'] / 1000:.1f} ms, p99 {latency['p99'] / 1000:.1f} ms")  # fmt: skip
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "perf.json"
    path.write_text(json.dumps(made, indent=2) + "\n")
    print(f"written: {os.path.relpath(path)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
