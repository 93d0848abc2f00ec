# SPDX-License-Identifier: Apache-2.0
"""The server of `./run bench ingest`: nginx with a few objects, that counts what it is asked, by http and https. It
serves S3's clients as well: path-style addresses are its own, and it looks at no signature."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ingest"))

from servers import Nginx, free_port, nginx_program as nginx_program  # noqa: E402

# What the tools ask for at the end of a count is answered when all before it is in the log: nginx is one process.
CONFIGURATION = """
listen 127.0.0.1:{tls_port} ssl;
ssl_certificate {work}/certificate;
ssl_certificate_key {work}/key;
location /models/ {{ access_log {work}/asked; }}
location /fence {{ return 204; }}
"""


class Object(NamedTuple):
    name: str
    bytes: int
    sha256: str
    digests: dict[str, str]  # of each tensor, "1", and of every other one, "2"


def certify(work: Path) -> None:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", work / "key", "-out", work / "certificate", "-days", "2", "-subj", "/CN=bench",
                    "-addext", "subjectAltName=IP:127.0.0.1"], stderr=subprocess.DEVNULL, check=True)


class Site:
    """Has the objects in `directory`, each of (count, size) tensors, and stops when it is left."""

    def __init__(self, directory: Path, wanted: list[tuple[int, int]]) -> None:
        self.scratch = directory
        self._models = directory / "models"
        self._log = directory / "asked"
        self._seen = 0
        certify(directory)
        self.certificate = directory / "certificate"
        written = subprocess.run([sys.executable, HERE / "ingest_objects.py", self._models,
                                  *(f"{count}:{size}" for count, size in wanted)],
                                 stdout=subprocess.PIPE, text=True, check=True)
        self.objects = [Object(**one) for one in json.loads(written.stdout)]
        self._tls_port = free_port()
        self._nginx = Nginx(directory, server=CONFIGURATION.format(work=directory, tls_port=self._tls_port))

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: Any) -> None:
        self._nginx.stop()

    def path(self, name: str) -> Path:
        return self._models / name

    def http(self, name: str) -> str:
        return self._nginx.url(f"models/{name}")

    def https(self, name: str) -> str:
        return f"https://127.0.0.1:{self._tls_port}/models/{name}"

    def s3(self, name: str) -> str:
        return f"s3://models/{name}"

    def s3_environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://{self._nginx.host}:{self._nginx.port}",
            "AWS_ACCESS_KEY_ID": "id",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            # runai-model-streamer's word for path-style addresses.
            "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING": "0",
        }

    def asked(self) -> int:
        """Requests since the last call."""
        fence = http.client.HTTPConnection(self._nginx.host, self._nginx.port)
        fence.request("GET", "/fence")
        fence.getresponse().read()
        fence.close()
        total = self._log.read_bytes().count(b"\n")
        since, self._seen = total - self._seen, total
        return since
