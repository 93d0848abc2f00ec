# SPDX-License-Identifier: Apache-2.0
"""Certificates for a test, made by openssl, and a server of ranges that has one."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ranges import Server, running


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def make_identity(directory: Path, name: str) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and localhost, which vouches for itself, and its key."""
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert)  # fmt: skip
    return cert, key


@contextmanager
def serving(identity: tuple[Path, Path], asks_for: Path | None = None) -> Iterator[Server]:
    """With TLS. `asks_for`: clients have to show a certificate that this authority vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*identity)
    if asks_for:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(asks_for)
    one = Server()
    one.scheme = "https"
    one.socket = context.wrap_socket(one.socket, server_side=True)
    with running(one):
        yield one
