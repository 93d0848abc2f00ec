# SPDX-License-Identifier: Apache-2.0
"""Rows of a Ray dataset, from the workers that prepare them straight into the streams of a training job.

    dataset.repartition(64).write_datasink(gpurx.ray.TensorSink(["10.77.0.1:9000", "10.77.0.1:9001"], sources=64))

and rank r of two trains with TensorStream("10.77.0.1:900{r}", sources=64, rank=r, world_size=2).
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
    """Which sources have begun. A task that was started again is told so, in whatever process or machine it is by now."""

    def __init__(self) -> None:
        self._sources: set[int] = set()

    def begin(self, source: int) -> bool:
        """Whether nobody has before."""
        is_first = source not in self._sources
        self._sources.add(source)
        return is_first


class TensorSink(Datasink):  # type: ignore[misc, unused-ignore]
    """Sends a dataset's rows to TensorStreams, one for each rank of a training job: `addresses`, in the order of the ranks.

    Each write task is a source of the streams, with the task's number: source s belongs to rank s modulo the number of ranks. A
    task that Ray restarts after its worker was killed has the same number and sends the same frames from the first; the stream
    drops those that it has. No row is lost, and none arrives twice, if the restarted task makes the same rows in the same order,
    as Ray requires, too.

    sources: at least the number of write tasks, and the `sources` of every stream. Sources without a task end when all tasks
    have. A further task raises an error before it sends anything: repartition() the dataset into that many blocks.

    columns: names of the columns to send; default: all. Values are numbers, or arrays of one shape for all rows.
    rows_per_frame: rows of one frame. connect_timeout: seconds to wait for the stream's listener. send_timeout: seconds without
    progress of the receiver. secret: the streams'; Ray keeps it with its tasks.

    A sink serves one epoch: a second write with it raises an error, and ended TensorStreams do not restart.
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
            raise ValueError("a TensorSink has an address at least, a source, and a row in a frame")
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
        if self._has_written:
            raise ValueError("a TensorSink is for one write: make another one, for streams of the next epoch")
        self._has_written = True

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Sends the rows of one task. Runs in a worker."""
        source = int(ctx.task_idx)
        if source >= self._sources:
            raise ValueError(
                f"send to {', '.join(self._addresses)}: write task {source} is one more than the {self._sources} sources of "
                f"the streams; repartition({self._sources}) the dataset, or give sink and streams more sources"
            )
        is_first = ray.get(self._begun.begin.remote(source))
        with self._sender(source, resume=not is_first) as sender:
            for frame in _frames(self._columns_of(blocks), self._rows):
                sender.send(**frame)
        return source

    def on_write_complete(self, write_result: Any) -> None:
        """Ends the sources without a task. Runs in the driver."""
        for source in sorted({*range(self._sources)} - {*write_result.write_returns}):
            self._sender(source, resume=not ray.get(self._begun.begin.remote(source))).close()

    # ---- what it does ----

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
    """So many rows at a time, wherever one block ends and the next begins: that may be elsewhere when a task runs again."""
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
