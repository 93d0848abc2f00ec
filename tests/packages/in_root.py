# SPDX-License-Identifier: Apache-2.0
"""The installed packages, used inside a root that has nothing else, by its own python3: in_root.py VERSION"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "python"))

import gpurx
from ranges import Server, running

DATA = {"a": bytes(range(256)) * 4096, "b": os.urandom(3000)}


def model() -> bytes:
    header, at = {}, 0
    for name, data in DATA.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(DATA.values())


def run(*command: str, status: int = 0) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == status, f"{command}: status {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def check_doctor() -> None:
    """There is loopback and nothing else: not possible, and said so, not failed."""
    report = json.loads(run("gpurx-doctor", "--json", status=2))
    assert [one["name"] for one in report["interfaces"]] == ["lo"], report
    assert report["interfaces"][0]["findings"], report


def check_fetch(url: str, data: bytes) -> None:
    report = json.loads(run("gpurx-fetch", url, "--transport", "copy", "--sha256", "--json"))
    assert report["sha256"] == hashlib.sha256(data).hexdigest(), report


def completions(program: str, word: str, before: str) -> list[str]:
    script = ('. "/usr/share/bash-completion/completions/$1"; function=$(complete -p "$1" | sed "s/.*-F \\([^ ]*\\) .*/\\1/")\n'
              '"$function" "$1" "$2" "$3"; printf "%s\\n" "${COMPREPLY[@]}"')
    return run("bash", "-c", script, "bash", program, word, before).split()


def check_completions() -> None:
    assert completions("gpurx-fetch", "--s3-", "gpurx-fetch") == [
        "--s3-endpoint", "--s3-region", "--s3-addressing", "--s3-profile", "--s3-anonymous"]
    assert completions("gpurx-fetch", "d", "--transport") == ["devmem"]
    assert completions("gpurx-doctor", "--dry", "gpurx-doctor") == ["--dry-run"]
    assert completions("gpurx-doctor", "", "gpurx-doctor") == ["lo"]
    assert completions("gpurx-perf", "s", "gpurx-perf") == ["server"]
    assert completions("gpurxd", "--s", "gpurxd") == ["--socket", "--state-directory"]
    assert completions("gpurxd", "/usr/share/doc/gpurxd/ex", "--policy") == ["/usr/share/doc/gpurxd/examples"]


def check_perf() -> None:
    server = subprocess.Popen(["gpurx-perf", "server", "--listen", "127.0.0.1", "--rounds", "1", "--verify"])
    made = json.loads(run("gpurx-perf", "client", "127.0.0.1", "--seconds", "0.2", "--warm-up", "0", "--json", "-"))
    assert server.wait(30) == 0 and made["rounds"][0]["wrong_words"] == 0 < made["rounds"][0]["verified_bytes"], made


def check_daemon() -> None:
    """The policy that comes with it allows nothing, and is one."""
    run("gpurxd", "--check", "--policy", "/usr/share/doc/gpurxd/examples/gpurxd.conf")
    unit = Path("/usr/lib/systemd/system/gpurxd.service").read_text(encoding="utf-8")
    assert "\nExecStart=/usr/sbin/gpurxd --metrics-directory /run/gpurx-metrics\n" in unit, unit
    assert Path("/usr/lib/systemd/system/gpurxd.socket").exists()


def check_python(place: str, version: str) -> None:
    assert gpurx.__version__ == version, gpurx.__version__
    assert Path(gpurx.__file__).is_relative_to("/usr/lib/python3/dist-packages"), gpurx.__file__
    weights = gpurx.load_safetensors(place, transport="copy")
    assert {name: ctypes.string_at(one.data_ptr, one.nbytes) for name, one in weights.items()} == DATA


def main() -> None:
    version, data = sys.argv[1], model()
    server = Server()
    server.files["model"] = data
    check_doctor()
    check_completions()
    check_perf()
    check_daemon()
    with running(server), tempfile.TemporaryDirectory() as directory:
        check_fetch(server.url("model"), data)
        check_python(server.url("model"), version)
        file = Path(directory, "model.safetensors")
        file.write_bytes(data)
        check_python(str(file), version)


main()
