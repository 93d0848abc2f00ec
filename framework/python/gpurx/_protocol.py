# SPDX-License-Identifier: Apache-2.0
"""What goes over a tensor stream's connection, as framework/docs/tensor-stream.md has it: bytes only, no input or output."""

from __future__ import annotations

import hmac
import struct
from typing import Any, NamedTuple

from ._native import crc32c

# Little endian, without padding.
_START = struct.Struct("<4sHHIIQQQI")  # and the CRC32C of the head
_CRC = struct.Struct("<I")
_BEGIN = struct.Struct("<4sHHII")
_WELCOME = struct.Struct("<4sHHIIQQ")
_VERSION = 2

IS_LAST = 2
ENDS_EPOCH = 16
_HAS_CRC = 4
_HAS_SECRET = 1
_RESUMES = 2

NONCE_SIZE = 32
PROOF_SIZE = 32
CHALLENGE_SIZE = _BEGIN.size + NONCE_SIZE
WELCOME_SIZE = _WELCOME.size + PROOF_SIZE
ACK = struct.Struct("<Q")
LEAST_SECRET = 16


def frame(source: int, sequence: int, rows: int, tensors: list[bytes], payload: list[Any], flags: int = 0) -> list[bytes]:
    """All of it, in two pieces: a copy, which can be sent again."""
    described = b"".join(tensors)
    body = b"".join([described, *payload])
    size = len(body) - len(described)
    crc = crc32c(body, 0, len(described))
    start = _START.pack(b"gpTS", 1, flags | _HAS_CRC, source, len(tensors), sequence, rows, size, crc)
    return [start + _CRC.pack(crc32c(described, crc32c(start))), body]


def hello(source: int, sender: int, random: bytes, *, has_secret: bool, resumes: bool) -> bytes:
    flags = (_HAS_SECRET if has_secret else 0) | (_RESUMES if resumes else 0)
    return _BEGIN.pack(b"gpTS", _VERSION, flags, source, sender) + random


class Welcome(NamedTuple):
    """With which frame to go on: so many the receiver has, of which it will never ask for the first so many again."""

    expected: int
    acknowledged: int


class Refused(Exception):
    """What the receiver says instead of a welcome. No other connection would do better."""

    def __init__(self, why: str, *, is_secret: bool) -> None:
        super().__init__(why)
        self.is_secret = is_secret


_REFUSALS = {
    1: "it wants a secret, and this sender has none",
    2: "it has no secret, and this sender has",
    3: "it has another secret",
    4: "it receives no source of this number: there are fewer, or another rank does",
    5: "another sender of this number has sent to it: each needs a number of its own, and one that was started again says resume=True",
    6: "this source has failed there before; its TensorStream.errors() says why",
}


def is_challenge(begin: bytes) -> bool:
    """Raises Refused. By what a challenge and a welcome have in common: their first bytes."""
    tag, version, *_ = _BEGIN.unpack(begin)
    if tag not in (b"gpTC", b"gpTW") or version != _VERSION:
        raise Refused(f"it does not speak version {_VERSION} of the protocol; it says {begin!r}", is_secret=False)
    return bool(tag == b"gpTC")


BEGIN_SIZE = _BEGIN.size


def prove(secret: bytes, said: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, b"gpurx tensor stream 2, sender" + said + challenge, "sha256")


def read_welcome(answer: bytes, secret: bytes, said: bytes, challenge: bytes) -> Welcome:
    """Raises Refused, also for a receiver that cannot prove that it has the secret."""
    _, _, says, _, _, expected, acknowledged = _WELCOME.unpack_from(answer)
    if says in (1, 2, 3):  # of these nothing can be proved
        raise Refused(_REFUSALS[says], is_secret=True)
    if secret:
        text = b"gpurx tensor stream 2, receiver" + said + challenge + answer[: _WELCOME.size]
        proof = hmac.digest(secret, text, "sha256")
        if not challenge or not hmac.compare_digest(proof, answer[_WELCOME.size :]):
            raise Refused("it does not prove that it knows the secret: it is somebody else", is_secret=True)
    if says:
        raise Refused(_REFUSALS.get(says, f"for a reason that this version does not know: {says}"), is_secret=False)
    return Welcome(expected, acknowledged)
