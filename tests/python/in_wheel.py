# SPDX-License-Identifier: Apache-2.0
"""The installed wheel, with nothing but the standard library beside it, as tests/python/wheel.sh runs it:

in_wheel.py load                a file from a server, also in an event loop, and one that is not there, with the libraries that the
                                wheel carries; and its list of them
in_wheel.py trusts CERT KEY     a server with this certificate is one that this system trusts
in_wheel.py refuses CERT KEY    it is not
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.metadata
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import gpurx
from ranges import Server, running

# OpenSSL is inside the extension; what is mapped of it is Python's own.
CARRIED = ("boost", "fmt", "isal", "mnl")
DATA = {"a": bytes(range(256)) * 4096, "b": os.urandom(3000)}


def model() -> bytes:
    header, at = {}, 0
    for name, data in DATA.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(DATA.values())


@contextlib.contextmanager
def served(certificate: tuple[str, str] | None = None) -> Iterator[str]:
    """The URL of the model."""
    server = Server()
    server.files["m"] = model()
    url = server.url("m")
    if certificate:
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        url = url.replace("http:", "https:")
    with running(server):
        yield url


def bytes_of(tensor: gpurx.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr, tensor.nbytes)


def check(url: str) -> None:
    weights = gpurx.load_safetensors(url, transport="copy")
    assert {name: bytes_of(one) for name, one in weights.items()} == DATA, "other bytes than the server has"
    assert weights.transport == "copy", weights.transport


async def check_in_a_loop(url: str) -> None:
    async with gpurx.async_safe_open(url, "gpurx", transport="copy") as file:
        got = {name: bytes_of(one) async for name, one in file}
    assert got == DATA, "other bytes than the server has"


def check_refusal(url: str) -> None:
    """What the library throws, through nanobind's package for this Python, with its type and its parts."""
    try:
        gpurx.load_safetensors(url, transport="copy")
    except gpurx.NotFound as error:
        assert (error.url, error.status) == (url, 404), error
    else:
        raise AssertionError("what is not there was loaded")


def check_libraries() -> None:
    """What the wheel carries is not taken from elsewhere."""
    mapped = set(re.findall(r"/\S+\.so\S*", Path("/proc/self/maps").read_text()))
    own = Path(gpurx.__file__).parent.parent
    carried = [Path(path) for path in mapped if re.match(rf"lib({'|'.join(CARRIED)})", Path(path).name)]
    strange = [str(path) for path in carried if own not in path.parents]
    assert not strange, f"libraries of this machine: {strange}"
    assert [path for path in mapped if Path(path).name.startswith("_native.abi3")], mapped


def check_bill() -> None:
    """The SBOM has each library beside the extension, and OpenSSL inside it, with its licence. auditwheel finds the same versions."""
    files = {str(file).partition(".dist-info/")[2] or str(file): file for file in importlib.metadata.files("gpurx") or ()}
    bill, other = (json.loads(files[f"sboms/{name}.cdx.json"].read_text()) for name in ("gpurx", "auditwheel"))
    version = {each["value"]: one["version"] for one in bill["components"] for each in one["properties"]}
    beside = {f"{found[1]}.so" for name in files if (found := re.match(r"gpurx\.libs/(\w+)-.*\.so", name))}
    assert beside and {"libssl.a", "nanobind", *beside} <= version.keys(), (beside, version)
    assert {one["version"] for one in other["components"] if one["name"] != "gpurx"} == {version[name] for name in beside}
    for one in bill["components"]:
        assert one["licenses"][0]["license"]["name"] in files, one
    assert set(bill["dependencies"][0]["dependsOn"]) == {one["bom-ref"] for one in bill["components"]}
    assert bill["metadata"]["component"]["version"] == importlib.metadata.version("gpurx")


def main() -> None:
    match sys.argv[1:]:
        case ["load"]:
            check_libraries()
            check_bill()
            with served() as url:
                check(url)
                asyncio.run(check_in_a_loop(url))
                check_refusal(f"{url}-absent")
        case ["trusts", certificate, key]:
            with served((certificate, key)) as url:
                check(url)
        case ["refuses", certificate, key]:
            with served((certificate, key)) as url:
                try:
                    check(url)
                except gpurx.Error as error:
                    assert "certificate" in str(error), error
                else:
                    raise AssertionError("a stranger's certificate was taken")
        case _:
            sys.exit(__doc__)


main()
