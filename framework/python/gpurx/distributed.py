# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel loading with torch.distributed. Needs torch; `import gpurx` does not.

Each rank names its slices. One rank of a machine fetches the bytes that several of its ranks need.

    weights = gpurx.distributed.load(url, {"up.weight": np.s_[rank::ranks], "down.weight": np.s_[:, 512:1024], "norm": ...})
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from ._convert import FORMAT_TYPES
from ._error import Error
from ._locations import Locations
from ._native import Session
from ._open import safe_open
from ._options import Options
from ._slices import Part, Range, Share, Wanted, blocks_of, part_of, piece_of, shares_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


def load(
    url: Locations,
    plan: Mapping[str, Any],
    device: Any = "cpu",
    *,
    group: Any = None,
    memory_limit: int = 512 << 20,
    session: Session | None = None,
    **options: Unpack[Options],
) -> dict[str, torch.Tensor]:
    """Load the slices of `plan` as torch tensors on `device`.

    * url: files of a model, as for gpurx.safe_open().
    * plan: tensor names with an index, as get_slice() takes it. `...` is the whole tensor. Each rank has its own plan.
    * device: memory for the tensors.
    * group: group of torch.distributed that carries host tensors, such as one of gloo. None: the default group. A group of
      NCCL raises ValueError.
    * memory_limit: bytes that a rank holds at most beside the returned tensors and the session (`size`).
    * session, options: see gpurx.Options.

    This is a collective operation: all ranks of `group` call it with the same files. If several ranks of a machine need the
    same bytes, or would fetch them because they lie between needed ones, as with columns, one rank reads them. It passes
    them on through `group`. The ranks share the reading about equally.

    gpurx compares the checksum of a file if one rank reads all of it. No rank has the whole of a file that several ranks
    read.

    A failure on one rank raises an Error with its number on every rank. A rank that dies ends the others as torch defines
    it.
    """
    if dist.get_backend(group) == "nccl":
        raise ValueError("the group must carry tensors of the host: pass group=torch.distributed.new_group(backend='gloo')")
    mine = _Rank(group)
    file, failure = None, None
    try:
        file = safe_open(url, "pt", device, memory_limit=memory_limit, session=session, **options)
        result = _Result(file, plan, device)
    except Exception as error:
        failure = error
    try:
        all_wanted = mine.gather(failure, None if failure or file is None else result.parts)
        assert file
        shares = shares_of(_wanted(file, all_wanted), mine.nodes())
        failure = _Exchange(file, mine, result, memory_limit // 3).run(shares)
        mine.gather(failure, None)
        return result.tensors()
    finally:
        if file is not None:
            file.close()


def _node() -> str:
    """Return an identifier of this machine. A container with its own host name counts as a machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + socket.gethostname()


def _all_gather(value: Any, group: Any) -> list[Any]:
    """Gather values of JSON from all ranks. Torch's own function for objects needs a fitting numpy, and unpickles received
    bytes.
    """
    text = json.dumps(value).encode()
    ranks = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(text)]), group=group)
    longest = max(int(size) for size in sizes)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(texts, torch.tensor([*text.ljust(longest)], dtype=torch.uint8), group=group)
    return [json.loads(bytes(one[: int(size)].tolist())) for one, size in zip(texts, sizes, strict=True)]


class _Rank:
    """Communicate within the group. Rank numbers are those of the default group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.number = dist.get_rank()
        self._ranks: dict[int, str] = {}

    def gather(self, failure: Exception | None, value: Any) -> dict[int, Any]:
        """Return the value of each rank. A failure on one rank raises on all."""
        told = _all_gather([self.number, _node(), failure and str(failure), value], self.group)
        self._ranks = {rank: node for rank, node, _, _ in told}
        if failure is not None:
            raise failure
        for rank, _, text, _ in told:
            if text is not None:
                raise Error(f"load on rank {rank}: {text}", 125, "system", "load", f"rank {rank}", "", text)
        return {rank: one for rank, _, _, one in told}

    def nodes(self) -> dict[int, str]:
        return self._ranks

    def send(self, data: torch.Tensor, to: int) -> None:
        dist.send(data, to, group=self.group)

    def receive(self, data: torch.Tensor, source: int) -> None:
        dist.recv(data, source, group=self.group)


class _Result:
    """Tensors of this rank, empty at first."""

    def __init__(self, file: safe_open, plan: Mapping[str, Any], device: Any) -> None:
        self.parts: dict[str, Part] = {}
        self.boxes: dict[str, torch.Tensor] = {}  # with dimensions that an integer has chosen from, of length 1
        for name, index in plan.items():
            there = file.get_slice(name)
            dtype = getattr(torch, FORMAT_TYPES.get(there.get_dtype(), ""), None)
            if dtype is None:
                raise TypeError(f"torch {torch.__version__} has no elements of {there.get_dtype()}, which {name!r} has")
            part = self.parts[name] = part_of(there.get_shape(), index)
            self.boxes[name] = torch.empty([count for _, count, _ in part.extents], dtype=dtype, device=device)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: one.reshape(self.parts[name].shape) for name, one in self.boxes.items()}


