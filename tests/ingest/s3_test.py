#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""s3:// against what others have written: botocore's signatures, moto's server, and one that checks every request; gs:// and
az:// against servers of that kind: s3_test.py PROBE FETCH [DIRECTORY].

PROBE is s3_probe.cpp, FETCH gpurx-fetch; DIRECTORY has the fake CUDA driver.
"""

import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import fetching
from fetching import FetchTest
from servers import S3Server, StrictAzure, StrictGcs, StrictS3, python_program

HERE = Path(__file__).resolve().parent
DATA = random.Random(3).randbytes(3_000_001)
WRITTEN = {"AWS_ACCESS_KEY_ID": "written-id", "AWS_SECRET_ACCESS_KEY": "written/secret+key"}
LISTED = [f"model/shard {number:02}+ä&<>.safetensors" for number in range(7)]

KEY, SAS = StrictAzure.KEY, StrictAzure.SAS

probe = ""
data_file: Path
strict: StrictS3
root = secure_root = authority = ""  # of the strict server


def setUpModule() -> None:
    global data_file, strict, root, secure_root, authority
    descriptor, name = tempfile.mkstemp(prefix="s3-")
    os.close(descriptor)
    data_file = Path(name)
    data_file.write_bytes(DATA)
    strict = StrictS3(data_file)
    root, secure_root, authority = strict.endpoint, strict.secure_endpoint, strict.authority


def tearDownModule() -> None:
    strict.stop()
    data_file.unlink()


class S3Test(FetchTest):
    """The programs get this environment, and nothing of the tester's."""

    def setUp(self) -> None:
        super().setUp()
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        self.addCleanup(os.environ.clear)
        for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
            del os.environ[name]
        os.environ.update({"HOME": str(self.directory), "AWS_ENDPOINT_URL_S3": root, "AWS_EC2_METADATA_DISABLED": "true"})

    @classmethod
    def serve(cls, kind: type[StrictGcs], *names: str) -> str:
        """Return the URL of a server with such objects."""
        objects = Path(tempfile.mkdtemp(prefix="s3-"))
        cls.addClassCleanup(shutil.rmtree, objects)
        for name in names:
            (objects / name).parent.mkdir(parents=True, exist_ok=True)
            (objects / name).write_bytes(DATA)
        server = kind(objects)
        cls.addClassCleanup(server.stop)
        return server.endpoint

    def probe(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        environment = dict(os.environ, LD_LIBRARY_PATH=fetching.driver) if fetching.driver else None
        done = subprocess.run([probe, *arguments], env=environment, capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stdout, done.stderr

    def listed(self, prefix: str) -> list[list[Any]]:
        result: list[list[Any]] = json.loads(self.probe("list", prefix)[0])
        return result

    def check_denied(self, url: str, *words: str) -> None:
        said = self.refused(url, "--attempts", "2")
        for each in words:
            self.assertIn(each, said)
        for secret in ("written/secret", "-token", "-secret", KEY.rstrip("="), "%2Bb"):
            self.assertNotIn(secret, said)

    def seen_elsewhere(self, bucket: str, *arguments: str) -> list[str]:
        """Requests that another server gets, to which the strict one redirects."""
        seen: list[str] = []

        class Other(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                seen.append(f"{self.requestline}\n{self.headers}")
                self.send_response(200)
                self.send_header("Content-Length", str(len(DATA)))
                self.end_headers()
                self.wfile.write(DATA)

        with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
            threading.Thread(target=other.serve_forever).start()
            try:
                self.check(f"{bucket}/at/{other.server_port}/key", *arguments, data=DATA)
            finally:
                other.shutdown()
        self.assertTrue(seen)
        return seen

    def counted(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{root}/counted") as answer:
            result: dict[str, int] = ast.literal_eval(answer.read().decode())
        return result


class Signatures(S3Test):
    def test_a_thousand_requests_are_signed_as_botocore_signs_them(self) -> None:
        done = subprocess.run([python_program(), HERE / "s3_signatures.py", probe], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("1000 signatures are botocore's", done.stdout)

    def test_each_request_of_a_download_is_signed(self) -> None:
        os.environ.update(WRITTEN)
        for key in ("key", "model/a b+c%20?x=1&y#z", "//odd/./../key", "ä/漢字", "~*'()!$,;:@="):
            with self.subTest(key):
                report = self.check_undisturbed(f"s3://models/{key}", "--chunk-size", "300KiB", data=DATA)
                self.assertGreaterEqual(report["requests"], 10)

    def test_a_wrong_key_is_refused_and_not_shown(self) -> None:
        os.environ.update(WRITTEN, AWS_SECRET_ACCESS_KEY="written/secret-wrong")
        self.check_denied("s3://models/key", "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY")


class WhoAsks(S3Test):
    def test_a_profile(self) -> None:
        (self.directory / ".aws").mkdir()
        (self.directory / ".aws/credentials").write_text(
            "[work]\naws_access_key_id = written-id\naws_secret_access_key = written/secret+key\n")
        (self.directory / ".aws/config").write_text(f"[profile work]\nendpoint_url = {root}\nregion = us-east-1\n")
        del os.environ["AWS_ENDPOINT_URL_S3"]
        os.environ["AWS_PROFILE"] = "work"
        self.check("s3://models/key", data=DATA)
        os.environ["AWS_PROFILE"] = "none"
        os.environ.update(WRITTEN, AWS_SECRET_ACCESS_KEY="written/secret-wrong")
        self.check("s3://models/key", "--s3-profile", "work", data=DATA)

    def test_nobody_is_told_what_would_make_him_somebody(self) -> None:
        self.check_denied("s3://models/key", "credentials for S3", "AWS_PROFILE")

    def test_everybody(self) -> None:
        self.check("s3://public/key", "--s3-anonymous", data=DATA)
        self.check_denied("s3://models/key", "credentials")
        self.assertIn("AccessDenied", self.refused("s3://models/key", "--s3-anonymous"))

    def test_an_instance_by_version_2_of_its_metadata_service(self) -> None:
        del os.environ["AWS_EC2_METADATA_DISABLED"]
        os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = root
        before = self.counted().get("asked for instance-id", 0)
        self.check("s3://models/key", "--chunk-size", "300KiB", data=DATA)
        self.assertEqual(self.counted()["asked for instance-id"], before + 1)

    def test_no_instance(self) -> None:
        del os.environ["AWS_EC2_METADATA_DISABLED"]
        os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = f"{root}/nowhere"
        self.check_denied("s3://models/key", "no EC2 instance", "404")

    def test_a_container(self) -> None:
        token = self.directory / "token"
        token.write_text("agent-token\n")
        os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{root}/container/long",
                          AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token))
        self.check("s3://models/key", data=DATA)
        token.write_text("another")
        self.check_denied("s3://models/key", "/container/long", "403")
        os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://storage.invalid/credentials"
        self.check_denied("s3://models/key", "must be on this machine")

    def test_the_program_of_a_profile(self) -> None:
        """It runs once if its credentials last, and before each request if they end soon."""
        program, runs = self.directory / "a program", self.directory / "runs"

        def write(end: str) -> None:
            answer = f'{{"Version": 1, "AccessKeyId": "short-id", "SecretAccessKey": "short-secret", "SessionToken": "$2"{end}}}'
            program.write_text(f"#!/bin/sh\necho run >> '{runs}'\ncat <<END\n{answer}\nEND\n")
            program.chmod(0o700)
            runs.write_text("")

        (self.directory / ".aws").mkdir()
        (self.directory / ".aws/config").write_text(f"[default]\ncredential_process = \"{program}\" --token 'short-token'\n")
        write("")
        self.check("s3://models/key", "--chunk-size", "300KiB", data=DATA)
        self.assertEqual(runs.read_text(), "run\n")
        write(', "Expiration": "\'$(date -u -d "+60 seconds" +%FT%TZ)\'"'.replace("'", ""))
        self.check("s3://models/key", "--chunk-size", "1MiB", "--flows", "1", data=DATA)
        self.assertGreaterEqual(len(runs.read_text()), 3 * len("run\n"))
        program.write_text("#!/bin/sh\necho the vault is sealed >&2\nexit 4\n")
        self.check_denied("s3://models/key", str(program), "ended with status 4: the vault is sealed")

    def test_credentials_that_end_soon_are_renewed(self) -> None:
        os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{root}/container/short",
                          AWS_CONTAINER_AUTHORIZATION_TOKEN="agent-token")
        self.check("s3://models/key", "--chunk-size", "1MiB", "--flows", "1", data=DATA)
        self.assertGreaterEqual(self.counted()["asked for short-id"], 3)

    def test_credentials_of_which_the_server_says_that_they_have_ended_are_renewed_once(self) -> None:
        os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{root}/container/long",
                          AWS_CONTAINER_AUTHORIZATION_TOKEN="agent-token")
        before = self.counted().get("asked for container-id", 0)
        self.check("s3://models/expired/once/key", data=DATA)
        self.assertEqual(self.counted()["asked for container-id"], before + 2)
        self.check_denied("s3://models/expired/key", "ExpiredToken")


class Sts(ThreadingHTTPServer):
    """STS, which takes each token once and writes the next one to the file. `says`: its first answers, in place of others."""

    def __init__(self, token: Path, lifetime: int) -> None:
        super().__init__(("127.0.0.1", 0), StsHandler)
        self.token, self.lifetime = token, lifetime
        self.asked: list[dict[str, str]] = []
        self.says: list[tuple[int, str, str]] = []
        self.ends = threading.Event()
        token.write_text("web-token-0\n")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class StsHandler(BaseHTTPRequestHandler):
    server: Sts

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, text: str, location: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        sts, body = self.server, self.rfile.read(int(self.headers["Content-Length"])).decode()
        sts.asked.append(dict(parse_qsl(body, strict_parsing=True)) | {"": self.path})
        if sts.says:
            status, code, location = sts.says.pop(0)
            if not status:  # silence
                sts.ends.wait()
                return None
            return self.answer(status, f"<ErrorResponse><Error><Code>{code}</Code><Message>of STS</Message></Error></ErrorResponse>", location)
        if sts.asked[-1]["WebIdentityToken"] != sts.token.read_text().strip():
            return self.answer(400, "<ErrorResponse><Error><Code>ExpiredTokenException</Code></Error></ErrorResponse>")
        sts.token.write_text(f"web-token-{len(sts.asked)}\n")
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + sts.lifetime))
        return self.answer(200, "<A xmlns='https://sts.amazonaws.com/doc/2011-06-15/'><R><Credentials><AccessKeyId>short-id</AccessKeyId>"
                                f"<SecretAccessKey>short-secret</SecretAccessKey><SessionToken>short-token</SessionToken>"
                                f"<Expiration>{end}</Expiration></Credentials></R></A>")


