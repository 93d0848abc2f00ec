# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback that objects are written to, in memory. It compares every checksum, and calls back with each
request before it changes anything and before it answers."""

from __future__ import annotations

import base64
import http.server
import re
import sys
import threading
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from ranges import running

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))
from crc import crc32c  # noqa: E402


def text_of(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()


class Refused(Exception):
    """Status and code of an answer."""


class Store(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, bytes] = {}  # by /BUCKET/KEY
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.lock = threading.Lock()
        self.requests: list[str] = []
        self.signers: set[str] = set()  # access keys
        self.before: Callable[[str, int], object] = lambda what, number: None
        self.after: Callable[[str, int], object] = lambda what, number: None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is killed is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def log_message(self, *_: Any) -> None:
        pass

    def do_any(self) -> None:
        place = urlsplit(self.path)
        query = dict(parse_qsl(place.query, keep_blank_values=True))
        data = self.rfile.read(size := int(self.headers.get("Content-Length", 0)))
        if len(data) != size:
            raise ConnectionError
        what = f"{self.command} {' '.join(sorted({'uploads', 'uploadId', 'partNumber', 'list-type'} & query.keys()))}".strip()
        signer = re.search("Credential=([^/]*)/", self.headers.get("Authorization", ""))
        with self.server.lock:
            self.server.signers.add(signer[1] if signer else "")
            number = len(self.server.requests)
            self.server.requests.append(what)
        try:
            self.server.before(what, number)
            with self.server.lock:
                status, fields, body = self.answer(unquote(place.path), query, data)
            self.server.after(what, number)
        except Refused as refusal:
            status, code = refusal.args
            fields, body = {}, f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        if "Content-Length" not in fields:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any

    def answer(self, path: str, query: dict[str, str], data: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.command == "PUT":
            return self.put(path, query, data)
        if self.command == "POST":
            return self.post(path, query, data)
        if self.command == "DELETE":
            self.server.uploads.pop(query.get("uploadId", ""), None)
            if "uploadId" not in query:
                self.server.objects.pop(path, None)
            return 204, {}, b""
        return self.list(path, query) if "prefix" in query else self.get(path)

    def check(self, data: bytes) -> None:
        if self.headers["x-amz-checksum-crc32c"] != text_of(data):
            raise Refused(400, "BadDigest")

    def put(self, path: str, query: dict[str, str], data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.check(data)
        if "uploadId" in query:
            _, parts = self.server.uploads[query["uploadId"]]
            parts[int(query["partNumber"])] = data
        else:
            self.server.objects[path] = data
        return 200, {"ETag": f'"{crc32c(data)}"'}, b""

    def post(self, path: str, query: dict[str, str], data: bytes) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in query:
            assert self.headers["x-amz-checksum-type"] == "FULL_OBJECT"
            name = str(len(self.server.requests))
            self.server.uploads[name] = (path, {})
            return 200, {}, f"<R><UploadId>{name}</UploadId></R>".encode()
        whose, parts = self.server.uploads[query["uploadId"]]
        named = [int(one.text or 0) for one in xml.fromstring(data).iter() if one.tag.endswith("PartNumber")]
        assert whose == path and named == sorted(parts)
        whole = b"".join(parts[number] for number in named)
        self.check(whole)
        self.server.objects[path] = whole
        del self.server.uploads[query["uploadId"]]
        return 200, {}, b"<R/>"

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        data = self.server.objects.get(path)
        if data is None:
            raise Refused(404, "NoSuchKey")
        fields = {"ETag": f'"{crc32c(data)}"', "x-amz-checksum-crc32c": text_of(data), "x-amz-checksum-type": "FULL_OBJECT"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted:
            return 200, {**fields, "Content-Length": str(len(data))}, data
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        return 206, {**fields, "Content-Range": f"bytes {first}-{last}/{len(data)}"}, data[first : last + 1]

    def list(self, bucket: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        root = f"{bucket.rstrip('/')}/"
        if "uploads" in query:
            found = [(path, f"<UploadId>{name}</UploadId>") for name, (path, _) in self.server.uploads.items()]
            kind = "Upload"
        else:
            found, kind = [(path, f"<Size>{len(data)}</Size>") for path, data in self.server.objects.items()], "Contents"
        entries = [
            f"<{kind}><Key>{path.removeprefix(root)}</Key>{more}</{kind}>"
            for path, more in sorted(found)
            if path.startswith(root + query["prefix"])
        ]
        return 200, {}, f"<L><IsTruncated>false</IsTruncated>{''.join(entries)}</L>".encode()


@pytest.fixture(autouse=True)
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in dict(ACCESS_KEY_ID="id", SECRET_ACCESS_KEY="secret", CONFIG_FILE="/none").items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.fixture
def store() -> Iterator[Store]:
    with running(one := Store()):
        yield one
