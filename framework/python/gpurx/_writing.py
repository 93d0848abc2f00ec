# SPDX-License-Identifier: Apache-2.0
"""Writing of files to S3 and to this machine. Each file appears with all of its bytes, or not at all.

boto3 sends the requests to S3: it knows every kind of credentials, and uploads need no memory of a GPU.
"""

from __future__ import annotations

import base64
import ctypes
import glob
import io
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from ._arguments import whole
from ._credentials import OFTEN, supplier_of
from ._error import error_of
from ._locations import local_path, redacted
from ._native import IngestErrorCode, crc32c
from ._options import settings_of

PARTIAL = ".gpurx-"  # begins the names of files that are being written

# S3 takes no smaller parts, except as the last one, and at most 10,000.
PART_SIZE = 32 << 20


class Writer:
    """Write files below URLs of S3 or paths, with the options of gpurx.Options."""

    def __init__(self, options: Mapping[str, Any], part_size: int = PART_SIZE) -> None:
        settings_of("host", options)  # checks them
        self._options = options
        self._part_size = max(1, whole("part_size", part_size))
        self._client: Any = None

    @contextmanager
    def create(self, location: str) -> Iterator[IO[bytes]]:
        """Provide a file to write. It appears at the end; an exception leaves nothing of it."""
        if (path := local_path(location)) is not None:
            with replacing(Path(path)) as file:
                yield file
            return
        bucket, key = _place_of(location)
        upload = _Upload(self._s3(), bucket, key, self._part_size, self._options)
        try:
            with _explained(location):
                yield upload  # type: ignore[misc]
                upload.finish()
        except BaseException:
            upload.abort()
            raise

    def exists(self, location: str) -> bool:
        if (path := local_path(location)) is not None:
            return os.path.exists(path)
        bucket, key = _place_of(location)
        with _explained(location):
            found = self._s3().list_objects_v2(Bucket=bucket, Prefix=key, MaxKeys=1).get("Contents", [])
        return any(one["Key"] == key for one in found)

    def names(self, directory: str) -> list[str]:
        """Return the names of the files directly in a directory."""
        if (path := local_path(directory)) is not None:
            return os.listdir(path)
        prefix = _prefix_of(directory)[1]
        found = [one["Key"].removeprefix(prefix) for one in self._below(directory, "list_objects_v2", "Contents")]
        return [name for name in found if "/" not in name]

    def remove(self, directory: str, names: list[str]) -> None:
        """Remove files of a directory. Those that are gone are no error."""
        if (path := local_path(directory)) is not None:
            for name in names:
                Path(path, name).unlink(missing_ok=True)
            return
        bucket, prefix = _prefix_of(directory)
        with _explained(directory):
            for name in names:
                self._s3().delete_object(Bucket=bucket, Key=prefix + name)

    def end_uploads(self, directory: str, is_wanted: Callable[[str], bool]) -> None:
        """Remove what killed writers of a directory have left of files with wanted names, and no reader sees."""
        if (path := local_path(directory)) is not None:
            remove_interrupted(Path(path))
            return
        bucket, prefix = _prefix_of(directory)
        with _explained(directory):
            for one in self._below(directory, "list_multipart_uploads", "Uploads"):
                if is_wanted(one["Key"].removeprefix(prefix)):
                    self._s3().abort_multipart_upload(Bucket=bucket, Key=one["Key"], UploadId=one["UploadId"])

    def _below(self, directory: str, call: str, of: str) -> list[dict[str, Any]]:
        bucket, prefix = _prefix_of(directory)
        with _explained(directory):
            pages = self._s3().get_paginator(call).paginate(Bucket=bucket, Prefix=prefix)
            return [one for page in pages for one in page.get(of, [])]

    def _s3(self) -> Any:
        if self._client is None:
            self._client = _client_of(self._options)
        return self._client


