# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server of byte ranges:  ranges.py HOST PORT DIRECTORY"""

from __future__ import annotations

import base64
import http.server
import re
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), Handler)
        self.files: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}  # what it says, where that is more
        self.checksums: dict[str, int] = {}  # CRC32C of a whole, which it says
        self.ranges: list[tuple[int, int]] = []
        self.requests = 0
        self.scheme = "http"
        self.asked: list[dict[str, str]] = []  # header fields, names in lower case
        self.stalls = False  # answers wait with their bodies
        self.pace = 0  # bytes a second of each answer; 0: as fast as it can
        self.refuses: tuple[int, str] | None = None
        self.redirects: dict[str, str] = {}  # to which URLs paths lead
        self.fields: dict[str, tuple[str, str]] = {}  # one more header field of answers for a path
        self.wants = ""  # Authorization of who is served
        self.connections = 0
        self.open = 0  # of them
        self.answering: list[str] = []  # paths of requests whose last byte is not sent
        self.most_answering = 0
        self.most_paths = 0  # among those
        self.paths: list[str] = []  # of requests
        self.lock = threading.Lock()

    def is_stalling(self) -> bool:
        return self.stalls

    def forget(self) -> None:
        """What was asked for until now. Precondition: no connection is open."""
        with self.lock:
            self.paths.clear()
            self.most_answering = self.most_paths = 0

    def server_close(self) -> None:
        self.stalls = False
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has enough, and goes, is none."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)

    def url(self, name: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{name}"


@contextmanager
def running(server: http.server.HTTPServer) -> Iterator[None]:
    """In a thread of its own."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1
            self.server.open += 1

    def finish(self) -> None:
        super().finish()
        with self.server.lock:
            self.server.open -= 1

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.paths.append(self.path[1:])
        self.server.asked.append({name.lower(): value for name, value in self.headers.items()})
        if self.server.refuses:
            self.send_error(*self.server.refuses)
            return
        if self.server.wants and self.headers.get("Authorization") != self.server.wants:
            self.send_error(401, "who is it?")
            return
        if place := self.server.redirects.get(self.path[1:]):
            self.redirect(place)
            return
        data = self.server.files.get(self.path[1:])
        if data is None:
            self.send_error(404, "no such model")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(wanted[1]), min(int(wanted[2]), len(data) - 1)) if wanted else (0, len(data) - 1)
        self.server.ranges.append((first, last))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{self.server.sizes.get(self.path[1:], len(data))}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"one"')
        self.send_field()
        if (checksum := self.server.checksums.get(self.path[1:])) is not None:
            self.send_header("x-amz-checksum-crc32c", base64.b64encode(checksum.to_bytes(4, "big")).decode())
            self.send_header("x-amz-checksum-type", "FULL_OBJECT")
        self.end_headers()
        with self.server.lock:
            answering = self.server.answering
            answering.append(self.path[1:])
            self.server.most_answering = max(self.server.most_answering, len(answering))
            self.server.most_paths = max(self.server.most_paths, len(set(answering)))
        try:
            while self.server.is_stalling():
                time.sleep(0.005)
            self.write(data[first:last])
        finally:
            with self.server.lock:
                answering.remove(self.path[1:])
        self.write(data[last : last + 1])

    def redirect(self, place: str) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.send_field()
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send_field(self) -> None:
        if field := self.server.fields.get(self.path[1:]):
            self.send_header(*field)

    def write(self, data: bytes) -> None:
        if not self.server.pace:
            self.wfile.write(data)
            return
        for begin in range(0, len(data), 100):
            time.sleep(100 / self.server.pace)
            self.wfile.write(data[begin : begin + 100])


if __name__ == "__main__":
    serves = Server(sys.argv[1], int(sys.argv[2]))
    serves.files = {path.name: path.read_bytes() for path in Path(sys.argv[3]).iterdir()}
    print("listening", flush=True)
    serves.serve_forever()
