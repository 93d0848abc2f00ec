# SPDX-License-Identifier: Apache-2.0
"""gpurxd in the lab's guest, for a user without rights."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

NOBODY = 65534


@contextlib.contextmanager
def gpurxd(program: str, directory: Path) -> Iterator[None]:
    """Lets that user have dms0."""
    policy, where = directory / "policy", directory / "gpurxd"
    policy.write_text(f"allow user {NOBODY} interface dms0\n")
    policy.chmod(0o600)
    directory.chmod(0o755)
    udmabuf = Path("/dev/udmabuf")
    before = udmabuf.stat().st_mode
    udmabuf.chmod(0o666)
    daemon = subprocess.Popen([program, "--socket", where, "--policy", policy])
    try:
        end = time.monotonic() + 60
        while not where.is_socket():
            if daemon.poll() is not None or time.monotonic() > end:
                raise AssertionError("gpurxd does not start")
            time.sleep(0.05)
        with mock.patch.dict(os.environ, GPURXD_SOCKET=str(where)):
            yield
    finally:
        daemon.terminate()
        daemon.wait()
        udmabuf.chmod(before)
