# SPDX-License-Identifier: Apache-2.0
"""The keywords of all functions that take a URL: how servers are asked, and by whom, and the session that it is done
through. What they mean is said here, and nowhere else."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from ._native import HttpOptions, Session, parse_device

Checksum = Literal["none", "automatic", "always"]
Transport = Literal["automatic", "devmem", "copy"]


class Options(TypedDict, total=False):
    """Keywords of load_safetensors(), safe_open(), load_file() and their like. What cannot be right is a ValueError, a
    TypeError or an Error before anybody is asked.

    How a server is asked:

    * flows=4: connections at a time, to all files of a model together.
    * chunk_size=8 << 20: bytes of one request.
    * timeout=30.0: seconds without a byte until a connection is given up, and its rest fetched through a new one.
    * min_speed=1024: bytes per second below which it is given up, too.
    * deadline=0: seconds for all of it, from the opening on: what is not there then is an Error, GAVE_UP. 0: as long as it
      takes.
    * attempts=12: how often in a row a connection may fail, or the server say that it cannot now, until the load does.
    * mirrors=(): more URLs of the same: of the same file, or of the same index, prefix or directory for a model of several.
      Each connection goes to one of them all; fewer to those that fail or are slow, and what one has not brought another
      does. All have to have the same bytes, else it is an Error. Prefixes of S3 are listed where `url` says. Not for a list
      of files, nor for files of this machine.
    * checksum="automatic": what the server says of the whole of a file is compared with what has come, once all of it has:
      CRC32C, or CRC-64/NVME of bytes on the host. What does not agree is an Error, WRONG_CHECKSUM, that names the file, of the
      call that brings the last of it: what that was to give is not given. Servers of S3 are asked for it, others say it, if at
      all, of files of up to `chunk_size`. Where only some tensors or slices of a file are read there is nothing to compare; a call
      that fails makes it begin anew. "none": nothing is asked for or computed. "always": CRC32C is computed of all bytes,
      whether there is one to compare it with or not.
    * keep_connections=False: True keeps what is connected between the fetches of one file: less time for each where many
      are made. They count as flows of the session until the file is closed, or until another file of the model needs them.

    Who asks, and whom it trusts. What is left out, None or empty comes from the environment, as curl and AWS's tools have it.
    No message and no repr has a header's value, a token or a key.

    * headers, bearer: more fields of requests, and a token; for http and https, and nowhere that a redirect leads.
    * ca: who is trusted by https in the place of the system's authorities: a file of certificates, or a directory of them as
      `openssl rehash` makes it. All files are PEM.
    * cert, key: for servers that want to know who asks: a file with a certificate, those that lead to its authority behind
      it; and one with its key, without a password, if that is not in the same file.
    * endpoint_url, region: of S3, where it is not AWS, or not where the environment says. Several URLs: of servers with the
      same buckets, as the nodes of one store; each s3:// URL is asked of all of them, as of mirrors.
    * addressing_style="auto": how buckets are named to it: "virtual", in front of its host; "path", in the path; "auto": as
      the profile says, else AWS by host and others by path.
    * anonymous=True: requests to S3 are not signed, and no credentials are looked for.
    * profile: of ~/.aws; its credentials are taken then, and not those in the environment.

    The session that is opened where none is given:

    * size=64 << 20: bytes of memory of the device for the NIC to write into.
    * interface="", transport="automatic": the NIC, and how it is received; see Session.
    """

    flows: int
    chunk_size: int
    timeout: float
    min_speed: int
    deadline: float
    attempts: int
    checksum: Checksum
    mirrors: Sequence[str]
    keep_connections: bool
    headers: Mapping[str, str] | None
    bearer: str | None
    ca: str | os.PathLike[str] | None
    cert: str | os.PathLike[str] | None
    key: str | os.PathLike[str] | None
    endpoint_url: str | Sequence[str] | None
    region: str | None
    addressing_style: Literal["auto", "path", "virtual"] | None
    anonymous: bool
    profile: str | None
    size: int
    interface: str
    transport: Transport


NAMES = tuple(Options.__annotations__)


class Settings(NamedTuple):
    """Options that were looked at. Their repr has no secrets: nothing reads an HttpOptions back."""

    device: str
    http: HttpOptions
    size: int
    interface: str
    transport: str
    deadline: float  # seconds; 0: none

    def open_session(self) -> Session:
        # Twice the connections: one that failed may still have pages when the next takes its place.
        flows = max(16, 2 * self.http.flows)
        return Session(self.device, size=self.size, interface=self.interface, transport=self.transport, max_flows=flows)


def settings_of(device: Any, options: Mapping[str, Any]) -> Settings:
    if unknown := [name for name in options if name not in NAMES]:
        raise TypeError(f"there is no keyword argument {unknown[0]!r}; the options are {', '.join(NAMES)}")
    gpu = parse_device(device)
    http = HttpOptions()
    for name in ("flows", "chunk_size", "min_speed", "attempts", "keep_connections"):
        if name in options:
            setattr(http, name, options[name])
    http.mirrors = _texts(options, "mirrors")
    deadline = options.get("deadline", 0)
    http.set_times(options.get("timeout", 30.0), deadline)
    http.set_checksum(options.get("checksum", "automatic"))
    _set_access(http, options)
    http.check()
    size, interface = options.get("size", 64 << 20), options.get("interface", "")
    return Settings("host" if gpu < 0 else f"gpu:{gpu}", http, size, interface, options.get("transport", "automatic"), deadline)


class Deadline:
    """Of several operations, one after the other: what is left for the next."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds if seconds else None

    def of(self, http: HttpOptions) -> HttpOptions:
        return http if self._until is None else http.with_deadline(self._until - time.monotonic())


def _set_access(http: HttpOptions, options: Mapping[str, Any]) -> None:
    http.set_headers(_headers(options))
    http.set_bearer(_text(options, "bearer"))
    ca = _file(options, "ca")
    is_directory = os.path.isdir(ca)
    http.set_tls("" if is_directory else ca, ca if is_directory else "", _file(options, "cert"), _file(options, "key"))
    if not isinstance(anonymous := options.get("anonymous", False), bool):
        raise TypeError(f"anonymous is a bool, not {type(anonymous).__name__}")
    endpoints = options.get("endpoint_url")
    endpoints = [endpoints] if isinstance(endpoints, str) else _texts(options, "endpoint_url", "a str or ")
    s3 = (endpoints, _text(options, "region"), anonymous, _text(options, "profile"))
    http.set_s3(*s3, _text(options, "addressing_style"))


def _texts(options: Mapping[str, Any], name: str, or_else: str = "") -> list[str]:
    given = options.get(name) or ()
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{name} is {or_else}a sequence of str: URLs")
    return list(given)


def _headers(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = options.get("headers") or {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise TypeError("headers is a mapping of str to str: names of header fields, and their values")
    return list(given.items())


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} is a str, not {type(value).__name__}")
    return value or ""


def _file(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is not None and not isinstance(path, str):
        raise TypeError(f"{name} is a path, not {type(value).__name__}")
    if path and "\n" in path:
        raise ValueError(f"{name} is the path of a file, and this is what one has in it")
    if path and not os.path.exists(path):
        raise ValueError(f"{name}: there is no {path!r}")
    return path or ""
