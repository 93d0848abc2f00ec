# SPDX-License-Identifier: Apache-2.0
"""ingest_loop.py HOST PORT PATH: what one writes by hand: one connection, recv_into one array. Prints what that cost,
without the start of Python, and the SHA-256 of what came, as JSON."""

import hashlib
import json
import re
import socket
import sys
import time


def fetch(host: str, port: int, path: str) -> memoryview:
    with socket.create_connection((host, port)) as server:
        server.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        begin = b""
        while b"\r\n\r\n" not in begin:
            begin += server.recv(4096)
        header, _, body = begin.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", header)
        assert length, header
        memory = memoryview(bytearray(int(length[1])))
        memory[:len(body)] = body
        at = len(body)
        while at < len(memory):
            received = server.recv_into(memory[at:at + (8 << 20)])
            assert received, "cut"
            at += received
    return memory


def main() -> None:
    host, port, path = sys.argv[1:]
    cpu, start = time.process_time(), time.monotonic()
    memory = fetch(host, int(port), path)
    cost = {"cpu": time.process_time() - cpu, "seconds": time.monotonic() - start}
    print(json.dumps(cost | {"digest": hashlib.sha256(memory).hexdigest()}))


if __name__ == "__main__":
    main()
