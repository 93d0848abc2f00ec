# SPDX-License-Identifier: Apache-2.0
"""Epochs of one stream, a trainer that is started again, and rows that are shuffled the same way again."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import address_of, soon
from test_delivery import in_thread, rows_of, send_rows

import gpurx

Make = Callable[..., gpurx.TensorStream]


def numbers(batch: gpurx.Batch) -> list[int]:
    rows: list[int] = np.from_dlpack(batch.y).tolist()
    return rows


def send_epochs(address: str, epochs: int, rows: int, source: int = 0, frame: int = 7, **options: Any) -> None:
    """Row r of epoch e of source s is 10,000 s + 1,000 e + r."""
    with gpurx.TensorSender(address, source=source, **options) as sender:
        for epoch in range(epochs):
            if epoch:
                sender.end_epoch()
            for first in range(0, rows, frame):
                send_rows(sender, 10_000 * source + 1000 * epoch + first, min(frame, rows - first))


def sending(*arguments: Any, **options: Any) -> tuple[threading.Thread, list[BaseException]]:
    return in_thread(lambda: send_epochs(*arguments, **options))


def joined(started: tuple[threading.Thread, list[BaseException]]) -> None:
    thread, failed = started
    thread.join(20)
    assert not thread.is_alive() and not failed


# ---- epochs ----


@pytest.mark.parametrize("acknowledge", ["received", "taken"])
def test_each_loop_is_an_epoch(stream: Make, acknowledge: str) -> None:
    receives = stream(batch_size=10, acknowledge=acknowledge)
    thread = sending(address_of(receives), 3, 25)
    for epoch in range(3):
        assert receives.epoch == epoch
        sizes = []
        rows = []
        for batch in receives:
            sizes.append(batch.rows)
            rows.extend(numbers(batch))
        assert rows == list(range(1000 * epoch, 1000 * epoch + 25)) and sizes == [10, 10, 5]
    joined(thread)
    with pytest.raises(gpurx.Error, match="it has ended"):
        list(receives)


@pytest.mark.parametrize("order", ["as_they_come", "rounds"])
def test_an_epoch_ends_when_all_sources_have_ended_it(stream: Make, order: Any) -> None:
    receives = stream(batch_size=8, sources=3, order=order)
    address = address_of(receives)
    threads = [sending(address, 3, 20 + 30 * source, source) for source in range(3)]
    for epoch in range(3):
        expected = [10_000 * s + 1000 * epoch + r for s in range(3) for r in range(20 + 30 * s)]
        assert sorted(rows_of(receives)) == expected
    for thread in threads:
        joined(thread)


def test_senders_that_end_the_last_epoch_before_they_close(stream: Make) -> None:
    receives = stream(batch_size=10)

    def send() -> None:
        with gpurx.TensorSender(address_of(receives)) as sender:
            for epoch in range(2):
                send_rows(sender, 100 * epoch, 10)
                sender.end_epoch()

    thread = in_thread(send)
    assert rows_of(receives) == list(range(10))
    assert rows_of(receives) == list(range(100, 110))
    joined(thread)
    with pytest.raises(gpurx.Error, match="it has ended"):
        list(receives)


def test_an_error_is_raised_at_the_end_of_its_epoch_and_once(stream: Make) -> None:
    receives = stream(batch_size=10, sources=2, reconnect_timeout=0.1)
    cut = gpurx.TensorSender(address_of(receives), source=1)
    send_rows(cut, 0, 10)
    cut.flush()
    cut.abort()
    assert soon(lambda: len(receives.errors()) == 1)
    thread = sending(address_of(receives), 2, 10)
    with pytest.raises(gpurx.Error, match="source 1"):
        list(receives)
    assert rows_of(receives) == list(range(1000, 1010))
    joined(thread)


# ---- a trainer that is started again ----


def started_again(address: str, state: dict[str, Any], **options: Any) -> gpurx.TensorStream:
    """As in another process. (In this one the threads of the stream before may not have closed its port yet.)"""
    made: list[gpurx.TensorStream] = []

    def make() -> bool:
        try:
            made.append(gpurx.TensorStream(address, transport="copy", size=8 << 20, **options))
        except gpurx.Error as error:
            assert error.code == errno.EADDRINUSE
            return False
        return True

    assert soon(make)
    made[0].load_state_dict(state)
    return made[0]


@pytest.mark.parametrize("options", [{}, {"shuffle": 40, "seed": 5}, {"batch_size": 8, "drop_last": True}])
@pytest.mark.parametrize("stop_after", [0, 1, 5, 11, 12, 13, 20])
def test_who_goes_on_elsewhere_gets_what_would_have_come(
    stream: Make, stop_after: int, options: dict[str, Any]
) -> None:
    """Three sources, two epochs; the second stream is what a process that was started again has."""
    made = {"batch_size": 9, "sources": 3, "order": "rounds", "acknowledge": "taken", **options}

    def run(stops: int | None) -> list[list[int]]:
        first = stream(**made)
        address = address_of(first)
        threads = [sending(address, 2, 31 + 10 * source, source, reconnect=60.0) for source in range(3)]
        assert soon(lambda: first.stats()["connections"] == 3)
        batches: list[list[int]] = []
        receives = first
        epochs = 0
        while epochs < 2:
            if len(batches) == stops and receives is first:
                state = json.loads(json.dumps(first.state_dict()))
                first.close()
                receives = started_again(address, state, **made)
                assert receives.epoch == epochs
            batch = next(receives, None)
            if batch is None:
                epochs += 1
                batches.append([])
            else:
                batches.append(numbers(batch))
        for thread in threads:
            joined(thread)
        receives.close()
        return batches

    assert run(stop_after) == run(None)


def test_what_is_saved_outlives_a_trainer_that_was_killed(stream: Make) -> None:
    """It had taken more than it saved; the sender still has that."""
    first = stream(batch_size=10, acknowledge="saved")
    address = address_of(first)
    thread = sending(address, 1, 100, reconnect=60.0)
    assert [numbers(next(first))[0] for _ in range(3)] == [0, 10, 20]
    state = first.state_dict()
    first.saved(state)
    assert [numbers(next(first))[0] for _ in range(2)] == [30, 40]
    first.close()
    with started_again(address, state, batch_size=10, acknowledge="saved") as again:
        rows = []
        for batch in again:
            rows.extend(numbers(batch))
            again.saved(again.state_dict())
        assert rows == list(range(30, 100))
        joined(thread)


def test_what_was_acknowledged_and_not_saved_is_an_error_and_no_gap(stream: Make) -> None:
    first = stream(batch_size=10)
    address = address_of(first)
    sender = gpurx.TensorSender(address, reconnect=60.0)
    for start in range(0, 30, 10):
        send_rows(sender, start, 10)
    next(first)
    state = first.state_dict()
    sender.flush()
    first.close()
    with started_again(address, state, reconnect_timeout=0.1):
        gone = "starts again with frame 1, but .* discarded the acknowledged frames before frame 3: restart"
        with pytest.raises(ConnectionRefusedError, match=gone):
            send_rows(sender, 30, 10)


def test_a_state_that_is_none(stream: Make) -> None:
    receives = stream(sources=2)
    state = receives.state_dict()
    with pytest.raises(ValueError, match="no state of a TensorStream"):
        receives.load_state_dict({})
    with pytest.raises(ValueError, match="sources is missing or has the wrong type"):
        receives.load_state_dict({**state, "sources": 7})
    with pytest.raises(ValueError, match="shuffle, seed and batch_size"):
        receives.load_state_dict({**state, "shuffled": [10, 0, 64]})
    one = {"source": 0, "sender": 1, "frame": 0, "row": 0, "epoch_frame": 0, "epoch_ended": False, "ended": False}
    with pytest.raises(gpurx.Error, match="the position has no source 1"):
        receives.load_state_dict({**state, "sources": [one]})


# ---- shuffled ----


def shuffled(stream: Make, **options: Any) -> list[list[int]]:
    receives = stream(batch_size=10, shuffle=40, **options)
    thread = sending(address_of(receives), 2, 105)
    epochs = [rows_of(receives) for _ in range(2)]
    joined(thread)
    return epochs


def test_shuffled_rows_are_all_there_in_an_order_of_their_seed_and_epoch(stream: Make) -> None:
    first, second = shuffled(stream, seed=1)
    assert sorted(first) == list(range(105)) and first != sorted(first)
    assert all(abs(row - i) < 40 for i, row in enumerate(first))  # within windows
    assert sorted(second) == list(range(1000, 1105)) and [row - 1000 for row in second] != first
    assert shuffled(stream, seed=1) == [first, second]
    assert shuffled(stream, seed=2)[0] != first
    assert shuffled(stream, seed=1, drop_last=True)[0] == first[:100]


def test_rows_of_several_sources_are_shuffled_in_rounds_only(stream: Make) -> None:
    with pytest.raises(gpurx.Error, match="frame_order::rounds"):
        stream(sources=2, shuffle=10)
