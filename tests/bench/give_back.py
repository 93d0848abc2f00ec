#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`./run bench give-back`: what it costs to give pages back behind a stream, and how late they are.

By the part of gpu_bench that measures it on a GPU, here with the fake driver: its streams are threads and its kernels are
interpreted, but the thread of the library that looks at them is the real one. So is what it takes of a core, but for the
price of a call of the driver.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import Bar, Report, Table

# As gpu_bench names them; what the fake driver's own work is part of is not judged.
CORE = "CPU while 64 streams stand still"
DELAY = "from the stream's passing to pages back"
CORE_UNIT = ", % of a core"


def measured(program: Path, driver: Path) -> dict:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "gpu_bench.json"
        done = subprocess.run([str(program), "--json", str(output), "release"], stdout=subprocess.PIPE, text=True,
                              check=False, env=os.environ | {"LD_LIBRARY_PATH": str(driver)})
        if done.returncode not in (0, 3):  # a bar of its own may fall short
            sys.exit(f"give-back: {program} failed (exit code {done.returncode}):\n{done.stdout}")
        return json.loads(output.read_text())


def main() -> int:
    build = Path(sys.argv[1])
    program = build / "tests" / "gpu" / "bench" / "gpu_bench"
    if not program.exists():
        print("give-back: left out: this gpurx was built without CUDA")
        return 0
    figures = measured(program, build / "tests" / "fake_cuda")
    report = Report("give-back", {"driver": "fake"} | figures["configuration"])
    of_core = {row["what"].removesuffix(CORE_UNIT): [(row["median"], row["min"], row["max"])]
               for row in figures["release"] if row["what"].endswith(CORE_UNIT)}
    times = {row["what"]: [(row["median"], row["min"], row["max"])] for row in figures["release"]
             if not row["what"].endswith(CORE_UNIT)}
    report.table(Table("A thread's part of a core", ["% of a core"], of_core, drawn=1))
    report.table(Table("Times", ["median (least–most)"], times))
    for skipped in figures["skipped"]:
        print(f"not judged: {skipped['what']}: {skipped['reason']}")
    bars = {bar["name"]: bar for bar in figures["bars"]}
    for name in (CORE, DELAY):
        if name in bars:
            report.bar(Bar(name, bars[name]["value"], bars[name]["unit"], bars[name]["limit"]))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
