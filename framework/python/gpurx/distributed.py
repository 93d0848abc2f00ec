# SPDX-License-Identifier: Apache-2.0
"""Tensor parallel loading with torch.distributed. Needs torch; `import gpurx` does not.

One rank of a machine fetches the bytes that several of its ranks need.

    weights = gpurx.distributed.load(url, {"up.weight": np.s_[rank::ranks], "down.weight": np.s_[:, 512:1024], "norm": ...})

    for name, whole in gpurx.distributed.tensors(url):  # in memory that the ranks of a machine share
        parameters[name].copy_(whole.chunk(ranks)[rank])

Each rank of load() names its slices. tensors() is for programs that cut whole tensors themselves.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from . import _native
from ._arguments import Device
from ._convert import FORMAT_TYPES, to_torch, torch_type
from ._files import Entry, Located
from ._locations import Locations, Shards, bad_files
from ._native import Tensor
from ._open import safe_open
from ._options import Options
from ._peers import Block, Peers, failure_of
from ._reading import Arrival, Model
from ._session import Session
from ._slices import Part, Range, Share, Wanted, blocks_of, part_of, piece_of, shares_of
from ._wait import run

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Commits = list[tuple[str, str]]  # of files
_Tensors = Iterator[tuple[str, torch.Tensor]]


def load(
    url: Locations,
    plan: Mapping[str, Any],
    device: Device = "cpu",
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
    file, located, _ = _meet(mine, lambda: _Model(url, "pt", device, memory_limit=memory_limit, session=session, **options))
    failure, result = None, None
    try:
        try:
            run(file._files.open(located))
            result = _Result(file, plan, device)
        except Exception as error:
            failure = error
        all_wanted = mine.gather(failure, result and result.parts)
        assert result
        shares = shares_of(_wanted(file, all_wanted), mine.nodes())
        failure = _Exchange(file, mine, result, memory_limit // 3).run(shares)
        mine.gather(failure, None)
        return result.tensors()
    finally:
        file.close()


def tensors(
    url: Locations,
    *,
    group: Any = None,
    memory_limit: int | None = None,
    session: Session | None = None,
    **options: Unpack[Options],
) -> Generator[tuple[str, torch.Tensor], None, None]:
    """Iterate over all tensors of a model, whose bytes a machine fetches once. Yields pairs of a name and a tensor.

        for name, whole in gpurx.distributed.tensors(url):
            parameters[name].copy_(whole.chunk(ranks)[rank])

    * url: files of a model, as for gpurx.safe_open(). Only the first rank lists a directory or reads an index.
    * group: group of torch.distributed, as for load(). The ranks use it once, at the beginning.
    * memory_limit: bytes that a rank fetches ahead at most. The shared copies of at most two blocks are additional.
    * session, options: see gpurx.Options.

    This is a collective operation: all ranks of `group` iterate over the same files, to the end. Each file has one reader
    among the ranks of a machine, which passes the tensors on in shared memory. All ranks get them in the same order, in
    which the files alternate.

    Tensors are on the host. A rank may write to them, and no other rank sees it. Pages that a rank does not touch cost it
    nothing, so it copies only its slice. The memory lives until every rank has released the tensors that arrived together.

    gpurx compares the checksum of each file. A failure on one rank raises an Error with its number on every rank of its
    machine. So does a rank that ends, or stops the iteration.
    """
    if dist.get_backend(group) == "nccl":
        raise ValueError("the group must carry tensors of the host: pass group=torch.distributed.new_group(backend='gloo')")
    mine = _Rank(group)
    peers = Peers()
    try:
        made = lambda: _Model(url, "gpurx", memory_limit=memory_limit, session=session, **options)  # noqa: E731
        model, located, names = _meet(mine, made, peers.name)
        with model:
            yield from _shared(model, located, mine, names, peers)
    finally:
        peers.close()


class _Model(safe_open[Any]):
    """A model that is not open yet."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Model.__init__(self, *arguments, progress=False, **options)  # lines of several ranks would mix


