# SPDX-License-Identifier: Apache-2.0
"""Keywords of all functions that take a URL. Only this module describes them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

from ._arguments import flag, seconds, text, whole
from ._credentials import library, supplier_of
from ._error import briefly
from ._native import HttpOptions, parse_device
from ._session import Session

Checksum = Literal["none", "automatic", "always"]
Transport = Literal["automatic", "devmem", "zcrx", "copy"]


class Options(TypedDict, total=False):
    """Keywords of load_safetensors(), safe_open(), load_file() and every other function that takes a URL.

    An invalid value raises a ValueError, a TypeError or an Error before gpurx connects.

    **Requests.**

    * flows=4: connections at a time, to all files of a model together.
    * chunk_size=8 << 20: bytes of one request.
    * timeout=30.0: seconds without a byte. gpurx then closes the connection and fetches the rest through a new one.
    * min_speed=1024: bytes per second. gpurx replaces a slower connection in the same way.
    * deadline=0: seconds for the whole load, from its opening on. A load that takes longer raises an Error, GAVE_UP. 0: no
      limit.
    * attempts=12: failures in a row of a connection after which the load fails. An answer of the server that it cannot
      serve now counts as a failure.
    * mirrors=(): more URLs of the same content; see below.
    * checksum="automatic": compare checksums; see below.
    * keep_connections=False: close connections after each fetch. True keeps the connections of a file open between fetches,
      which makes many small fetches faster. They count as flows of the session until the file is closed or another file of
      the model needs them.

    **Mirrors.** For a model of several files, a mirror is another URL of the index, prefix or directory.

    * Each connection uses one of the URLs. Failing and slow mirrors get fewer connections. If a mirror fails to bring some
      bytes, another one does.
    * Mirrors with different bytes raise an Error.
    * gpurx lists prefixes of S3 at `url` only.
    * A list of files, and files of this machine, take no mirrors.

    **Checksums.** gpurx compares the server's checksum of a file with all received bytes of the file: CRC32C, or
    CRC-64/NVME for bytes on the host.

    * "automatic" compares if the server has a checksum. gpurx asks S3 servers for it. Other servers may announce one for
      files of up to `chunk_size`.
    * "none" requests and computes nothing.
    * "always" computes the CRC32C of all bytes, also if the server has none.
    * A difference raises an Error, WRONG_CHECKSUM, that names the file. The call that brings the last bytes raises it, and
      returns nothing.
    * A load of only some tensors or slices of a file compares nothing. A failed call restarts the comparison.

    **Authentication and trust.** A keyword that is absent, None or empty takes its value from the environment, as with curl
    and AWS's tools. No message and no repr contains the value of a header, a token or a key.

    * headers, bearer: more header fields, and a token, for http, https and hf. The token is also for gs and az. gpurx does not send them to the target of a
      redirect that is on another host.
    * credentials: an identity for s3, gs, az, http, https and hf, instead of all others. It is a session or credentials of botocore, or
      credentials of google.auth or azure.identity. It can also be a function without parameters. The function returns header
      fields as a mapping, such a mapping and its end as a tuple, keys as `sts.assume_role()["Credentials"]` has them, or one of
      the above. An end is a datetime with a time zone, or seconds since 1970. gpurx calls the function in a thread of its own,
      once for all connections, again before the end, and once more if the server refuses the result. Headers go where `headers`
      go. A failure raises an Error, NO_CREDENTIALS, with the text of the exception.
    * ca: authorities that https trusts instead of the system's: a file of certificates, or a directory as `openssl rehash`
      makes it. All files are PEM.
    * cert, key: files of the client's certificate and of its key. The certificate comes first, then the chain to its
      authority. The key has no password. `key` may be absent if `cert` contains the key.
    * endpoint_url, region: server and region of S3, gs or az, if they are neither AWS's nor those of the environment. Several URLs are
      servers with the same buckets, such as the nodes of one store. gpurx then uses them for each s3:// URL as it uses
      mirrors.
    * addressing_style="auto": place of the bucket's name in a URL of S3. "virtual": before the host. "path": in the path.
      "auto": as the profile sets it; without such a setting, before the host for AWS and in the path for others.
    * Without `credentials`, gpurx looks for keys of S3 as AWS's tools do. If it finds none and botocore is installed, gpurx asks
      botocore, which knows SSO and roles; explain() of the session then says so. For gs, gpurx asks google.auth in the same
      way, which knows GOOGLE_APPLICATION_CREDENTIALS. For az, it takes a SAS token or an account's key from the environment, or
      asks azure.identity. Without credentials, requests to gs and az are unsigned.
    * anonymous=True: do not sign requests to S3, gs or az, and look for no credentials.
    * profile: profile of ~/.aws. Its credentials replace those of the environment. For gs, the profile has HMAC keys.

    **Session**, if the caller gives none:

    * size=64 << 20: bytes of memory of the device for the NIC to write into.
    * interface="", transport="automatic": NIC and transport; see Session.
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
    credentials: Any
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
    """Checked options. Their repr has no secrets, because HttpOptions returns none."""

    device: str
    http: HttpOptions
    size: int
    interface: str
    transport: str
    deadline: float  # seconds; 0: none

    def open_session(self) -> Session:
        # Twice the connections: a failed one may still have pages when the next replaces it.
        flows = max(16, 2 * self.http.flows)
        return Session(self.device, size=self.size, interface=self.interface, transport=self.transport, max_flows=flows)


