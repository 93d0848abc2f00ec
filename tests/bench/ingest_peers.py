# SPDX-License-Identifier: Apache-2.0
"""ingest_peers.py PEER URL: brings a safetensors file into this process as PEER does. Prints as JSON what that cost,
without the start of Python and what is imported: CPU seconds of all threads, seconds, those to the first tensor of what
yields them one by one; and a digest of the tensors.

A peer is a function that imports what it needs, or also prepares for the file, and returns another, which is given the
URL and returns the bytes of the file, its tensors by their names, or an iterator of these as they come. S3's place and
credentials are in the environment.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ingest_objects import bytes_of, count_in, digest, name_of, tensors_in

Fetch = Callable[[str], Any]


# ---- gpurx ----

def gpurx_load() -> Fetch:
    import gpurx

    return lambda url: gpurx.load_safetensors(url, transport="copy")


def gpurx_iterate() -> Fetch:
    import gpurx

    def fetch(url: str) -> Iterator[tuple[str, Any]]:
        with gpurx.safe_open(url, "gpurx", transport="copy") as file:
            yield from file

    return fetch


def gpurx_into(url: str) -> Fetch:
    """Into memory that the program has used before, as that of a model has been."""
    import gpurx

    with gpurx.safe_open(url, "gpurx", transport="copy") as file:
        places = {name: bytearray(b"\1" * math.prod(file.get_slice(name).get_shape())) for name in file.keys()}

    def fetch(url: str) -> Any:
        with gpurx.safe_open(url, "gpurx", transport="copy") as file:
            return file.get_tensors(into=places)

    return fetch


def gpurx_names(step: int) -> Fetch:
    """Each tensor by its name, or one of `step`."""
    import gpurx

    def fetch(url: str) -> Any:
        names = [name_of(number) for number in range(0, count_in(url), step)]
        return gpurx.load_safetensors(url, names=names, transport="copy")

    return fetch


# ---- the others, as their own documents have it ----

def s3dlio() -> Fetch:
    """As its README and its own storage class for DLIO do it. Ranges at once, from 32 MiB on, are its default."""
    import s3dlio

    return lambda url: s3dlio.get(url)


def s3dlio_into() -> Fetch:
    """Its README's other way: into a buffer of the caller's, after a question for the size."""
    import asyncio

    import numpy as np
    import s3dlio

    async def read(url: str) -> Any:
        about = await s3dlio.head_async(url)
        buffer = np.empty(about.size, np.uint8)
        await s3dlio.get_into_async(url, buffer, expected_len=about.size)
        return buffer

    return lambda url: asyncio.run(read(url))


def minio() -> Fetch:
    """Its documents have get_object() and read(); it brings no object by several connections into memory."""
    from minio import Minio

    def fetch(url: str) -> Any:
        bucket, key = bucket_and_key(url)
        client = Minio(endpoint=os.environ["AWS_ENDPOINT_URL"].removeprefix("http://"), secure=False,
                       access_key=os.environ["AWS_ACCESS_KEY_ID"], secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
                       region=os.environ["AWS_REGION"])
        response = client.get_object(bucket_name=bucket, object_name=key)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    return fetch


def s3torchconnector_client() -> Callable[[], Any]:
    from s3torchconnector._s3client import S3Client, S3ClientConfig

    def connect() -> Any:
        return S3Client(os.environ["AWS_REGION"], endpoint=os.environ["AWS_ENDPOINT_URL"],
                        s3client_config=S3ClientConfig(force_path_style=True))

    return connect


def s3torchconnector() -> Fetch:
    """Its README recommends the sequential reader, its default, for objects that are read whole. Parts of 8 MiB, and
    as many connections as 10 Gbit/s need, are its defaults."""
    connect = s3torchconnector_client()
    return lambda url: connect().get_object(*bucket_and_key(url)).read()


def s3torchconnector_into() -> Fetch:
    """Its README's way without a copy: a reader of ranges without a buffer of its own."""
    import numpy as np
    from s3torchconnector import S3ReaderConstructor

    connect = s3torchconnector_client()

    def fetch(url: str) -> Any:
        client, (bucket, key) = connect(), bucket_and_key(url)
        buffer = np.empty(client.head_object(bucket, key).size, np.uint8)
        reader = client.get_object(bucket, key, reader_constructor=S3ReaderConstructor.range_based(buffer_size=0))
        assert reader.readinto(buffer.data) == len(buffer)
        return buffer

    return fetch


def runai() -> Fetch:
    """Its documents have 8 connections and 8 MiB at a time as the default for S3, path-style addresses for servers
    that are not AWS (in the environment), and no limit of memory: tensors may be kept as they are."""
    from runai_model_streamer import SafetensorsStreamer

    def fetch(url: str) -> Iterator[tuple[str, Any]]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(url)
            yield from streamer.get_tensors()

    return fetch


# Those that bring a whole file. What comes before a comma is what has to be installed: ingest/peers/NAME.txt.
WHOLE: dict[str, Callable[[], Fetch]] = {
    "gpurx": gpurx_load,
    "gpurx, safe_open": gpurx_iterate,
    "s3dlio": s3dlio,
    "s3dlio, into a buffer": s3dlio_into,
    "minio": minio,
    "s3torchconnector": s3torchconnector,
    "s3torchconnector, into a buffer": s3torchconnector_into,
    "runai-model-streamer": runai,
}
BY_NAME: dict[str, Callable[[], Fetch]] = {
    "gpurx, all names": lambda: gpurx_names(1),
    "gpurx, every other name": lambda: gpurx_names(2),
}
# Those that prepare for the file.
PREPARED: dict[str, Callable[[str], Fetch]] = {"gpurx, into=": gpurx_into}


# ---- what they have in common ----

def package_of(peer: str) -> str:
    return peer.partition(",")[0]


def bucket_and_key(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return bucket, key


def main() -> None:
    peer, url = sys.argv[1:]
    fetch = PREPARED[peer](url) if peer in PREPARED else (WHOLE | BY_NAME)[peer]()
    cpu, start, first = time.process_time(), time.monotonic(), None
    came = fetch(url)
    if isinstance(came, Iterator):
        tensors = dict([next(came)])
        first = time.monotonic() - start
        tensors.update(came)
        came = tensors
    cost = {"cpu": time.process_time() - cpu, "seconds": time.monotonic() - start, "first": first}
    tensors = came if isinstance(came, dict) else tensors_in(bytes_of(came))
    print(json.dumps(cost | {"digest": digest(tensors)}))


if __name__ == "__main__":
    main()
