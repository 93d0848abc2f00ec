# SPDX-License-Identifier: Apache-2.0
"""Rows of a Ray dataset, from the workers that prepare them to the streams of a training job.

    dataset.repartition(64).write_datasink(gpurx.ray.TensorSink(["10.77.0.1:9000", "10.77.0.1:9001"], sources=64))

Rank r of two then trains with TensorStream("10.77.0.1:900{r}", sources=64, rank=r, world_size=2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink

from ._sender import TensorSender


@ray.remote(num_cpus=0)  # type: ignore[misc, unused-ignore]
class _Begun:
    """Record the sources that have begun. A restarted task learns it here, in any process and on any machine."""

    def __init__(self) -> None:
        self._sources: set[int] = set()

    def begin(self, source: int) -> bool:
        """Return whether this is the first start of the source."""
        is_first = source not in self._sources
        self._sources.add(source)
        return is_first


class TensorSink(Datasink):  # type: ignore[misc, unused-ignore]
    """Send the rows of a dataset to TensorStreams, one for each rank of a training job.

    Each write task is a source of the streams, with the task's number. Source s belongs to rank s modulo the number of
    ranks. If Ray restarts a task, the new one sends the same frames from the first, and the stream drops those that it has.
    No row is lost or repeated. This needs the same rows in the same order in every run of a task, as Ray itself requires.

    * addresses: addresses of the streams, in the order of the ranks.
    * sources: the `sources` of every stream, at least the number of write tasks. The driver closes unused sources after the
      last task. A task beyond them raises ValueError before it sends; repartition() the dataset into `sources` blocks.
    * columns: columns to send, as a sequence of names or a mapping from names in the stream to columns. Default: all.
      Values are numbers, or arrays of one shape.
    * rows_per_frame: rows of a frame.
    * connect_timeout: seconds to wait for the stream to listen.
    * send_timeout: seconds for the receiver to take data. None: no limit.
    * secret: secret of the streams. Ray stores it with its tasks.

    A sink serves one write, which is one epoch. A second write with the same sink raises ValueError. Ended TensorStreams do
    not start again.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        sources: int,
        columns: Mapping[str, str] | Sequence[str] | None = None,
        rows_per_frame: int = 1024,
        connect_timeout: float = 60.0,
        send_timeout: float | None = None,
        secret: str | bytes | None = None,
    ) -> None:
        self._addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        if not self._addresses or sources < 1 or rows_per_frame < 1:
            raise ValueError("a TensorSink needs at least one address, one source, and one row in a frame")
        self._sources = sources
        self._columns = columns if columns is None or isinstance(columns, Mapping) else {name: name for name in columns}
        self._rows = rows_per_frame
        self._connect_timeout = connect_timeout
        self._send_timeout = send_timeout
        self._secret = secret
        self._begun = _Begun.remote()  # type: ignore[attr-defined, unused-ignore]
        self._has_written = False

    # ---- Ray's ----

    def on_write_start(self, *schema: Any) -> None:
        """Refuse a second write. Ray calls it."""
        if self._has_written:
            raise ValueError("a TensorSink is for one write: make another one for the streams of the next epoch")
        self._has_written = True

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Send the rows of one task. Ray calls it in a worker."""
        source = int(ctx.task_idx)
        if source >= self._sources:
            raise ValueError(
                f"send to {', '.join(self._addresses)}: write task {source} exceeds the {self._sources} sources of the "
                f"streams; repartition({self._sources}) the dataset, or give sink and streams more sources"
            )
        is_first = ray.get(self._begun.begin.remote(source))
        with self._sender(source, resume=not is_first) as sender:
            for frame in _frames(self._columns_of(blocks), self._rows):
                sender.send(**frame)
        return source

    def on_write_complete(self, write_result: Any) -> None:
        """Close the sources without a task. Ray calls it in the driver."""
        for source in sorted({*range(self._sources)} - {*write_result.write_returns}):
            self._sender(source, resume=not ray.get(self._begun.begin.remote(source))).close()

    # ---- implementation ----

    def _sender(self, source: int, *, resume: bool) -> TensorSender:
        address = self._addresses[source % len(self._addresses)]
        return TensorSender(
            address,
            source=source,
            timeout=self._send_timeout,
            resume=resume,
            secret=self._secret,
            connect_timeout=self._connect_timeout,
        )

    def _columns_of(self, blocks: Iterable[Any]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        for block in blocks:
            accessor = BlockAccessor.for_block(block)
            if not accessor.num_rows():
                continue
            made: dict[str, Any] = accessor.to_numpy()
            wanted = self._columns or {name: name for name in made}
            yield {name: np.asarray(made[column]) for column, name in wanted.items()}


def _frames(columns: Iterable[dict[str, Any]], rows: int) -> Iterator[dict[str, Any]]:
    """Yield frames of `rows` rows across the borders of blocks, because a restarted task may have other blocks."""
    held: list[dict[str, Any]] = []
    count = 0
    for block in columns:
        held.append(block)
        count += len(next(iter(block.values())))
        while count >= rows:
            joined = {name: np.concatenate([one[name] for one in held]) for name in block}
            yield {name: one[:rows] for name, one in joined.items()}
            held, count = [{name: one[rows:] for name, one in joined.items()}], count - rows
    if count:
        yield {name: np.concatenate([one[name] for one in held]) for name in held[0]}