def _meet(mine: _Rank, make: Callable[[], _Model], name: str = "") -> tuple[_Model, Located, dict[int, str]]:
    """Make the model on each rank. The first one finds the files for all, so all have the same revision.

    Returns the model, the files, and the names of the ranks. A failure on one rank raises on all.
    """
    model, found, failure = None, None, None
    try:
        model = make()
        found = run(model._files.locate()) if mine.is_first else None
    except Exception as error:
        failure = error
    try:
        told = mine.gather(failure, [name, found])
    except BaseException:
        if model is not None:
            model.close()
        raise
    assert model is not None
    (shards, mirrors) = next(found for _, found in told.values() if found)
    return model, Located(Shards(*shards), mirrors), {rank: name for rank, (name, _) in told.items()}


def _shared(model: _Model, located: Located, mine: _Rank, names: Mapping[int, str], peers: Peers) -> _Tensors:
    """Yield all tensors. The files have the ranks of this machine as readers, in turn."""
    nodes = mine.nodes()
    here = [rank for rank in names if nodes[rank] == nodes[mine.number]]
    peers.meet(mine.number, {rank: names[rank] for rank in here})
    try:
        run(model._files.open(located.some(slice(here.index(mine.number), None, len(here)))))
        yield from _in_turns(model, mine.number, here[: len(located.shards.files)], peers)
    except Exception as error:
        peers.fail(str(error))
        raise


def _in_turns(model: _Model, here: int, readers: list[int], peers: Peers) -> _Tensors:
    """Yield the tensors of all readers, a block of each in turn. A rank passes its block on before it uses those of others."""
    # The first request of a file is a whole chunk. A first group that needs less would waste the rest.
    arrival = Arrival(model, first=1 << 62)
    commits: dict[int, _Commits] = {}
    met: set[str] = set()
    try:
        while readers:
            own = _passed_on(run(arrival.some()), model._files.commits, peers) if here in readers else None
            for rank in [*readers]:
                if (block := own if rank == here else _opened(peers.take(rank))) is None:
                    readers.remove(rank)
                    continue
                commits[rank], some = block
                _native.check_one_commit([one for each in commits.values() for one in each])
                for name, tensor in some:
                    if name in met:
                        raise bad_files(f"tensor '{name}' is in two files", model._files.name)
                    met.add(name)
                    yield name, tensor
    finally:
        arrival.close()


_ALIGNMENT = 64
_INDEX = struct.Struct("=Q")  # of a block: where the description of its tensors begins


def _passed_on(some: Sequence[tuple[Entry, Tensor]], commits: _Commits, peers: Peers) -> tuple[_Commits, _Tensors] | None:
    """Pass the tensors on in a block, and return them. None: there are none, as after the last ones."""
    if not some:
        peers.end()
        return None
    if peers.are_none:
        return commits, ((entry.name, to_torch(one)) for entry, one in some)
    at, tensors = _ALIGNMENT, []
    for entry, one in some:
        tensors.append((entry.name, one.dtype, one.shape, at, one.nbytes))
        at += -(-one.nbytes // _ALIGNMENT) * _ALIGNMENT
    text = json.dumps((commits, tensors)).encode()
    block = Block.of(at + len(text))
    memory = block.shared()
    _INDEX.pack_into(memory, 0, at)
    memory[at:] = text
    for (_, one), (*_, begin, nbytes) in zip(some, tensors, strict=True):
        if nbytes:
            target = torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=begin)
            target.copy_(torch.from_dlpack(_native.bytes_of(one)))
    peers.give(block)
    return _opened(block)


def _opened(block: Block | None) -> tuple[_Commits, _Tensors] | None:
    if block is None:
        return None
    memory = block.private()
    commits, tensors = json.loads(memory[_INDEX.unpack_from(memory)[0] :])
    return [(url, commit) for url, commit in commits], _tensors_in(memory, tensors)


