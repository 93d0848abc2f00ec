#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small server of Google Cloud Storage's XML API that checks who asks:

    strict_gcs.py DIRECTORY     by the Python of tests/python/environment.sh

Each bucket has the files below DIRECTORY; "public" is for everybody. It prints its URL, and ends with its standard input. Its rules
are those of Google's documentation:

* A request has a bearer token, or a signature of HMAC keys by the process of AWS, or is for a public bucket.
* Fields x-amz-… need such a signature.
* x-goog-hash is that of the whole object, also with a range: in one field, or in two if the object's name has "two". If it has "wrong",
  the checksum is another. Objects above 4 MiB have none: Python needs long for it.
"""

import base64
import hashlib
import sys
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import strict_s3
from strict_s3 import PAGE, checksum, expected_authorization

BEARERS = ("Bearer secret", "Bearer of-google")
strict_s3.SECRETS["GOOG1EXAMPLE"] = "hmac/secret+key"
SUMMED_UP = 4 << 20
objects: dict[str, bytes] = {}


class Handler(strict_s3.Handler):
    def is_allowed(self, bucket: str) -> bool:
        given = self.headers.get("Authorization", "")
        has_amz = any(name.lower().startswith("x-amz-") for name in self.headers)
        if given.startswith("AWS4-HMAC-SHA256 "):
            _, date, region, service, _ = given.split("Credential=")[1].split(",")[0].split("/")
            if (date, region, service) != (self.headers["x-amz-date"][:8], "auto", "s3"):
                self.refuse(400, "InvalidArgument", "The credential scope is wrong.")
            elif given != expected_authorization(self, given):
                self.refuse(403, "SignatureDoesNotMatch", "Access denied.")
            else:
                return True
        elif has_amz:
            self.refuse(400, "InvalidArgument", "x-amz fields need a signature.")
        elif given and given not in BEARERS:
            self.refuse(401, "AuthenticationRequired", "Authentication required.")
        elif not given and bucket != "public":
            self.refuse(403, "AccessDenied", "Access denied.", "<Details>Anonymous caller has no access.</Details>")
        else:
            return True
        return False

    def list_objects(self, bucket: str, query: dict[str, list[str]]) -> None:
        if query.get("list-type") != ["2"] or query.get("encoding-type") != ["url"]:
            return self.refuse(400, "InvalidArgument", "This server lists by version 2 only.")
        prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        begin = int(query.get("continuation-token", ["0"])[0])
        keys = sorted(key for key in objects if key.startswith(prefix))
        if delimiter:
            keys = [key for key in keys if delimiter not in key[len(prefix):]]
        page, more = keys[begin:begin + PAGE], begin + PAGE < len(keys)
        contents = "".join(f"<Contents><Key>{escape(quote(key, safe=''))}</Key><Generation>1</Generation><Size>{len(objects[key])}"
                           f"</Size><ETag>&quot;{number}&quot;</ETag></Contents>" for number, key in enumerate(page))
        token = f"<NextContinuationToken>{begin + PAGE}</NextContinuationToken>" if more else ""
        return self.answer(200, f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'>"
                                f"<Name>{bucket}</Name><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>"
                                f"{contents}{token}</ListBucketResult>".encode())

    def do_HEAD(self) -> None:
        self.refuse(400, "InvalidArgument", "Nobody needs to ask.")

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        bucket, _, key = parts.path[1:].partition("/")
        if not self.is_allowed(bucket):
            return None
        if not key:
            return self.list_objects(bucket, parse_qs(parts.query))
        if (whole := objects.get(unquote(key))) is None:
            return self.refuse(404, "NoSuchKey", "The specified key does not exist.")
        hashes = [f"md5={base64.b64encode(hashlib.md5(whole).digest()).decode()}"]
        if len(whole) <= SUMMED_UP:
            crc = checksum("crc32", whole) ^ ("wrong" in key)
            hashes.append(f"crc32c={base64.b64encode(crc.to_bytes(4, 'big')).decode()}")
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = whole[first:last + 1]
        self.send_response(206)
        fields = {"Content-Length": str(len(part)), "Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(whole)}", "ETag": '"e"'}
        for name, value in fields.items():
            self.send_header(name, value)
        for value in hashes if "two" in key else [",".join(reversed(hashes))]:
            self.send_header("x-goog-hash", value)
        self.end_headers()
        self.wfile.write(part)
        return None


def main() -> None:
    directory = Path(sys.argv[1])
    objects.update({str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()})
    for one in objects.values():
        if len(one) <= SUMMED_UP:
            checksum("crc32", one)  # before there is a client that waits for it
    print(strict_s3.serve("127.0.0.1", None, Handler), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