class WebIdentity(S3Test):
    def serve(self, lifetime: int = 3600) -> Sts:
        sts = Sts(self.directory / "web token", lifetime)
        threading.Thread(target=sts.serve_forever, kwargs={"poll_interval": 0.02}).start()
        self.addCleanup(sts.server_close)
        self.addCleanup(sts.shutdown)
        self.addCleanup(sts.ends.set)
        os.environ.update(AWS_ROLE_ARN="arn:aws:iam::1:role/a+b", AWS_WEB_IDENTITY_TOKEN_FILE=str(sts.token), AWS_ENDPOINT_URL_STS=sts.url)
        return sts

    def test_sts_takes_the_token_for_keys(self) -> None:
        sts = self.serve()
        self.check("s3://models/key", "--chunk-size", "300KiB", data=DATA)
        self.assertEqual(sts.asked, [{"": "/", "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15",
                                      "RoleArn": "arn:aws:iam::1:role/a+b", "RoleSessionName": "gpurx", "WebIdentityToken": "web-token-0"}])

    def test_a_renewal_reads_the_file_of_the_token_again(self) -> None:
        sts = self.serve(lifetime=60)  # so short that each request renews them
        self.check("s3://models/key", "--chunk-size", "1MiB", "--flows", "1", data=DATA)
        self.assertGreaterEqual(len(sts.asked), 3)
        self.assertEqual([each["WebIdentityToken"] for each in sts.asked], [f"web-token-{n}" for n in range(len(sts.asked))])

    def test_a_refusal_is_shown_and_no_other_identity_is_taken(self) -> None:
        sts = self.serve()
        del os.environ["AWS_EC2_METADATA_DISABLED"]
        os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{root}/container/long", AWS_CONTAINER_AUTHORIZATION_TOKEN="agent-token",
                          AWS_EC2_METADATA_SERVICE_ENDPOINT=root)
        before = self.counted()
        sts.says = [(403, "AccessDenied", "")]
        self.check_denied("s3://models/key", sts.url, "403 Forbidden: AccessDenied: of STS")
        self.assertEqual(len(sts.asked), 1)
        sts.token.unlink()
        self.check_denied("s3://models/key", str(sts.token), "cannot be read")
        self.assertEqual((len(sts.asked), self.counted()), (1, before))

    def test_it_is_asked_again_where_that_may_help(self) -> None:
        sts = self.serve()
        for says in [(503, "ServiceUnavailable", ""), (429, "x", ""), (400, "Throttling", ""), (400, "IDPCommunicationError", "")]:
            with self.subTest(says):
                sts.says, begun = [says, says], len(sts.asked)
                self.check("s3://models/key", data=DATA)
                self.assertEqual(len(sts.asked), begun + 3)
        sts.says = [(503, "ServiceUnavailable", "")] * 3
        self.check_denied("s3://models/key", "3 attempts", "ServiceUnavailable: of STS")

    def test_the_token_follows_no_redirect_and_is_not_sent_in_the_clear(self) -> None:
        sts = self.serve()
        sts.says = [(307, "x", f"{sts.url}/other")]
        self.check_denied("s3://models/key", "307")
        self.assertEqual([each[""] for each in sts.asked], ["/"])
        os.environ["AWS_ENDPOINT_URL_STS"] = "http://sts.invalid"
        self.check_denied("s3://models/key", "must be https, or on this machine")

    def test_the_deadline_ends_the_wait_for_sts(self) -> None:
        sts = self.serve()
        sts.says = [(0, "", "")] * 3
        said = self.refused("s3://models/key", "--deadline", "1")
        self.assertIn("no answer within", said)
        self.assertNotIn("10000 ms", said)

    def test_sts_over_https_by_the_authorities_of_the_environment(self) -> None:
        """The strict server is no STS, but has a certificate."""
        self.serve()
        os.environ["AWS_ENDPOINT_URL_STS"] = f"{secure_root}/sts"
        self.check_denied("s3://models/key", "certificate")
        os.environ["AWS_CA_BUNDLE"] = authority
        self.check_denied("s3://models/key", f"{secure_root}/sts", "501")