def _tensors_in(memory: mmap.mmap, tensors: list[tuple[str, str, list[int], int, int]]) -> _Tensors:
    for name, dtype, shape, begin, nbytes in tensors:
        kind = torch_type(dtype)
        if str(kind).endswith("_x2"):  # pairs of elements
            shape[-1] //= 2
        if nbytes:
            yield name, torch.frombuffer(memory, dtype=torch.uint8, count=nbytes, offset=begin).view(kind).reshape(shape)
        else:
            yield name, torch.empty(shape, dtype=kind)


def _node() -> str:
    """Return an identifier of this machine. A container with its own host name or network counts as a machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + socket.gethostname() + os.readlink("/proc/self/ns/net")


def _all_gather(value: Any, group: Any) -> list[Any]:
    """Gather values of JSON from all ranks. Torch's own function for objects needs a fitting numpy, and unpickles received
    bytes.
    """
    text = bytearray(json.dumps(value).encode())
    ranks = dist.get_world_size(group)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(sizes, torch.tensor([len(text)]), group=group)
    longest = max(int(size) for size in sizes)
    texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(ranks)]
    dist.all_gather(texts, torch.frombuffer(text.ljust(longest), dtype=torch.uint8), group=group)
    return [json.loads(ctypes.string_at(one.data_ptr(), int(size))) for one, size in zip(texts, sizes, strict=True)]


class _Rank:
    """Communicate within the group. Rank numbers are those of the default group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.number = dist.get_rank()
        self.is_first = dist.get_rank(group) == 0
        self._ranks: dict[int, str] = {}

    def gather(self, failure: Exception | None, value: Any) -> dict[int, Any]:
        """Return the value of each rank. A failure on one rank raises on all."""
        told = _all_gather([self.number, _node(), failure and str(failure), value], self.group)
        self._ranks = {rank: node for rank, node, _, _ in told}
        if failure is not None:
            raise failure
        for rank, _, text, _ in told:
            if text is not None:
                raise failure_of(rank, text)
        return {rank: one for rank, _, _, one in told}

    def nodes(self) -> dict[int, str]:
        return self._ranks

    def send(self, data: torch.Tensor, to: int) -> None:
        dist.send(data, to, group=self.group)

    def receive(self, data: torch.Tensor, source: int) -> None:
        dist.recv(data, source, group=self.group)


class _Result:
    """Tensors of this rank, empty at first."""

    def __init__(self, file: safe_open[Any], plan: Mapping[str, Any], device: Any) -> None:
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


def _wanted(file: safe_open[Any], parts: Mapping[int, Mapping[str, Any]]) -> list[Wanted]:
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

    def __init__(self, file: safe_open[Any], mine: _Rank, result: _Result, at_most: int) -> None:
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
        own = deque(block for block in blocks if block.share.reader == here)
        coming: deque[int] = deque()  # bytes of the blocks that are under way
        for block in blocks:
            if block.share.reader == here:
                while own and (len(coming) < 2 or sum(coming) + self._bytes_of(own[0]) <= self._at_most):
                    coming.append(self._bytes_of(own[0]))
                    self._prefetch(own.popleft())
                self._hand_out(block, self._read(block))
                coming.popleft()
            else:
                self._take(block)
        return self._failure

    def _bytes_of(self, block: _Block) -> int:
        entry = self._file._files.entries[block.share.name]
        part = math.prod(end - begin for begin, end in block.box)
        return entry.nbytes * part // math.prod(entry.shape)

    def _blocks_of(self, share: Share) -> Iterator[_Block]:
        entry = self._file._files.entries[share.name]
        itemsize = entry.nbytes // torch.Size(entry.shape).numel()
        try:
            for box in blocks_of(share.box, itemsize, self._at_most):
                yield _Block(share, box)
        except ValueError as error:
            raise ValueError(f"load tensor '{share.name}': {error}, a third of memory_limit; raise it") from None

    def _prefetch(self, block: _Block) -> None:
        if self._failure is not None:
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
