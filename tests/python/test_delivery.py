# SPDX-License-Identifier: Apache-2.0
"""TensorSender to TensorStream through a network that fails: every row arrives once, and strangers are nobody's problem."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import address_of, soon
from proxy import Cut, Flip, proxy
from test_sender import Interrupted, alarm, interrupt

import gpurx

Make = Callable[..., gpurx.TensorStream]
SECRET = "0123456789abcdef of the tests"


def rows_of(receives: gpurx.TensorStream) -> list[int]:
    """All of an epoch; a row is its number, in two tensors."""
    rows: list[int] = []
    for batch in receives:
        x, y = np.from_dlpack(batch.x), np.from_dlpack(batch.y)
        assert np.array_equal(x[:, 0], y) and np.array_equal(x[:, 6], y)
        rows.extend(y.tolist())
    return rows


def send_rows(sender: gpurx.TensorSender, first: int, count: int) -> None:
    y = np.arange(first, first + count)
    sender.send(x=np.repeat(y[:, None], 7, axis=1).astype(np.float64), y=y)


def in_thread(what: Callable[[], Any]) -> tuple[threading.Thread, list[BaseException]]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, failed


# ---- a network that fails ----


@pytest.mark.parametrize("acknowledge", ["received", "taken"])
@pytest.mark.parametrize("seed", range(6))
def test_every_row_arrives_once_wherever_the_connection_is_cut(stream: Make, seed: int, acknowledge: str) -> None:
    chance = random.Random(seed)
    receives = stream(batch_size=13, acknowledge=acknowledge)

    def fate(connection: int) -> Cut | None:
        if connection >= 25:
            return None
        if chance.random() < 0.3:  # in the hello, the answer to it, or an acknowledgement
            return Cut(chance.randrange(1, 120), of_answers=chance.random() < 0.7, resets=chance.random() < 0.5)
        return Cut(chance.randrange(1, 6000), resets=chance.random() < 0.5)

    with proxy(address_of(receives), fate) as cuts:

        sent = 0

        def send() -> None:
            nonlocal sent
            with gpurx.TensorSender(cuts.address, reconnect=10.0) as sender:
                # A receiver with little time acknowledges many rows at once: a connection that is cut there carries more.
                while sent < 2000 or cuts.connections < 6:
                    count = chance.randrange(1, 40)
                    send_rows(sender, sent, count)
                    sent += count

        thread, failed = in_thread(send)
        rows = rows_of(receives)
        thread.join(30)
        assert not thread.is_alive() and not failed
        assert rows == list(range(sent))
    # (Who was cut within the hello is a stranger.)
    assert [source for source, _ in receives.errors() if source is not None] == []


def test_a_frame_that_was_damaged_is_sent_again(stream: Make) -> None:
    receives = stream(batch_size=10)
    with proxy(address_of(receives), lambda n: Flip(48 + 48 + 2 * 80 + 700) if n < 3 else None) as damages:

        def send() -> None:
            with gpurx.TensorSender(damages.address) as sender:
                for first in range(0, 100, 20):
                    send_rows(sender, first, 20)

        thread, failed = in_thread(send)
        assert rows_of(receives) == list(range(100))
        thread.join(30)
    assert not failed and receives.errors() == [] and receives.stats()["damaged"] == 3


def test_two_senders_through_cuts_are_not_mixed_up(stream: Make) -> None:
    receives = stream(batch_size=7, sources=2)
    with proxy(address_of(receives), lambda n: Cut(3000 + 100 * n) if n < 12 else None) as cuts:

        def send(source: int) -> None:
            with gpurx.TensorSender(cuts.address, source=source) as sender:
                for first in range(0, 500, 10):
                    send_rows(sender, 1000 * source + first, 10)

        threads = [in_thread(lambda source=source: send(source)) for source in range(2)]  # type: ignore[misc]
        rows = rows_of(receives)
        for thread, failed in threads:
            thread.join(30)
            assert not failed
    assert [row for row in rows if row < 1000] == list(range(500))
    assert [row for row in rows if row >= 1000] == list(range(1000, 1500))


def test_who_gives_up_says_what_was_not_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens:
        sender = gpurx.TensorSender("127.0.0.1:{}".format(listens.getsockname()[1]), reconnect=0.2)
        accepted, _ = listens.accept()
        accepted.close()
    with pytest.raises(OSError, match=r"send frame 0 of source 0 to .*, for 0.2 s; 0 frames are not"):
        send_rows(sender, 0, 5)
    with pytest.raises(ValueError, match="ended"):
        send_rows(sender, 5, 5)


# ---- acknowledgements ----


def test_what_is_received_is_acknowledged_before_anybody_takes_it(stream: Make) -> None:
    receives = stream(batch_size=10)
    with gpurx.TensorSender(address_of(receives)) as sender:
        send_rows(sender, 0, 5)
        sender.flush()
        assert sender.acknowledged == 1
    assert rows_of(receives) == list(range(5))


def test_what_is_taken_is_acknowledged_when_it_is(stream: Make) -> None:
    receives = stream(batch_size=10, acknowledge="taken")
    sender = gpurx.TensorSender(address_of(receives))
    for first in range(0, 30, 6):
        send_rows(sender, first, 6)
    assert sender.received == 5 and sender.acknowledged == 0
    next(receives)  # rows 0 to 9: of frame 1 not all
    assert soon(lambda: sender.acknowledged == 1)
    next(receives)
    assert soon(lambda: sender.acknowledged == 3)
    thread, failed = in_thread(sender.close)
    assert rows_of(receives) == list(range(20, 30))
    thread.join(60)
    assert not thread.is_alive() and not failed


def test_a_sender_keeps_no_more_than_its_window(stream: Make) -> None:
    receives = stream(batch_size=10, acknowledge="taken")
    sender = gpurx.TensorSender(address_of(receives), window=3000)  # three frames of ten rows
    for first in range(0, 30, 10):
        send_rows(sender, first, 10)
    with alarm(interrupt), pytest.raises(Interrupted):
        send_rows(sender, 30, 10)
    with pytest.raises(ValueError, match="ended: Interrupted"):
        send_rows(sender, 30, 10)


# ---- who may send ----


@pytest.mark.parametrize("secret", [SECRET, SECRET.encode()])
def test_both_know_the_secret(stream: Make, secret: str | bytes) -> None:
    receives = stream(batch_size=10, secret=secret)
    with gpurx.TensorSender(address_of(receives), secret=SECRET) as sender:
        send_rows(sender, 0, 20)
    assert rows_of(receives) == list(range(20))


@pytest.mark.parametrize(
    ("here", "there", "sender_says", "receiver_says"),
    [
        (SECRET, None, "it requires a secret, and this sender has none", "it announces no secret"),
        (SECRET, SECRET + "!", "it has another secret", "its proof is of another secret"),
        (None, SECRET, "it has no secret, and this sender has one", "it has a secret, and this stream has none"),
    ],
)
def test_a_stranger_is_refused_and_the_epoch_goes_on(
    stream: Make, here: str | None, there: str | None, sender_says: str, receiver_says: str
) -> None:
    receives = stream(batch_size=10, secret=here)
    stranger = gpurx.TensorSender(address_of(receives), secret=there)
    with pytest.raises(PermissionError, match=f"the receiver refuses: {sender_says}"):
        send_rows(stranger, 1000, 10)
    assert soon(lambda: len(receives.errors()) == 1)
    with gpurx.TensorSender(address_of(receives), secret=here) as sender:
        send_rows(sender, 0, 20)
    assert rows_of(receives) == list(range(20))
    [(source, error)] = receives.errors()
    assert source is None and error.code is gpurx.IngestErrorCode.WRONG_SECRET and receiver_says in str(error)


def test_a_sender_of_version_1_is_told_by_the_end_and_named(stream: Make) -> None:
    receives = stream(batch_size=10, secret=SECRET)
    host, port = receives.addresses()[0]
    with socket.create_connection((host, port), timeout=60) as old:
        old.sendall(struct.pack("<4sHHIIQQQII", b"gpTS", 1, 2, 0, 0, 0, 0, 0, 0, 0))
        assert old.recv(1) == b""
    with gpurx.TensorSender(address_of(receives), secret=SECRET) as sender:
        send_rows(sender, 0, 10)
    assert rows_of(receives) == list(range(10))
    assert "version 1 of the protocol, which has no secrets" in str(receives.errors()[0][1])


def test_without_a_secret_a_sender_of_version_1_is_received(stream: Make) -> None:
    receives = stream(batch_size=1)
    host, port = receives.addresses()[0]
    tensor = struct.pack("<16sHHI7Q", b"x", 0x108, 0, 0, *[0] * 7)
    with socket.create_connection((host, port), timeout=60) as old:
        old.sendall(struct.pack("<4sHHIIQQQII", b"gpTS", 1, 3, 0, 1, 0, 1, 1, 0, 0) + tensor + b"\x07")
        assert old.recv(8, socket.MSG_WAITALL) == bytes(8)
    assert [batch.x.numpy().tolist() for batch in receives] == [[7]]


def test_a_receiver_of_version_1_is_an_error_and_no_hang() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listens:

        def receive() -> None:  # what it does not know it refuses, by closing
            while True:
                accepted, _ = listens.accept()
                accepted.recv(48, socket.MSG_WAITALL)
                accepted.close()

        in_thread(receive)
        sender = gpurx.TensorSender("127.0.0.1:{}".format(listens.getsockname()[1]), reconnect=0.2)
        with pytest.raises(OSError, match="before its answer: it has no free flow, or is older than version 2"):
            send_rows(sender, 0, 5)


def test_an_impostor_gets_no_rows() -> None:
    """Who listens there and does not know the secret: whatever he answers, and be it what he was sent."""
    answers = {
        "a welcome": struct.pack("<4sHHQQQ32s", b"gpTW", 2, 0, 0, 0, 0, b""),
        "a challenge": struct.pack("<4sHHQ32s", b"gpTC", 2, 0, 0, b"n" * 32),
    }
    for answer in answers.values():
        with socket.create_server(("127.0.0.1", 0)) as listens:
            came: list[bytes] = []

            def receive() -> None:
                accepted, _ = listens.accept()
                with accepted:
                    accepted.recv(48, socket.MSG_WAITALL)
                    accepted.sendall(answer)
                    if answer[:4] == b"gpTC":
                        proof = accepted.recv(32, socket.MSG_WAITALL)
                        accepted.sendall(struct.pack("<4sHHQQQ32s", b"gpTW", 2, 0, 0, 0, 0, proof))
                    while some := accepted.recv(4096):
                        came.append(some)

            thread, _ = in_thread(receive)
            sender = gpurx.TensorSender("127.0.0.1:{}".format(listens.getsockname()[1]), secret=SECRET)
            with pytest.raises(PermissionError, match="does not prove that it has the secret"):
                send_rows(sender, 0, 5)
            thread.join(60)
            assert came == []


def test_a_secret_is_not_a_short_one(stream: Make) -> None:
    for make in (stream, lambda secret: gpurx.TensorSender("127.0.0.1:1", secret=secret)):
        with pytest.raises(ValueError, match="at least 16 random bytes"):
            make(secret="hunter2")


# ---- coroutines ----


def test_a_sender_in_an_event_loop(stream: Make) -> None:
    receives = stream(batch_size=10)

    async def both() -> list[int]:
        async def send() -> None:
            async with gpurx.TensorSender(address_of(receives)) as sender:
                for first in range(0, 50, 10):
                    y = np.arange(first, first + 10)
                    await sender.asend(x=np.zeros((10, 7)), y=y)

        sending = asyncio.create_task(send())
        rows: list[int] = []
        async with receives:
            async for batch in receives:
                rows.extend(np.from_dlpack(batch.y).tolist())
            await sending
        return rows

    assert asyncio.run(both()) == list(range(50))


def test_a_block_that_fails_in_an_event_loop_is_no_end(stream: Make) -> None:
    receives = stream(batch_size=10, reconnect_timeout=0.1)

    async def send() -> None:
        async with gpurx.TensorSender(address_of(receives)) as sender:
            await sender.asend(x=np.zeros((10, 7)), y=np.arange(10))
            raise RuntimeError("the program's own")

    with pytest.raises(RuntimeError, match="own"):
        asyncio.run(send())
    with pytest.raises(gpurx.Error, match="source 0"):
        for _ in receives:
            time.sleep(0)