class WhatServersSay(S3Test):
    def setUp(self) -> None:
        super().setUp()
        os.environ.update(WRITTEN)

    def test_a_bucket_in_another_region(self) -> None:
        for bucket in ("elsewhere", "strange"):
            with self.subTest(bucket):
                self.assertEqual(self.check(f"s3://{bucket}/key", data=DATA)["redirects"], 1)
                self.check_undisturbed(f"s3://{bucket}/key", "--s3-region", "eu-west-1", data=DATA)
        os.environ["AWS_REGION"] = "EU west"
        self.check_denied("s3://models/key", "lower-case letters")

    def test_slow_down(self) -> None:
        report = self.check("s3://models/slow-down/3/key", data=DATA)
        self.assertEqual(report["retries"], 3)
        self.check_denied("s3://models/slow-down/99/key", "503", "SlowDown: Please reduce your request rate")

    def test_refusals_say_what_to_change(self) -> None:
        self.check_denied("s3://models/missing/key", "404", "NoSuchKey: The specified key does not exist.")
        self.check_denied("s3://models/expired/key", "ExpiredToken", "get new credentials")
        self.check_denied("s3://models/skewed/key", "The time is 20261123T100000Z here, 2026-11-23T12:00:00Z there")

    def test_another_server_is_not_shown_who_asks(self) -> None:
        for each in self.seen_elsewhere("s3://models"):
            self.assertNotIn("Authorization", each)
            self.assertNotIn("x-amz-date", each)

    def test_what_is_no_location_is_refused(self) -> None:
        for url in ("s3://", "s3://x/key", "s3://user@bucket/key"):
            self.check_denied(url, "s3://bucket/key")
        self.check_denied("s3://models/", "names a bucket")