def _place_of(location: str) -> tuple[str, str]:
    """Return bucket and key."""
    if not location.lower().startswith("s3://"):
        raise ValueError(f"{redacted(location)} cannot be written: name an s3:// URL or a path of this machine")
    bucket, _, key = location[len("s3://") :].partition("/")
    if not bucket or not key:
        raise ValueError(f"{location!r} is not s3://BUCKET/KEY")
    return bucket, key


def _prefix_of(directory: str) -> tuple[str, str]:
    bucket, key = _place_of(directory.rstrip("/") + "/-")
    return bucket, key[:-1]


def _client_of(options: Mapping[str, Any]) -> Any:
    """Return boto3's client for these options."""
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("writing to S3 needs boto3: pip install 'gpurx[s3]'", name=error.name) from None
    timeout = options.get("timeout", 30.0)
    config = Config(
        retries={"total_max_attempts": options.get("attempts", 12), "mode": "standard"},
        connect_timeout=timeout,
        read_timeout=timeout,
        max_pool_connections=max(10, options.get("flows", 4)),
        s3={"addressing_style": options.get("addressing_style") or "auto"},
        request_checksum_calculation="when_required",  # each request of an upload has its own
        **({"signature_version": UNSIGNED} if options.get("anonymous") else {}),
    )
    endpoint = options.get("endpoint_url") or None
    if not (endpoint is None or isinstance(endpoint, str)):
        endpoint = endpoint[0]
    own = _session_of(options["credentials"]) if options.get("credentials") is not None else None
    session = boto3.Session(
        botocore_session=own,
        profile_name=options.get("profile") or None,
        region_name=options.get("region") or None,
    )
    ca = options.get("ca")
    return session.client("s3", endpoint_url=endpoint, config=config, verify=os.fspath(ca) if ca else None)


def _session_of(given: Any) -> Any:
    """Return a session of botocore with the keys of `credentials=`, and no others."""
    import botocore.session
    from botocore.credentials import Credentials, RefreshableCredentials

    ask = supplier_of(given)

    def keys() -> tuple[dict[str, str | None], float | None]:
        access, secret, token, headers, end = ask("s3")
        if headers or not access or not secret:
            raise ValueError("writing to S3 needs keys, and `credentials` supplies none")
        return {"access_key": access, "secret_key": secret, "token": token or None}, end

    def renewed() -> dict[str, str | None]:
        found, end = keys()
        until = datetime.fromtimestamp(time.time() + OFTEN if end is None else end, timezone.utc)
        return {**found, "expiry_time": until.isoformat()}

    def load_credentials() -> Any:
        first, end = keys()
        if end is None:
            return Credentials(**first)
        until = datetime.fromtimestamp(end, timezone.utc)
        return RefreshableCredentials(**first, expiry_time=until, refresh_using=renewed, method="gpurx")

    session = botocore.session.get_session()
    session.register_component("credential_provider", SimpleNamespace(load_credentials=load_credentials))
    return session


