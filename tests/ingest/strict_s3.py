#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small S3 server that checks signatures, by botocore's own code, and does what tests need:

    strict_s3.py FILE [ADDRESS [SHARD...]]     by the Python of tests/python/environment.sh; without ADDRESS, on loopback

It hands out credentials as well, as an EC2 instance and as a container's agent, and serves with TLS as well. Prints both
URLs and the file of the authority whose certificate it has then, as a JSON array, and ends with its standard input. Objects, of which each has FILE's bytes:

    any key            as it is
    slow-down/N/…      the first N requests are answered 503 SlowDown
    expired/…          400 ExpiredToken; of expired/once/… the first time
    skewed/…           403 RequestTimeTooSkewed
    crc64/…, crc32/…   HEAD says the checksum, as S3 does; GET of a range does not
    wrong-crc64/…      HEAD says another
    at/PORT/…          307 to that port of this host
    shards/NAME        the bytes of the SHARD of that name; where that has crc64 or crc32 in it HEAD says that checksum, and another
                       where it has "wrong" too

The bucket "elsewhere" is in eu-west-1, and "strange" too, where only the body of the answer says so.
"""

import base64
import datetime
import ipaddress
import json
import ssl
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from crc import crc32c, crc64nvme

SECRETS = {"written-id": "written/secret+key", "instance-id": "instance-secret", "container-id": "container-secret",
           "short-id": "short-secret"}
TOKENS = {"instance-id": "instance-token", "container-id": "container-token", "short-id": "short-token"}
METADATA_TOKEN = "a-token=="
ROLE = "/latest/meta-data/iam/security-credentials/"
PAGE = 3
KEYS = [f"model/shard {number:02}+ä&<>.safetensors" for number in range(7)] + ["alone/model.safetensors", "model/", "other"]

data = b""
shards: dict[str, bytes] = {}
lock = threading.Lock()
counted: dict[str, int] = {}
checksums: dict[tuple[str, bytes], int] = {}


def count(what: str) -> int:
    with lock:
        counted[what] = counted.get(what, 0) + 1
        return counted[what]


def checksum(kind: str, of: bytes) -> int:
    with lock:
        if (kind, of) not in checksums:
            checksums[kind, of] = {"crc32": crc32c, "crc64": crc64nvme}[kind](of)
        return checksums[kind, of]


def expected_authorization(handler: BaseHTTPRequestHandler, given: str) -> str:
    """What botocore makes of the fields that the signature covers."""
    parts = dict(part.strip().split("=", 1) for part in given.removeprefix("AWS4-HMAC-SHA256").split(","))
    identity, _, region, _, _ = parts["Credential"].split("/")
    headers = {name: handler.headers[name] for name in parts["SignedHeaders"].split(";")
               if name not in ("x-amz-date", "x-amz-security-token", "x-amz-content-sha256")}
    request = AWSRequest(handler.command, "http://" + handler.headers["Host"] + handler.path, headers=headers)
    when = datetime.datetime.strptime(handler.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
    by = Credentials(identity, SECRETS.get(identity, "?"), TOKENS.get(identity))
    with lock:
        botocore.auth.get_current_datetime = lambda *_: when
        botocore.auth.S3SigV4Auth(by, "s3", region).add_auth(request)
    result: str = request.headers["Authorization"]
    return result


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes, **fields: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, message: str, more: str = "", **fields: str) -> None:
        self.answer(status, f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}'
                            f"</Message>{more}</Error>".encode(), **fields)

    # ---- who hands out credentials ----

    def do_PUT(self) -> None:
        if self.path == "/latest/api/token" and self.headers.get("x-aws-ec2-metadata-token-ttl-seconds"):
            self.answer(200, METADATA_TOKEN.encode())
        else:
            self.answer(404, b"")

    def hand_out(self, identity: str, lifetime: float) -> None:
        end = datetime.datetime.fromtimestamp(time.time() + lifetime, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        count(f"asked for {identity}")
        self.answer(200, f'{{"Code": "Success", "AccessKeyId": "{identity}", "SecretAccessKey": "{SECRETS[identity]}", '
                         f'"Token": "{TOKENS[identity]}", "Expiration": "{end}"}}'.encode())

    def metadata(self) -> None:
        if self.headers.get("x-aws-ec2-metadata-token") != METADATA_TOKEN:
            self.answer(401, b"")
        elif self.path == ROLE:
            self.answer(200, b"the-role\n")
        elif self.path == ROLE + "the-role":
            self.hand_out("instance-id", 3600)
        else:
            self.answer(404, b"")

    def container(self) -> None:
        if self.headers.get("Authorization") != "agent-token":
            self.answer(403, b"")
        elif self.path == "/container/short":  # so short that they are renewed before each request
            self.hand_out("short-id", 60)
        else:
            self.hand_out("container-id", 3600)

    # ---- S3 ----

    def is_signed(self, bucket: str) -> bool:
        given = self.headers.get("Authorization", "")
        if not given and bucket == "public":
            return True
        if not given:
            self.refuse(403, "AccessDenied", "Access Denied")
            return False
        region = given.split("/")[2]
        home = "eu-west-1" if bucket in ("elsewhere", "strange") else "us-east-1"
        if region != home and bucket == "elsewhere":
            self.refuse(301, "PermanentRedirect", "Another endpoint.", x_amz_bucket_region=home)
        elif region != home:
            self.refuse(400, "AuthorizationHeaderMalformed", "The region is wrong.", f"<Region>{home}</Region>")
        elif given != expected_authorization(self, given):
            self.refuse(403, "SignatureDoesNotMatch", "The signature does not match.")
        else:
            return True
        return False

    def list_objects(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        begin = int(query.get("continuation-token", ["0"])[0])
        keys = sorted(key for key in [*KEYS, *shards] if key.startswith(prefix))
        page = keys[begin:begin + PAGE]
        more = begin + PAGE < len(keys)
        contents = "".join(f"<Contents><Key>{escape(quote(key, safe=''))}</Key><Size>{len(key)}</Size>"
                           f"<ETag>&quot;{number}&quot;</ETag></Contents>" for number, key in enumerate(page))
        token = f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>" if more else ""
        self.answer(200, f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/'
                         f'doc/2006-03-01/"><Name>{bucket}</Name><EncodingType>url</EncodingType>'
                         f"<IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}</ListBucketResult>".encode())

    def do_HEAD(self) -> None:
        bucket, _, key = urlsplit(self.path).path[1:].partition("/")
        if not self.is_signed(bucket):
            return
        key = unquote(key)
        kind = key.removeprefix("shards/").partition("/")[0]
        whole = shards.get(key, data)
        fields = {"ETag": '"e"', "x-amz-checksum-type": "FULL_OBJECT"}
        if "crc64" in kind:
            number = checksum("crc64", whole) ^ ("wrong" in kind)
            fields["x-amz-checksum-crc64nvme"] = base64.b64encode(number.to_bytes(8, "big")).decode()
        if "crc32" in kind:
            number = checksum("crc32", whole) ^ ("wrong" in kind)
            fields["x-amz-checksum-crc32c"] = base64.b64encode(number.to_bytes(4, "big")).decode()
        self.answer(200, whole, **fields)

    def get_object(self, key: str) -> None:
        if key.startswith("slow-down/") and count(key) <= int(key.split("/")[1]):
            return self.refuse(503, "SlowDown", "Please reduce your request rate.")
        if key.startswith("expired/") and (not key.startswith("expired/once/") or count(key) == 1):
            return self.refuse(400, "ExpiredToken", "The provided token has expired.")
        if key.startswith("skewed/"):
            return self.refuse(403, "RequestTimeTooSkewed", "The difference is too large.",
                               "<RequestTime>20261123T100000Z</RequestTime><ServerTime>2026-11-23T12:00:00Z</ServerTime>")
        if key.startswith("at/"):
            here = self.server.server_address[0]
            return self.answer(307, b"", Location=f"http://{here}:{key.split('/')[1]}/key")
        if key.startswith("missing/"):
            return self.refuse(404, "NoSuchKey", "The specified key does not exist.")
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        whole = shards.get(key, data)
        part = whole[first:last + 1]
        return self.answer(206, part, ETag='"e"', Content_Range=f"bytes {first}-{first + len(part) - 1}/{len(whole)}")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if self.path == "/counted":
            with lock:
                return self.answer(200, repr(counted).encode())
        if parts.path.startswith("/latest/"):
            return self.metadata()
        if parts.path.startswith("/container/"):
            return self.container()
        bucket, _, key = parts.path[1:].partition("/")
        if not self.is_signed(bucket):
            return None
        if not key:
            return self.list_objects(bucket, parse_qs(parts.query))
        return self.get_object(unquote(key))


def certify(directory: Path, address: str) -> Path:
    """A certificate for that address, and its key, in one file; it vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "strict S3")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number())
                   .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
                   .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False)
                   .add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256()))
    file = directory / "certificate"
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return file


def serve(address: str, certificate: Path | None, handler: type[BaseHTTPRequestHandler] = Handler) -> str:
    server = ThreadingHTTPServer((address, 0), handler)
    server.daemon_threads = True
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"{'https' if certificate else 'http'}://{address}:{server.server_port}"


def main() -> None:
    global data
    data = Path(sys.argv[1]).read_bytes()
    address = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
    shards.update({f"shards/{Path(path).name}": Path(path).read_bytes() for path in sys.argv[3:]})
    checksum("crc32", data), checksum("crc64", data)  # before there is a client that waits for it
    ThreadingHTTPServer.request_queue_size = 64
    with tempfile.TemporaryDirectory(prefix="s3-") as directory:
        certificate = certify(Path(directory), address)
        print(json.dumps([serve(address, None), serve(address, certificate), str(certificate)]), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