class Google(S3Test):
    NAMES = ("key", "model/a b+c%20?x=1&y#z", "two/key", "wrong/key", "wrong/two/key")
    google: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.google = cls.serve(StrictGcs, *cls.NAMES)

    def setUp(self) -> None:
        super().setUp()
        # Nothing of AWS's is for Google.
        os.environ.update(WRITTEN, STORAGE_EMULATOR_HOST=self.google.removeprefix("http://"))
        self.token = self.directory / "token"
        self.token.write_text("secret\n")
        self.pieces = ("--chunk-size", "300KiB", "--bearer-file", str(self.token))

    def test_objects_by_a_token_and_their_checksums(self) -> None:
        for name in self.NAMES[:3]:
            with self.subTest(name):
                self.assertTrue(self.check_undisturbed(f"gs://models/{name}", *self.pieces, data=DATA)["crc32c_announced"])
        for name in self.NAMES[3:]:
            with self.subTest(name):
                self.assertIn("checksum", self.refused(f"gs://models/{name}", *self.pieces, status=3))
                self.check(f"gs://models/{name}", *self.pieces, "--crc32c", "none", data=DATA)

    def test_objects_by_hmac_keys_of_a_profile(self) -> None:
        (self.directory / ".aws").mkdir()
        keys = self.directory / ".aws/credentials"
        keys.write_text("[google]\naws_access_key_id = GOOG1EXAMPLE\naws_secret_access_key = hmac/secret+key\n")
        for name in self.NAMES[:3]:
            self.check_undisturbed(f"gs://models/{name}", "--chunk-size", "300KiB", "--s3-profile", "google", data=DATA)
        keys.write_text("[google]\naws_access_key_id = GOOG1EXAMPLE\naws_secret_access_key = written/secret-wrong\n")
        said = self.refused("gs://models/key", "--s3-profile", "google")
        self.assertIn("check the secret of the HMAC key", said)
        self.assertNotIn("written/secret", said)
        self.assertIn("no HMAC keys", self.refused("gs://models/key", "--s3-profile", "none"))

    def test_public_objects_and_refusals(self) -> None:
        self.check("gs://public/key", data=DATA)
        self.check_denied("gs://models/key", "403", "AccessDenied", "storage.objects.get")
        self.token.write_text("hidden-token\n")
        said = self.refused("gs://models/key", *self.pieces)
        self.assertIn("get a new one", said)
        self.assertNotIn("hidden", said)
        self.check_denied("gs://public/none", "404", "NoSuchKey")
        self.check_denied("gs://x/key", "gs://bucket/key")

    def test_the_endpoint_of_the_options(self) -> None:
        os.environ["STORAGE_EMULATOR_HOST"] = "127.0.0.1:9"
        self.check("gs://public/key", "--s3-endpoint", self.google, data=DATA)

    def test_lists(self) -> None:
        found = self.listed("gs://public/")
        self.assertEqual([(url, size) for url, size, _ in found], [(f"gs://public/{name}", len(DATA)) for name in sorted(self.NAMES)])
        self.assertIn("AccessDenied", self.probe("list", "gs://models/", status=1)[1])


