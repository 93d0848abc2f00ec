# SPDX-License-Identifier: Apache-2.0
"""Models of a running process, for others to load: as one safetensors file over HTTP."""

from __future__ import annotations

import base64
import ctypes
import hmac
import http.server
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from ._arguments import text
from ._convert import is_torch, to_torch
from ._native import Tensor, bytes_of, crc32c
from ._save import Array, array_of, header_of
from ._sender import row_major

# Bytes that come to the host at a time, if they are on a GPU.
_PIECE = 16 << 20
_PATH = "/model.safetensors"
_SILENCE = 60.0  # seconds after which a connection is closed


class _Run(NamedTuple):
    """Bytes of the file that lie together, and how to get some of them: their address, and the owner of the memory."""

    begin: int
    size: int
    at: Callable[[int, int], tuple[int, Any]]


def _on_host(keeps: Any, address: int) -> Callable[[int, int], tuple[int, Any]]:
    return lambda begin, size: (address + begin, keeps)


def _on_gpu(flat: Any) -> Callable[[int, int], tuple[int, Any]]:
    def copied(begin: int, size: int) -> tuple[int, Any]:
        here = flat[begin : begin + size].cpu()
        return here.data_ptr(), here

    return copied


def _bytes_at(one: Array) -> Callable[[int, int], tuple[int, Any]]:
    array = one.array
    if isinstance(array, Tensor):
        array = bytes_of(array).numpy() if array.device == "cpu" else to_torch(bytes_of(array))
    if is_torch(array) and array.device.type != "cpu":
        import torch

        return _on_gpu(array.detach().contiguous().reshape(-1).view(torch.uint8))
    here, address, _ = row_major(array)
    return _on_host(here, address)


class _Content:
    """The file: its header, and the memory of the tensors."""

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None) -> None:
        arrays = sorted((array_of(text("name", name), one) for name, one in tensors.items()), key=Array.order)
        header = ctypes.create_string_buffer(data := header_of(arrays, metadata), len(data))
        self._runs = [_Run(0, len(data), _on_host(header, ctypes.addressof(header)))]
        self.size = len(data)
        for one in arrays:
            if one.nbytes:
                self._runs.append(_Run(self.size, one.nbytes, _bytes_at(one)))
                self.size += one.nbytes
        self.crc = 0
        for address, size, _ in self.pieces(0, self.size):
            self.crc = crc32c(address, size, self.crc)

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, Any]]:
        """Yield the address, size and owner of the memory of bytes [begin, end)."""
        for run in self._runs:
            at, last = max(begin, run.begin), min(end, run.begin + run.size)
            while at < last:
                size = min(_PIECE, last - at)
                address, keeps = run.at(at - run.begin, size)
                yield address, size, keeps
                at += size


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], content: _Content, bearer: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.content = content
        self.bearer = bearer.encode()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report defects. Clients may go at any time."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "gpurx"
    sys_version = ""
    timeout = _SILENCE
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        expected = b"Bearer " + self.server.bearer
        if self.server.bearer and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), expected):
            self._refuse(401)
        elif self.path != _PATH:
            self._refuse(404)
        else:
            self._serve(self.server.content)

    do_HEAD = do_GET

    def _refuse(self, status: int, *fields: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (*fields, ("Content-Length", "0")):
            self.send_header(name, value)
        self.end_headers()

    def _serve(self, content: _Content) -> None:
        wanted = re.fullmatch(r"bytes=(\d{1,18})-(\d{0,18})", self.headers.get("Range", ""))
        begin = int(wanted[1]) if wanted else 0
        end = min(int(wanted[2]) + 1, content.size) if wanted and wanted[2] else content.size
        if begin >= end:
            self._refuse(416, ("Content-Range", f"bytes */{content.size}"))
            return
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{content.size}")
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Accept-Ranges", "bytes")
        # The same content has the same ETag at each process.
        self.send_header("ETag", f'"{content.size:x}-{content.crc:08x}"')
        self.send_header("x-amz-checksum-crc32c", base64.b64encode(content.crc.to_bytes(4, "big")).decode())
        self.send_header("x-amz-checksum-type", "FULL_OBJECT")
        self.end_headers()
        if self.command == "GET":
            for address, size, _ in content.pieces(begin, end):
                self.wfile.write((ctypes.c_char * size).from_address(address))


class ModelServer:
    """Serve the tensors of this process to others, which load them from its memory instead of from storage.

        with gpurx.ModelServer(model.state_dict(), "10.77.0.1:9100", bearer=token) as server:
            ...                                    # the model serves its users meanwhile

        weights = gpurx.torch.load_file("http://10.77.0.1:9100/model.safetensors", device="cuda:0", bearer=token,
                                        mirrors=["http://10.77.0.2:9100/model.safetensors"])

    The tensors are one safetensors file over HTTP, so each function of gpurx that takes a URL loads it, into memory of a GPU by
    the NIC too. Replicas with the same tensors and metadata serve the same file and are mirrors of each other: a load takes
    bytes from all of them, and from the others if one dies. The load compares the CRC32C of all bytes, which the server has
    computed at its start.

    * tensors: by name, as for gpurx.save_file(), or Weights. Those on the host are served in place, those on a GPU through
      copies of some MiB. They must not change while the server is open.
    * address: "HOST:PORT". Port 0: the system chooses one; `url` has it.
    * metadata: texts for the header of the file.
    * bearer: a token that clients must send, with `bearer=`. None: anyone may load. Nothing is encrypted.

    Each connection has a thread, which sends without the GIL. A silent connection is closed after a minute. Raises OSError if
    the address cannot be had.
    """

    def __init__(
        self, tensors: Mapping[str, Any], address: str, *, metadata: Mapping[str, str] | None = None, bearer: str | None = None
    ) -> None:
        host, colon, port = text("address", address).rpartition(":")
        if not colon or not port.isdigit() or not host:
            raise ValueError(f"{address!r} is not HOST:PORT")
        token = text("bearer", bearer or "")
        self._server = _Server((host.strip("[]"), int(port)), _Content(tensors, metadata), token)
        self._host = host
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="gpurx-serve", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """URL of the file."""
        return f"http://{self._host}:{self._server.server_address[1]}{_PATH}"

    def close(self) -> None:
        """Listen no longer. Answers under way go on until their connections end. Further calls do nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> ModelServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpurx.ModelServer at {self.url}>"
