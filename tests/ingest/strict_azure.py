#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small server of Azure Blob Storage that checks who asks:

    strict_azure.py DIRECTORY     by the Python of tests/python/environment.sh

The account is in the path, as in Azurite's URLs. Each container has the files below DIRECTORY; "public" is for everybody. It prints
its URL, and ends with its standard input. Its rules are those of Microsoft's documentation:

* Each request has x-ms-version. One has a bearer token, a Shared Key signature of the last 15 minutes, or all of the SAS token.
* Another account than account has only public containers, and refuses requests with any secret.
* A list has a Blob for each directory, and only metadata tells it from an empty object. Names that XML cannot have are encoded.

Objects behind these names are as without them:

    busy/N/…        the first N requests are answered 503 ServerBusy
    expired/…       403 AuthenticationFailed; of expired/once/… the first time
    silent/…        403 without a body
    at/PORT/…       307 to that port of this host
"""

import base64
import email.utils
import hmac
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import strict_s3
from servers import StrictAzure
from strict_s3 import PAGE, count

ACCOUNT, VERSION = "account", "2024-11-04"
KEY, SAS = StrictAzure.KEY, StrictAzure.SAS
BEARERS = ("Bearer secret", "Bearer for-https://storage.azure.com/.default")
SIGNED = ("Content-Encoding", "Content-Language", "Content-Length", "Content-MD5", "Content-Type", "Date", "If-Modified-Since",
          "If-Match", "If-None-Match", "If-Unmodified-Since", "Range")
objects: dict[str, bytes] = {}


class Handler(strict_s3.Handler):
    def refuse(self, status: int, code: str, message: str, more: str = "", **fields: str) -> None:
        super().refuse(status, code, f"{message}\nRequestId:1\nTime:2", more, x_ms_error_code=code, **fields)

    def signature(self) -> str:
        parts = urlsplit(self.path)
        lines = [self.command, *(self.headers.get(name, "") for name in SIGNED)]
        fields = sorted((name.lower(), value) for name, value in self.headers.items() if name.lower().startswith("x-ms-"))
        parameters = sorted((name.lower(), ",".join(sorted(values))) for name, values in parse_qs(parts.query, True).items())
        lines += [f"{name}:{value}" for name, value in fields] + [f"/{ACCOUNT}{parts.path}"]
        lines += [f"{name}:{value}" for name, value in parameters]
        digest = hmac.digest(base64.b64decode(KEY), "\n".join(lines).encode(), "sha256")
        return f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"

    def is_recent(self) -> bool:
        date = self.headers.get("x-ms-date", "")
        when = email.utils.parsedate_to_datetime(date).timestamp() if date.endswith(" GMT") else 0.0
        return abs(time.time() - when) < 900

    def is_allowed(self, account: str, container: str) -> bool:
        given, query = self.headers.get("Authorization", ""), urlsplit(self.path).query
        has_sas = query == SAS or query.endswith("&" + SAS)
        if self.headers.get("x-ms-version") != VERSION or any(name.lower().startswith("x-amz-") for name in self.headers):
            self.refuse(400, "InvalidHeaderValue", "The value for one of the HTTP headers is not in the correct format.")
        elif account != ACCOUNT and (given or "sig=" in query):
            self.refuse(400, "InvalidInput", "This account has no secrets.")
        elif given.startswith("SharedKey ") and not (self.is_recent() and given == self.signature()) or "sig=" in query and not has_sas:
            self.refuse(403, "AuthenticationFailed", "Server failed to authenticate the request.")
        elif given.startswith("Bearer ") and given not in BEARERS:
            self.refuse(401, "InvalidAuthenticationInfo", "Server failed to authenticate the request.")
        elif not given and not has_sas and container != "public":
            self.refuse(401, "NoAuthenticationInformation", "Server failed to authenticate the request.")
        else:
            return True
        return False

    def list_blobs(self, query: dict[str, str]) -> None:
        prefix, marker = query.get("prefix", ""), query.get("marker", "<0>")
        if query.get("comp") != "list" or not marker.startswith("<") or not 0 < int(query.get("maxresults", "5000")) <= 5000:
            return self.refuse(400, "InvalidQueryParameterValue", "Value for one of the query parameters is invalid.")
        begin = int(marker[1:-1])
        names = sorted(name for name in objects if name.startswith(prefix))
        if "delimiter" in query:
            names = [name for name in names if "/" not in name[len(prefix):].rstrip("/")]
        blobs = "".join(self.blob(name, "metadata" in query.get("include", "")) for name in names[begin:begin + PAGE])
        token = f"<{begin + PAGE}>" if begin + PAGE < len(names) else ""
        return self.answer(200, f'\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="http://h/" '
                                f'ContainerName="c"><Prefix>{escape(prefix)}</Prefix><Blobs>{blobs}<BlobPrefix><Name>x/</Name>'
                                f"</BlobPrefix></Blobs><NextMarker>{escape(token)}</NextMarker></EnumerationResults>".encode(),
                           Content_Type="application/xml")

    @staticmethod
    def blob(name: str, with_metadata: bool) -> str:
        is_directory = (Path(sys.argv[1]) / name).is_dir() and not name.endswith("/")
        metadata = "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>" if is_directory and with_metadata else ""
        written = f'<Name Encoded="true">{quote(name)}</Name>' if "\ufffe" in name else f"<Name>{escape(name)}</Name>"
        return (f"<Blob>{written}<Properties><Content-Length>{len(objects[name])}</Content-Length><Etag>0x8D</Etag></Properties>"
                f"{metadata}</Blob>")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        account, container, name = (*parts.path[1:].split("/", 2), "", "")[:3]
        if not self.is_allowed(account, container):
            return None
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if query.get("restype") == "container":
            return self.list_blobs(query)
        kind, _, rest = unquote(name).partition("/")
        how, _, key = rest.partition("/")
        if kind == "busy" and count(name) <= int(how):
            return self.refuse(503, "ServerBusy", "The server is busy.")
        if kind == "expired" and (how != "once" or count(name) == 1):
            return self.refuse(403, "AuthenticationFailed", "Server failed to authenticate the request.")
        if kind == "silent":
            return self.answer(403, b"", x_ms_error_code="AuthorizationPermissionMismatch")
        if kind == "at":
            return self.answer(307, b"", Location=f"http://127.0.0.1:{how}/key")
        whole = objects.get(key if kind in ("busy", "expired") else unquote(name))
        if whole is None:
            return self.refuse(404, "BlobNotFound", "The specified blob does not exist.")
        asked = self.headers.get("x-ms-range") or self.headers["Range"]
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = whole[first:last + 1]
        return self.answer(206, part, ETag='"0x8D"', Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(whole)}")


def main() -> None:
    directory = Path(sys.argv[1])
    for path in directory.rglob("*"):
        objects[str(path.relative_to(directory))] = b"" if path.is_dir() else path.read_bytes()
    objects["llama/"] = b""
    print(strict_s3.serve("127.0.0.1", None, Handler), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
