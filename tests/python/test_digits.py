# SPDX-License-Identifier: Apache-2.0
"""Training from a stream is training from memory: a small model on the digits of scikit-learn, step for step the same."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from conftest import address_of, program

import gpurx

BATCH = 64
EPOCHS = 20
SOURCES = 3
ROWS_PER_FRAME = 50


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits of 8 x 8 pixels, and what they are."""
    data = pytest.importorskip("sklearn.datasets").load_digits()
    return (data.images / 16).astype(np.float32), data.target.astype(np.int64)


def train(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Softmax regression by gradient descent: the loss of each step."""
    weights = np.zeros((64, 10), np.float64)
    losses = []
    for images, labels in batches:
        pixels = images.reshape(len(images), 64).astype(np.float64)
        scores = pixels @ weights
        scores -= scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        losses.append(float(-np.log(chances[rows, labels]).mean()))
        chances[rows, labels] -= 1
        weights -= 0.5 / len(labels) * (pixels.T @ chances)
    return losses


def from_memory() -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """All epochs in a row: a batch may have the end of one and the beginning of the next."""
    images, labels = digits()
    images, labels = np.concatenate([images] * EPOCHS), np.concatenate([labels] * EPOCHS)
    for start in range(0, len(labels), BATCH):
        yield images[start : start + BATCH], labels[start : start + BATCH]


def test_training_from_a_stream_is_training_from_memory(
    stream: Callable[..., gpurx.TensorStream], tmp_path: Path
) -> None:
    images, labels = digits()
    np.save(tmp_path / "image.npy", images)
    np.save(tmp_path / "label.npy", labels)
    # Each source has every third frame; a round is one of each, so rows come in the order of the files.
    receives = stream(batch_size=BATCH, sources=SOURCES, order="rounds")
    senders = [
        subprocess.Popen(
            [program("tensor_source"), "--to", address_of(receives), "--source", str(source), "--sources", str(SOURCES)]
            + ["--tensor", f"image={tmp_path}/image.npy", "--tensor", f"label={tmp_path}/label.npy"]
            + ["--epochs", str(EPOCHS), "--rows-per-frame", str(ROWS_PER_FRAME), "--crc"],
            stdout=subprocess.DEVNULL,
        )
        for source in range(SOURCES)
    ]
    losses = train((np.from_dlpack(batch.image), np.from_dlpack(batch.label)) for batch in receives)
    assert [sender.wait(60) for sender in senders] == [0] * SOURCES
    expected = train(from_memory())
    assert len(expected) == -(-len(labels) * EPOCHS // BATCH)
    assert losses == expected
    assert losses[0] == pytest.approx(np.log(10)) and losses[-1] < 0.2  # it has learned