def _part(told: Any) -> Part:
    extents, shape = told
    return Part(tuple((begin, count, step) for begin, count, step in extents), tuple(shape))


def _wanted(file: safe_open, parts: Mapping[int, Mapping[str, Any]]) -> list[Wanted]:
    """Return the wanted tensors in the order of the files."""
    wanted = []
    for name, one in file._files.entries.items():
        if by := {rank: _part(each[name]) for rank, each in parts.items() if name in each}:
            elements = torch.Size(one.shape).numel()
            wanted.append(Wanted(name, one.shape, one.nbytes // max(elements, 1), by))
    return wanted


class _Block(NamedTuple):
    share: Share
    box: tuple[Range, ...]


def _index(block: _Block) -> tuple[slice, ...]:
    return tuple(slice(*each) for each in block.box)


def _bytes(data: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor, in the same memory."""
    return data.reshape(-1).view(torch.uint8)


class _Exchange:
    """Read the blocks of this rank and pass them on, block by block, in one order for all ranks."""

    def __init__(self, file: safe_open, mine: _Rank, result: _Result, at_most: int) -> None:
        self._file = file
        self._mine = mine
        self._result = result
        self._at_most = at_most
        self._failure: Exception | None = None

    def run(self, shares: Sequence[Share]) -> Exception | None:
        """Return the failure of reading. The other ranks learn of it, so none waits forever."""
        here = self._mine.number
        try:
            blocks = [block for share in shares for block in self._blocks_of(share)]
        except Exception as error:  # the same on all ranks
            return error
        own = [block for block in blocks if block.share.reader == here]
        ahead = iter(own)
        self._prefetch(next(ahead, None))
        for block in blocks:
            if block.share.reader == here:
                self._prefetch(next(ahead, None))
                self._hand_out(block, self._read(block))
            else:
                self._take(block)
        return self._failure

    def _blocks_of(self, share: Share) -> Iterator[_Block]:
        entry = self._file._files.entries[share.name]
        itemsize = entry.nbytes // torch.Size(entry.shape).numel()
        try:
            for box in blocks_of(share.box, itemsize, self._at_most):
                yield _Block(share, box)
        except ValueError as error:
            raise ValueError(f"load tensor '{share.name}': {error}, a third of memory_limit; raise it") from None

    def _prefetch(self, block: _Block | None) -> None:
        if block is None or self._failure is not None:
            return
        try:
            self._file.prefetch([(block.share.name, _index(block))])
        except Exception as error:
            self._failure = error

    def _read(self, block: _Block) -> torch.Tensor | None:
        if self._failure is not None:
            return None
        try:
            data: torch.Tensor = self._file.get_slice(block.share.name)[_index(block)]
            return data
        except Exception as error:
            self._failure = error
            return None

    def _hand_out(self, block: _Block, data: torch.Tensor | None) -> None:
        for rank, part in block.share.takers:
            if (piece := piece_of(part, block.box)) is None:
                continue
            there, here = piece
            if rank != self._mine.number:
                self._mine.send(torch.tensor([data is not None], dtype=torch.uint8), rank)
                if data is not None:
                    self._mine.send(_bytes(data[there].cpu().contiguous()), rank)
            elif data is not None:
                self._result.boxes[block.share.name][here].copy_(data[there])

    def _take(self, block: _Block) -> None:
        part = dict(block.share.takers).get(self._mine.number)
        if part is None or (piece := piece_of(part, block.box)) is None:
            return
        is_there = torch.zeros(1, dtype=torch.uint8)
        self._mine.receive(is_there, block.share.reader)
        if not is_there:
            return
        # Rows of a contiguous tensor are contiguous, too.
        target = self._result.boxes[block.share.name][piece[1]]
        received = target if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
        self._mine.receive(_bytes(received), block.share.reader)
        if received is not target:
            target.copy_(received)
