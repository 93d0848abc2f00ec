# SPDX-License-Identifier: Apache-2.0
"""An S3 server on loopback with the files of a directory in its bucket "models":  bucket.py DIRECTORY PREFIX, by the Python of
tests/python/environment.sh. Prints its endpoint once it serves, and ends with its standard input."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import boto3
from moto.server import ThreadedMotoServer


def main() -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3 = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="id", aws_secret_access_key="secret"
    )
    s3.create_bucket(Bucket="models")
    for path in Path(sys.argv[1]).iterdir():
        s3.put_object(Bucket="models", Key=sys.argv[2] + path.name, Body=path.read_bytes())
    print(endpoint, flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