@contextmanager
def _explained(location: str) -> Iterator[None]:
    """Raise the errors of boto3 as those of gpurx."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("botocore.", "boto3.")):
            raise
        answer = getattr(error, "response", {})
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        about = answer.get("Error", {})
        advice = f"it answers {status} {about.get('Code')}: {about.get('Message')}" if status else str(error)
        code = IngestErrorCode.HTTP_STATUS if status else IngestErrorCode.GAVE_UP
        name = redacted(location)
        raise error_of(f"write {name}: {advice}", code, "gpurx.ingest", "write", name, "", advice) from None


def _text_of(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


def _crc_of(part: bytearray, before: int = 0) -> int:
    held = (ctypes.c_char * len(part)).from_buffer(part)
    return crc32c(ctypes.addressof(held), len(part), before)


class _Upload(io.RawIOBase):
    """An object of S3 that is being written. finish() makes it visible.

    The parts are sent beside each other, and boto3 sends a part again that fails. S3 compares the CRC32C of each part and of
    the whole object before it shows the object.
    """

    def __init__(self, client: Any, bucket: str, key: str, part_size: int, options: Mapping[str, Any]) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": key}
        self._part_size = part_size
        self._flows = options.get("flows", 4)
        self._attempts = options.get("attempts", 12)
        self._part = bytearray()
        self._size = 0
        self._crc = 0
        self._id = ""
        self._parts: list[dict[str, Any]] = []
        self._coming: deque[Future[dict[str, Any]]] = deque()
        self._threads = ThreadPoolExecutor(self._flows, "gpurx-upload")

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for begin in range(0, len(view), self._part_size):
            self._add(view[begin : begin + self._part_size])
        self._size += len(view)
        return len(view)

    def close(self) -> None:
        """Do nothing: torch closes a file before it knows that all is well."""

    def finish(self) -> None:
        """Make the object visible."""
        if not self._id:
            checksum = _text_of(_crc_of(self._part)) if self._part else _text_of(0)
            self._client.put_object(**self._object, Body=self._part, ChecksumCRC32C=checksum)
        else:
            if self._part:
                self._send()
            self._collect(0)
            self._client.complete_multipart_upload(
                **self._object,
                UploadId=self._id,
                MultipartUpload={"Parts": self._parts},
                ChecksumCRC32C=_text_of(self._crc),
                ChecksumType="FULL_OBJECT",
            )
        self._threads.shutdown()

    def abort(self) -> None:
        """Leave nothing of the object. A failure leaves parts that no reader sees."""
        self._threads.shutdown(cancel_futures=True)
        if self._id:
            try:
                self._client.abort_multipart_upload(**self._object, UploadId=self._id)
            except Exception:  # of a server that fails: the first error is the one to report
                return

    def _add(self, data: memoryview) -> None:
        room = self._part_size - len(self._part)
        self._part += data[:room]
        if len(data) > room:
            self._send()
            self._part += data[room:]

    def _send(self) -> None:
        """Send the part, beside at most `flows` others."""
        if not self._id:
            started = self._client.create_multipart_upload(
                **self._object, ChecksumAlgorithm="CRC32C", ChecksumType="FULL_OBJECT"
            )
            self._id = started["UploadId"]
        self._collect(self._flows - 1)
        part, self._part = self._part, bytearray()
        self._crc = _crc_of(part, self._crc)
        number = len(self._parts) + len(self._coming) + 1
        self._coming.append(self._threads.submit(self._send_part, number, part))

    def _send_part(self, number: int, part: bytearray) -> dict[str, Any]:
        checksum = _text_of(_crc_of(part))
        request = {**self._object, "UploadId": self._id, "PartNumber": number, "ChecksumCRC32C": checksum}
        for left in reversed(range(self._attempts)):
            try:
                sent = self._client.upload_part(**request, Body=part)
                break
            except self._client.exceptions.ClientError as error:
                # The bytes have changed on the way. boto3 tries again after all other passing failures.
                if left == 0 or error.response["Error"]["Code"] != "BadDigest":
                    raise
        return {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32C": checksum}

    def _collect(self, most: int) -> None:
        """Wait until at most this many parts are under way."""
        while len(self._coming) > most:
            self._parts.append(self._coming.popleft().result())


# ---- files of this machine ----


@contextmanager
def replacing(path: Path, directory: Path | None = None) -> Iterator[IO[bytes]]:
    """Provide a file that replaces another one at once, at the end. An exception leaves the other one.

    Until then it is in `directory`, by default that of the path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{PARTIAL}{socket.gethostname()}-{os.getpid()}-{threading.get_native_id()}"
    partial = (directory or path.parent) / name
    try:
        with partial.open("wb") as file:
            yield file
        _sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def remove_interrupted(directory: Path) -> None:
    """Remove files of processes of this machine that ended while they wrote."""
    for partial in directory.glob(f"{PARTIAL}{glob.escape(socket.gethostname())}-*-*"):
        if not os.path.exists(f"/proc/{partial.name.split('-')[-2]}"):
            partial.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