class Azure(S3Test):
    NAMES = ("key", "model/a b+c%20?x=1&y#z", "model/sub/漢字~*'()!$,;:@=", "odd\ufffe+%2B")
    azure: str

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.azure = cls.serve(StrictAzure, *cls.NAMES)

    def setUp(self) -> None:
        super().setUp()
        os.environ["AZURE_STORAGE_BLOB_ENDPOINT"] = self.azure
        (self.directory / "token").write_text("secret\n")
        self.bearer = ("--bearer-file", str(self.directory / "token"))

    def for_each_identity(self, check: Callable[[tuple[str, ...]], None]) -> None:
        """Call it with options, in an environment."""
        whole = f"BlobEndpoint={self.azure}/account"
        for given in ({"KEY": KEY, "ACCOUNT": "account"}, {"SAS_TOKEN": "?" + SAS, "KEY": "wrong"}, {},
                      {"CONNECTION_STRING": f"AccountName=account;AccountKey={KEY};{whole}/", "BLOB_ENDPOINT": ""},
                      {"CONNECTION_STRING": f"{whole};SharedAccessSignature={SAS}", "BLOB_ENDPOINT": "", "KEY": "x", "ACCOUNT": "other"}):
            variables = {f"AZURE_STORAGE_{name}": value for name, value in given.items()}
            with self.subTest(given), unittest.mock.patch.dict(os.environ, variables):
                check(() if given else self.bearer)

    def test_blobs_and_lists_by_each_identity(self) -> None:
        expected = sorted([f"az://account/models/{name}" for name in self.NAMES] + ["az://account/models/llama/"])

        def check(options: tuple[str, ...]) -> None:
            for name in self.NAMES:
                report = self.check_undisturbed(f"az://account/models/{name}", "--chunk-size", "300KiB", *options, data=DATA)
                self.assertNotIn("%2Bb", report["url"])
                self.assertNotIn("crc32c_announced", report)
            if not options:
                found = self.listed("az://account/models")
                self.assertEqual([url for url, _, _ in found], expected)
                self.assertEqual(found[0][1:], [len(DATA), '"0x8D"'])

        self.for_each_identity(check)

    def test_public_blobs_and_the_endpoint_of_the_options(self) -> None:
        os.environ.update(AZURE_STORAGE_BLOB_ENDPOINT="http://127.0.0.1:9", AZURE_STORAGE_KEY="not base64")
        self.check("az://account/public/key", "--s3-anonymous", "--s3-endpoint", self.azure + "/", data=DATA)
        self.assertIn("set AZURE_STORAGE_KEY", self.refused("az://account/models/key", "--s3-anonymous", "--s3-endpoint", self.azure))
        self.check_denied("az://account/models/key", "not base64")

    def test_refusals(self) -> None:
        os.environ["AZURE_STORAGE_KEY"] = KEY
        self.check_denied("az://account/models/none", "404", "BlobNotFound: The specified blob does not exist.")
        self.check_denied("az://account/models/silent/key", "403", "Storage Blob Data Reader")
        self.check_denied("az://account/models/busy/99/key", "503", "ServerBusy")
        self.assertEqual(self.check("az://account/models/busy/2/key", data=DATA)["retries"], 2)
        self.check_denied("az://account/models/", "without a key")
        self.check_denied("az://Account/models/key", "az://account/container/blob")
        for name, value in {"KEY": KEY[4:], "SAS_TOKEN": SAS + "%2Bb"}.items():
            os.environ[f"AZURE_STORAGE_{name}"] = value
            self.check_denied("az://account/models/key", "403", "AuthenticationFailed", "check the account's key")
            self.assertIn("AuthenticationFailed", self.probe("list", "az://account/models/", status=1)[1])
        os.environ["AZURE_STORAGE_SAS_TOKEN"] = KEY
        self.check_denied("az://account/models/key", "is not a SAS token")
        (self.directory / "token").write_text("other\n")
        self.assertIn("get a new one", self.refused("az://account/models/key", *self.bearer))

    def test_no_other_server_and_no_other_account_gets_a_secret(self) -> None:
        def check(options: tuple[str, ...]) -> None:
            for each in self.seen_elsewhere("az://account/models", *options):
                for secret in ("authorization", "x-ms-", "sig="):
                    self.assertNotIn(secret, each.lower())
            os.environ["AZURE_STORAGE_BLOB_ENDPOINT"] = self.azure
            self.check("az://account/models/none", "--mirror", "az://another/public/key", *options, data=DATA)

        self.for_each_identity(check)
        os.environ.update(AZURE_STORAGE_KEY=KEY, AZURE_STORAGE_ACCOUNT="account")
        self.check("az://another/public/key", data=DATA)


