#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares signatures with botocore's: s3_signatures.py PROGRAM, by the Python of tests/python/environment.sh.

PROGRAM is s3_probe.cpp. The requests are random, and the same each time.
"""

import datetime
import json
import random
import subprocess
import sys
from typing import Any
from urllib.parse import quote

import botocore.auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

COUNT = 1000
CHARACTERS = [chr(code) for code in range(1, 128)] + list("äßé漢字🙂\u00a0\u2028")
VISIBLE = [chr(code) for code in range(33, 127)]


def text(rng: random.Random, of: list[str], most: int, least: int = 0) -> str:
    return "".join(rng.choices(of, k=rng.randint(least, most)))


def request(rng: random.Random) -> dict[str, Any]:
    host = rng.choice(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "[::1]:9000", "storage"])
    fields = {"Host": host, "Range": f"bytes={rng.randint(0, 10**12)}-{10**13}", "x-amz-checksum-mode": "ENABLED",
              "X-Amz-Odd": " " + text(rng, ["a", "B", " ", "  ", "\t", "\"", ";"], 20)}
    moment = datetime.datetime(rng.randint(1971, 2099), 1, 1) + datetime.timedelta(seconds=rng.randrange(31_000_000))
    return {
        "method": rng.choice(["GET", "HEAD"]),
        "path": text(rng, [*CHARACTERS, "/", "/", "//", "..", "."], 60),
        "query": [[text(rng, CHARACTERS, 12, 1), text(rng, CHARACTERS, 20)] for _ in range(rng.randint(0, 5))],
        "fields": dict(rng.sample(sorted(fields.items()), rng.randint(1, 4)), Host=host),
        "payload": rng.choice(["UNSIGNED-PAYLOAD", botocore.auth.EMPTY_SHA256_HASH]),
        "access_key": "AKIA" + text(rng, VISIBLE[15:25], 16, 1),
        "secret_key": text(rng, VISIBLE, 60, 1),
        "session_token": rng.choice(["", text(rng, VISIBLE, 1000, 1)]),
        "region": rng.choice(["us-east-1", "eu-central-2", "cn-north-1", "auto", "x"]),
        "time": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def expected(of: dict[str, Any]) -> list[str]:
    target = "/" + quote(of["path"], safe="/~")
    if of["query"]:
        target += "?" + "&".join(f"{quote(name, safe='~')}={quote(value, safe='~')}" for name, value in of["query"])
    host = of["fields"]["Host"]
    plain = AWSRequest(of["method"], "https://" + host + target, headers=of["fields"])
    plain.context["payload_signing_enabled"] = True
    plain.context["client_config"] = type("Config", (), {"s3": {
        "payload_signing_enabled": of["payload"] != "UNSIGNED-PAYLOAD"}})
    when = datetime.datetime.fromisoformat(of["time"].replace("Z", "+00:00"))
    botocore.auth.get_current_datetime = lambda *_: when
    by = Credentials(of["access_key"], of["secret_key"], of["session_token"] or None)
    botocore.auth.S3SigV4Auth(by, "s3", of["region"]).add_auth(plain)
    return [target, plain.headers["Authorization"]]


def main() -> None:
    rng = random.Random(15)
    requests = [request(rng) for _ in range(COUNT)]
    done = subprocess.run([sys.argv[1], "sign"], input="\n".join(map(json.dumps, requests)) + "\n", stdout=subprocess.PIPE,
                          text=True, timeout=60, check=True)
    signed = done.stdout.splitlines()
    different = [(each, line) for each, line in zip(requests, signed, strict=True)
                 if json.loads(line) != expected(each)]
    for each, line in different[:3]:
        print(f"{json.dumps(each)}\n  here     {line}\n  botocore {json.dumps(expected(each))}")
    if different:
        sys.exit(f"{len(different)} of {COUNT} signatures differ from botocore's")
    print(f"{COUNT} signatures are botocore's")


if __name__ == "__main__":
    main()
