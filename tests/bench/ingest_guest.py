# SPDX-License-Identifier: Apache-2.0
"""The part of `./run bench ingest` that runs in the lab's guest: ingest_guest.py BUILD ROUNDS SIZE...

Prints a JSON object for each sample. With an exact clock a second of CPU time is 10^9 instructions.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from ingest_contenders import Contenders, Programs, to_memory

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ingest"))

from servers import Nginx  # noqa: E402


def main() -> None:
    programs, rounds, sizes = Programs(Path(sys.argv[1])), int(sys.argv[2]), [int(size) for size in sys.argv[3:]]
    directory = Path("/run/ingest")
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", directory], check=True)
    server = Nginx(directory, hosts=("10.77.0.2",), port=8000, prefix=("ip", "netns", "exec", "peer"))
    nic = ["--transport", "devmem", "--interface", "dms0"]
    contenders: dict[int, Contenders] = {}
    for size in sizes:
        data = bytes(range(256)) * (size // 256)
        (directory / str(size)).write_bytes(data)
        contenders[size] = to_memory(programs, server.url(str(size)), nic, hashlib.sha256(data).hexdigest(), directory)
    for number in range(rounds + 1):
        for name in contenders[sizes[0]]:
            for size in sizes:
                cost = contenders[size][name]()
                # The first round warms up.
                if number > 0:
                    print(json.dumps({"name": name, "size": size, "cpu": cost.cpu}), flush=True)
    server.stop()


if __name__ == "__main__":
    main()
