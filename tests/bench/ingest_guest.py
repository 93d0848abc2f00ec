# SPDX-License-Identifier: Apache-2.0
"""The part of `./run bench ingest` that runs in the lab's guest: ingest_guest.py PROGRAMS ROUNDS SIZE...

Prints a JSON object for each sample. With an exact clock a second of CPU time is 10^9 instructions.
"""

import json
import subprocess
import sys
from pathlib import Path

from ingest_contenders import Contenders

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ingest"))

from servers import Nginx  # noqa: E402


def main() -> None:
    programs, rounds, sizes = Path(sys.argv[1]), int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    directory = Path("/run/ingest")
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
    for size in sizes:
        (directory / str(size)).write_bytes(bytes(range(256)) * (size // 256))
    server = Nginx(directory, hosts=("10.77.0.2",), port=8000, prefix=("ip", "netns", "exec", "peer"))
    nic = ["--transport", "devmem", "--interface", "dms0"]
    contenders = Contenders(programs, server.host, server.port, nic, directory).all()
    for number in range(rounds + 1):
        for name, fetch in contenders.items():
            for size in sizes:
                cost = fetch(str(size))
                # The first round warms up.
                if number > 0:
                    print(json.dumps({"name": name, "size": size, "cpu": cost.cpu}), flush=True)
    server.stop()


if __name__ == "__main__":
    main()