class Checksums(S3Test):
    def setUp(self) -> None:
        super().setUp()
        os.environ.update(WRITTEN)

    def test_what_s3_announces_of_objects_that_come_in_pieces_is_compared(self) -> None:
        pieces = ("--chunk-size", "300KiB")
        self.check_undisturbed("s3://models/crc64/key", *pieces, data=DATA)
        self.assertTrue(self.check_undisturbed("s3://models/crc32/key", *pieces, data=DATA)["crc32c_announced"])
        self.assertIn("CRC-64/NVME is", self.refused("s3://models/wrong-crc64/key", *pieces, status=3))
        self.check_undisturbed("s3://models/wrong-crc64/key", *pieces, "--crc32c", "none", data=DATA)
        # The region that HEAD is told of first is not the bucket's.
        self.assertIn("CRC-64/NVME is", self.refused("s3://elsewhere/wrong-crc64/key", *pieces, status=3))


class Listings(S3Test):
    def setUp(self) -> None:
        super().setUp()
        os.environ.update(WRITTEN)

    def test_pages_of_a_prefix(self) -> None:
        listed = self.listed("s3://models/model/shard")
        self.assertEqual([url for url, _, _ in listed], [f"s3://models/{key}" for key in LISTED])
        self.assertEqual([size for _, size, _ in listed], [len(key) for key in LISTED])
        self.assertEqual(listed[1][2], '"1"')
        self.assertEqual(len(self.listed("s3://elsewhere")), 10)
        self.assertEqual(self.listed("s3://models/nothing"), [])
        self.check(listed[0][0], data=DATA)

    def test_refusals(self) -> None:
        os.environ["AWS_SECRET_ACCESS_KEY"] = "written/secret-wrong"
        said = self.probe("list", "s3://models/", status=1)[1]
        self.assertIn("list s3://models/", said)
        self.assertIn("SignatureDoesNotMatch", said)
        self.assertNotIn("written/secret", said)