@briefly
def settings_of(device: Any, options: Mapping[str, Any]) -> Settings:
    if unknown := [name for name in options if name not in NAMES]:
        raise TypeError(f"unknown keyword argument {unknown[0]!r}; the options are {', '.join(NAMES)}")
    gpu = parse_device(device)
    http = HttpOptions()
    for name, bits in (("flows", 32), ("chunk_size", 64), ("min_speed", 64), ("attempts", 32)):
        if name in options:
            setattr(http, name, whole(name, options[name], bits))
    http.keep_connections = flag("keep_connections", options.get("keep_connections", False))
    http.mirrors = _texts(options, "mirrors")
    deadline = seconds("deadline", options.get("deadline", 0))
    http.set_times(seconds("timeout", options.get("timeout", 30.0)), deadline)
    http.set_checksum(text("checksum", options.get("checksum", "automatic")))
    _set_access(http, options)
    http.check()
    size, interface = whole("size", options.get("size", 64 << 20)), text("interface", options.get("interface", ""))
    transport = text("transport", options.get("transport", "automatic"))
    return Settings("host" if gpu < 0 else f"gpu:{gpu}", http, size, interface, transport, deadline)


class Deadline:
    """Share one deadline among several operations in sequence: each gets the remaining time."""

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
        raise TypeError(f"anonymous must be a bool, not {type(anonymous).__name__}")
    endpoints = options.get("endpoint_url")
    endpoints = [endpoints] if isinstance(endpoints, str) else _texts(options, "endpoint_url", "a str or ")
    s3 = (endpoints, _text(options, "region"), anonymous, profile := _text(options, "profile"))
    http.set_s3(*s3, _text(options, "addressing_style"))
    if (given := options.get("credentials")) is not None:
        http.set_credentials(supplier_of(given), False)
    http.set_credentials(library(profile), True)


def _texts(options: Mapping[str, Any], name: str, or_else: str = "") -> list[str]:
    given = options.get(name) or ()
    if isinstance(given, str) or not isinstance(given, Iterable) or not all(isinstance(one, str) for one in given):
        raise TypeError(f"{name} must be {or_else}a sequence of str: URLs")
    return list(given)


def _headers(options: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = options.get("headers") or {}
    if not isinstance(given, Mapping) or not all(isinstance(one, str) for pair in given.items() for one in pair):
        raise TypeError("headers must be a mapping of str to str: names and values of header fields")
    return list(given.items())


def _text(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    return value or ""


def _file(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name)
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is not None and not isinstance(path, str):
        raise TypeError(f"{name} must be a path, not {type(value).__name__}")
    if path and "\n" in path:
        raise ValueError(f"{name} is the path of a file, and this value is the content of one")
    if path and not os.path.exists(path):
        raise ValueError(f"{name}: there is no {path!r}")
    return path or ""
