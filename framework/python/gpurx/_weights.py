# SPDX-License-Identifier: Apache-2.0
"""Loading weights from a server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from . import _native
from ._native import Operation, Session, Tensor
from ._wait import wait, wait_in_loop

Checksum = Literal["none", "automatic", "always"]


class Weights(dict[str, Tensor]):
    """The tensors of a file by their names. All lie in one block of memory, which lives as long as one of them does.

    `metadata` is what the file says of itself, `url` where it came from after redirects, `etag` what the server calls this
    version of it, `file_size` its size in bytes, and `transport` how it was received.
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.metadata: dict[str, str] = {}
        self.url = ""
        self.etag = ""
        self.file_size = 0
        self.transport = ""


def _session(given: Session | None, device: str, size: int, interface: str, transport: str, flows: int) -> Session:
    if given is not None:
        return given
    # Twice the connections: one that failed may still have pages when the next takes its place.
    return Session(device, size=size, interface=interface, transport=transport, max_flows=max(16, 2 * flows))


def _weights(loaded: Any, session: Session) -> Weights:
    tensors, metadata, url, etag, size = loaded
    weights = Weights(tensors)
    weights.metadata, weights.url, weights.etag, weights.file_size = metadata, url, etag, size
    weights.transport = session.transport
    return weights


def _start(
    session: Session,
    url: str,
    device: str,
    names: Iterable[str] | None,
    flows: int,
    chunk_size: int,
    timeout: float,
    checksum: Checksum,
) -> Operation:
    chosen = None if names is None else list(names)
    return _native.load_safetensors(session, url, device, chosen, flows, chunk_size, timeout, checksum)


def load_safetensors(
    url: str,
    device: str = "host",
    *,
    names: Iterable[str] | None = None,
    session: Session | None = None,
    flows: int = 4,
    chunk_size: int = 8 << 20,
    timeout: float = 30.0,
    checksum: Checksum = "automatic",
    size: int = 64 << 20,
    interface: str = "",
    transport: Literal["automatic", "devmem", "copy"] = "automatic",
) -> Weights:
    """The tensors of a safetensors file, from an HTTP server straight into memory of `device`.

        weights = gpurx.load_safetensors("http://10.77.0.2/model.safetensors", device="cuda:0")
        model.load_state_dict({name: torch.from_dlpack(one) for name, one in weights.items()})

    names: only these; the others are not fetched. flows: connections at a time. timeout: seconds without a byte until a
    connection is given up and its rest fetched through a new one. checksum: whether a CRC32C is computed, and compared
    with the server's if that has sent one.

    Without `session` one is opened for this call, with `size` bytes of memory of `device` for the NIC to write into.
    """
    rx = _session(session, device, size, interface, transport, flows)
    try:
        return _weights(wait(_start(rx, url, device, names, flows, chunk_size, timeout, checksum)), rx)
    finally:
        if session is None:
            rx.close()


async def load_safetensors_async(
    url: str,
    device: str = "host",
    *,
    names: Iterable[str] | None = None,
    session: Session | None = None,
    flows: int = 4,
    chunk_size: int = 8 << 20,
    timeout: float = 30.0,
    checksum: Checksum = "automatic",
    size: int = 64 << 20,
    interface: str = "",
    transport: Literal["automatic", "devmem", "copy"] = "automatic",
) -> Weights:
    """load_safetensors() for coroutines: the event loop goes on meanwhile. (Opening a session takes some 100 ms of it.)"""
    rx = _session(session, device, size, interface, transport, flows)
    try:
        operation = _start(rx, url, device, names, flows, chunk_size, timeout, checksum)
        return _weights(await wait_in_loop(operation), rx)
    finally:
        if session is None:
            rx.close()