class Https(S3Test):
    def setUp(self) -> None:
        super().setUp()
        os.environ.update(WRITTEN, AWS_ENDPOINT_URL_S3=secure_root, SSL_CERT_FILE=authority)

    def fetched(self, url: str) -> dict[str, Any]:
        """Its bytes are none of the session's."""
        report: dict[str, Any] = json.loads(self.fetch(url, "--json", "--output", str(self.output)))
        self.assertEqual(self.output.read_bytes(), DATA)
        return report

    def test_objects_listings_and_credentials(self) -> None:
        self.assertEqual(self.fetched("s3://elsewhere/key")["redirects"], 1)
        self.assertEqual(len(self.listed("s3://models/model/shard")), len(LISTED))
        for name in WRITTEN:
            del os.environ[name]
        os.environ.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{secure_root}/container/long",
                          AWS_CONTAINER_AUTHORIZATION_TOKEN="agent-token")
        self.fetched("s3://models/key")

    def test_a_server_that_nobody_vouches_for_is_refused(self) -> None:
        del os.environ["SSL_CERT_FILE"]
        self.assertIn("certificate", self.probe("list", "s3://models/model/", status=1)[1])
        self.check_denied("s3://models/key", "certificate")


class Moto(S3Test):
    """Another's server."""

    def test_objects_and_listing(self) -> None:
        server = S3Server(data_file)
        self.addCleanup(server.stop)
        os.environ.update(WRITTEN)
        endpoint = server.urls["public"].rsplit("/", 2)[0]
        for key in ("private", "parts"):
            self.check(f"s3://models/{key}", "--s3-endpoint", endpoint, "--chunk-size", "300KiB", data=DATA)
        self.assertIn("NoSuchKey", self.refused("s3://models/missing", "--s3-endpoint", endpoint))
        self.assertIn("NoSuchBucket", self.refused("s3://no-such-bucket/key", "--s3-endpoint", endpoint))
        os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"
        os.environ["AWS_ENDPOINT_URL_S3"] = endpoint
        self.assertEqual([url for url, _, _ in self.listed("s3://models/p")],
                         ["s3://models/parts", "s3://models/private", "s3://models/public"])
        self.assertEqual(self.listed("s3://models/empty")[0][1], 0)


if __name__ == "__main__":
    probe, fetching.program = sys.argv[1:3]
    fetching.driver = sys.argv[3] if len(sys.argv) > 3 else ""
    unittest.main(argv=sys.argv[:1], verbosity=2)
