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
    """Keywords of load_safetensors(), safe_open(), load_file() and others that take a URL. A value that cannot be right raises
    ValueError, TypeError or Error before any request.

    Requests:

    * flows=4: connections at one time, for all files of a model together.
    * chunk_size=8 << 20: bytes of one request.
    * timeout=30.0: seconds without a byte before a connection is replaced. The new one fetches the rest.
    * min_speed=1024: least bytes per second; a slower connection is replaced, too.
    * deadline=0: seconds for the whole load, from the opening on. The load raises Error, GAVE_UP, then. 0: no limit.
    * attempts=12: failures in a row, of a connection or with a busy server, before the load fails.
    * mirrors=(): more URLs of the same file, or of the same index, prefix or directory of a model. Connections spread over all
      of them; fewer go to slow or failing ones, and another mirror fetches the missing bytes. Mirrors with different bytes
      raise Error. S3 prefixes are listed at `url`. Not for a list of files, nor for files of this machine.
    * checksum="automatic": compares the server's checksum of a whole file with the received bytes: CRC32C, or CRC-64/NVME for
      bytes on the host. A mismatch raises Error, WRONG_CHECKSUM, with the name of the file, in the call that fetches its last
      bytes; that call returns nothing. S3 servers are asked for the checksum; others send it, if at all, with files of up to
      `chunk_size`. Without all bytes of a file there is nothing to compare; a call that fails starts anew. "none": no
      checksum. "always": computes CRC32C of all bytes, also without one to compare.
    * keep_connections=False: True keeps connections between the fetches of one file, which makes many fetches faster. They
      count as flows of the session until the file is closed, or another file of the model needs them.

    Identity and trust. An option left out, None or empty comes from the environment, as for curl and AWS's tools. No message
    and no repr has the value of a header, a token or a key.

    * headers, bearer: more fields of requests, and a token, for http and https. They do not follow redirects.
    * ca: trusted authorities of https instead of the system's: a file of certificates, or a directory of them as `openssl
      rehash` makes it. All files are PEM.
    * cert, key: client certificate: a file with the certificate and the chain to its authority, and a file with its key,
      without a password, if that is another file.
    * endpoint_url, region: S3 server and region, if not AWS's or the environment's. Several URLs: servers with the same
      buckets, as nodes of one store; they serve each s3:// URL as mirrors do.
    * addressing_style="auto": place of the bucket's name: "virtual", in front of the host; "path", in the path; "auto": the
      profile's, else by host for AWS and by path for others.
    * anonymous=True: requests to S3 are not signed, and no credentials are looked up.
    * profile: profile of ~/.aws, whose credentials replace those in the environment.

    Session, if none is given:

    * size=64 << 20: bytes of memory of the device that the NIC may fill.
    * interface="", transport="automatic": the NIC and the transport; see Session.
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
        raise ValueError(f"{name} is the path of a file, and this value is the content of one")
    if path and not os.path.exists(path):
        raise ValueError(f"{name}: there is no {path!r}")
    return path or ""
