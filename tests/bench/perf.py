#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench perf`: gpurx-perf over the lab's wire: reads, loans and transport copy in turn. In an emulated guest: what
the ways cost beside each other is meant, not the speed. It has no bars."""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from report import Report, Table

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("--loan", "--transport copy", "--transport copy --loan")


def tables_of(made: dict[str, Any], emulated: bool) -> list[Table]:
    """Of what gpurx-perf wrote. The medians are its own."""
    quantities = {"GiB/s": "gib_per_second", "CPU s per GiB: process": "process_cpu_per_gib",
                  "CPU s per GiB: machine": "machine_cpu_per_gib"}  # fmt: skip
    throughput, latency = {}, {}
    for setting in made["settings"]:
        name = f"{setting['transport']}: {setting['setting']}"
        rounds = [one for one in made["rounds"]
                  if (one["setting"], one["transport"]) == (setting["setting"], setting["transport"])]  # fmt: skip
        throughput[name] = [[setting[key], *(pick(one[key] for one in rounds) for pick in (min, max))]
                            for key in quantities.values()]  # fmt: skip
        latency[name] = [value / 1e3 for key, value in setting["latency_us"].items() if key != "count"]
    percents = [key for key in made["settings"][0]["latency_us"] if key != "count"]
    load = made["load"]
    title = f"{load['flows']} flows, messages of {load['message']:,} bytes, {load['window']} at once"
    return [Table(title, list(quantities), throughput, drawn=len(quantities), emulated=emulated),
            Table("Latency of a message, ms", percents, latency, drawn=len(percents), together=True, emulated=emulated)]


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
    report = Report("perf", {"gpurx": made["version"], "rounds": arguments.rounds, **made["load"]})
    for table in tables_of(made, emulated=True):
        report.table(table)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
