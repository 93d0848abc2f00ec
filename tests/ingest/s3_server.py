#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback with a few objects: s3_server.py FILE [FILE...], by the Python of tests/python/environment.sh.

Prints the URLs of these as a JSON object once it serves, and ends with its standard input:

    public    FILE, which anybody may read, and its CRC32C
    parts     the same, uploaded in parts: its checksum is one of checksums
    lying     other bytes than those that its CRC32C was made of
    empty     nothing
    private   FILE, which nobody may read
    signed    the same, with the permission in the URL
    missing   no object
    endpoint  of s3:// URLs, for anybody who signs: s3://models/KEY

FILEs behind the first are below the prefixes many/, and all but those that end in .json below bare/.
"""

import base64
import json
import logging
import sys
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from moto.server import ThreadedMotoServer

from crc import crc32c

BUCKET = "models"
PART = 5 << 20  # the least that S3 takes


def checksum(data: bytes) -> dict[str, str]:
    return {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()}


def upload_in_parts(s3: Any, key: str, data: bytes) -> None:
    where = {"Bucket": BUCKET, "Key": key}
    upload = s3.create_multipart_upload(**where, ACL="public-read", ChecksumAlgorithm="CRC32C")["UploadId"]
    parts = []
    for number, begin in enumerate(range(0, len(data), PART), start=1):
        part = data[begin:begin + PART]
        answer = s3.upload_part(**where, UploadId=upload, PartNumber=number, Body=part, **checksum(part))
        parts.append({"ETag": answer["ETag"], "PartNumber": number, "ChecksumCRC32C": checksum(part)["ChecksumCRC32C"]})
    s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})


def main() -> None:
    data = Path(sys.argv[1]).read_bytes()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    root = f"http://{host}:{port}"
    s3 = boto3.client("s3", endpoint_url=root, region_name="us-east-1", aws_access_key_id="id",
                      aws_secret_access_key="secret",
                      config=Config(signature_version="s3v4", s3={"addressing_style": "path"}))
    s3.create_bucket(Bucket=BUCKET)
    right = checksum(data)
    s3.put_object(Bucket=BUCKET, Key="public", Body=data, ACL="public-read", **right)
    s3.put_object(Bucket=BUCKET, Key="lying", Body=data[::-1], ACL="public-read", **right)
    s3.put_object(Bucket=BUCKET, Key="empty", Body=b"", ACL="public-read")
    s3.put_object(Bucket=BUCKET, Key="private", Body=data, **right)
    upload_in_parts(s3, "parts", data)
    urls = {key: f"{root}/{BUCKET}/{key}" for key in ("public", "parts", "lying", "empty", "private", "missing")}
    for more in map(Path, sys.argv[2:]):
        for prefix in ("many/", "bare/")[: 1 if more.suffix == ".json" else 2]:
            s3.put_object(Bucket=BUCKET, Key=prefix + more.name, Body=more.read_bytes())
    urls["endpoint"] = root
    urls["signed"] = s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "private"}, ExpiresIn=600)
    print(json.dumps(urls), flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
