# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of torch.distributed.checkpoint: from a server straight into memory of the device, and to S3.

    dcp.save(state, storage_writer=gpurx.dcp.StorageWriter("s3://checkpoints/step-1000/"))
    dcp.load(state, storage_reader=gpurx.dcp.StorageReader("s3://checkpoints/step-1000/"))
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as _metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan
from torch.distributed.checkpoint.storage import StorageReader as _Base
from torch.futures import Future

from . import _native
from ._convert import to_torch
from ._error import Error
from ._locations import is_beside, join, local_path, redacted
from ._native import FlowBudget, OpenObject, Operation
from ._options import Deadline, Options, settings_of
from ._session import Session
from ._wait import wait
from ._writing import PART_SIZE, Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Far above the metadata of the largest checkpoints.
_METADATA_LIMIT = 1 << 30

# Beside those of torch.distributed.checkpoint.metadata.
_IN_METADATA = {
    ("builtins", "set"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("torch", "Size"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}


# Parts of memory_limit that are under way beside each other.
_BESIDE = 4

# A stored piece of a tensor or other entry, and the plan's items that need it.
Piece = tuple[Any, list[ReadItem]]
# Offset and size of each.
Ranges = Sequence[tuple[int, int]]


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickle .metadata of an untrusted source: make the types of checkpoints, and call nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = module == _metadata.__name__ and "." not in name and isinstance(getattr(_metadata, name, None), type)
        if allowed or (module, name) in _IN_METADATA:
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), (torch.dtype, torch.layout)):
            return found
        raise pickle.UnpicklingError(f"it has a {module}.{name}, which no checkpoint of torch's own writer has")


class _Bytes(io.RawIOBase):
    """Provide bytes of any device as a file. Only the bytes that are read come to the host."""

    def __init__(self, data: torch.Tensor) -> None:
        self._data = data
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence])
        return self._at

    def readinto(self, into: Any) -> int:
        some = self._data[self._at : self._at + len(into)].cpu().numpy()
        into[: len(some)] = memoryview(some)
        self._at += len(some)
        return len(some)


def _tensor_in(saved: torch.Tensor) -> torch.Tensor:
    """Return the tensor that torch.save() wrote into these bytes, as a view."""
    seen = torch.load(_Bytes(saved), map_location="meta", weights_only=True)  # type: ignore[arg-type, unused-ignore]
    storage = seen.untyped_storage()
    first = storage._checkpoint_offset
    elements = saved[first : first + storage.nbytes()].view(seen.dtype)
    return elements.as_strided(seen.size(), seen.stride(), elements.storage_offset() + seen.storage_offset())


def _hand_over(saved: torch.Tensor, item: ReadItem, planner: LoadPlanner) -> None:
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, io.BytesIO(saved.cpu().numpy().tobytes()))
        return
    part = narrow_tensor_by_index(_tensor_in(saved), item.storage_offsets, item.lengths)
    target = planner.resolve_tensor(item).detach()
    if target.size() != part.size():
        raise ValueError(
            f"load {item.storage_index.fqn}: it has {list(part.size())} elements where {list(target.size())} belong"
        )
    target.copy_(part)
    planner.commit_tensor(item, target)


def _batches(pieces: Iterable[Piece], limit: int) -> Iterator[list[Piece]]:
    """Yield pieces in the order of a file, `limit` bytes at a time, at least one piece."""
    batch: list[Piece] = []
    size = 0
    for info, requests in sorted(pieces, key=lambda one: (one[0].relative_path, one[0].offset)):
        if batch and (size + info.length > limit or info.relative_path != batch[0][0].relative_path):
            yield batch
            batch, size = [], 0
        batch.append((info, requests))
        size += info.length
    if batch:
        yield batch


def _arriving(
    batches: Iterator[list[Piece]], limit: int, start: Callable[[str, Ranges], Operation]
) -> Iterator[tuple[list[Piece], list[torch.Tensor]]]:
    """Read batches beside each other, `limit` bytes at a time, and yield them in their order with their bytes."""
    coming: deque[tuple[list[Piece], int, Operation]] = deque()
    held = 0
    batch = next(batches, None)
    try:
        while coming or batch:
            while batch and (held + (size := sum(info.length for info, _ in batch)) <= limit or not held):
                operation = start(batch[0][0].relative_path, [(info.offset, info.length) for info, _ in batch])
                coming.append((batch, size, operation))
                held += size
                batch = next(batches, None)
            arrived, size, operation = coming.popleft()
            operation.hurry()
            yield arrived, [to_torch(one) for one in wait(operation)]
            held -= size
    finally:
        for *_, operation in reversed(coming):  # the last ones wait for connections of the first
            operation.cancel()


def _device_of(plan: LoadPlan, planner: LoadPlanner) -> str:
    """Return the device of the first tensor on a GPU, else the host."""
    for item in plan.items:
        if item.type != LoadItemType.BYTE_IO and (device := planner.resolve_tensor(item).device).type == "cuda":
            return f"cuda:{device.index or 0}"
    return "host"


class StorageReader(_Base):  # type: ignore[misc, unused-ignore]
    """Read checkpoints of torch's FileSystemWriter from the URL of their directory, or from a path.

    * checkpoint_id: URL or path of the directory.
    * device: memory for received bytes. None: the device of the tensors to be loaded.
    * memory_limit: bytes that are under way or not yet in their tensors. A larger piece is read alone.
    * session, options: see gpurx.Options.

    Each rank reads the pieces of its own plan, each piece once, and copies them to their tensors. It reads several files
    beside each other, through `flows` connections together. If a rank reads all of a
    file, gpurx compares its checksum after the last bytes. Earlier pieces are in their tensors by then: a failed load
    leaves the state partly loaded.

    Checkpoints with extensions, such as compression, raise ValueError. Torch's planner unpickles non-tensor entries; load
    only checkpoints that you trust.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] = "",
        *,
        device: Any = None,
        memory_limit: int = 512 << 20,
        session: Session | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        self._device = device
        self._limit = memory_limit
        self._given = session
        self._settings = settings_of("host", options)
        self._deadline = Deadline(self._settings.deadline)
        self._stored: dict[Any, Any] = {}
        self._empty: list[Any] = []
        self.reset(checkpoint_id)

    # ---- torch's ----

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        path = local_path(os.fspath(checkpoint_id))
        return path is None or os.path.isdir(path)

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """URL or path of the checkpoint."""
        return self._directory

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._stored, self._empty = {}, []
        self._commit = ""  # of .metadata, if it is of a hub
        if checkpoint_id:
            self._directory = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        self._deadline = Deadline(self._settings.deadline)  # a load begins with it
        rank = kwargs.get("rank")
        name = ".metadata" if rank is None else f"__{rank}.metadata"
        text = self._read_small(name)
        try:
            found = _MetadataUnpickler(io.BytesIO(text)).load()
        except Exception as error:  # any exception of a damaged pickle
            raise ValueError(f"read {redacted(self._at(name)[0])}: it is no checkpoint's metadata: {error}") from error
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = _metadata.StorageMeta()
        return found

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._stored = metadata.storage_data
        empty = {name for name, one in metadata.state_dict_metadata.items() if 0 in getattr(one, "size", ())}
        # No plan has a tensor without elements, but the file has bytes of it, which its checksum covers.
        self._empty = [info for index, info in self._stored.items() if index.fqn in empty]

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        device = _device_of(plan, planner) if self._device is None else self._device
        with self._reading(device) as start:
            batches = _batches(self._pieces(plan), max(1, self._limit // _BESIDE))
            for batch, saved in _arriving(batches, self._limit, start):
                for data, (_, items) in zip(saved, batch, strict=True):
                    for item in items:
                        _hand_over(data, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # ---- implementation ----

    def _pieces(self, plan: LoadPlan) -> Iterable[Piece]:
        """Return the pieces to read. Items that share a stored piece read it once."""
        pieces: dict[tuple[str, int], Piece] = {}
        for item in plan.items:
            info = self._stored[item.storage_index]
            if getattr(info, "transform_descriptors", None):
                raise ValueError(
                    f"read {item.storage_index.fqn} of {redacted(self._directory)}: it was written with "
                    f"{info.transform_descriptors}; write checkpoints for gpurx without extensions"
                )
            if not is_beside(info.relative_path):
                raise ValueError(
                    f"read {item.storage_index.fqn} of {redacted(self._directory)}: .metadata has it in {info.relative_path!r}, "
                    "which is no file of the checkpoint"
                )
            pieces.setdefault((info.relative_path, info.offset), (info, []))[1].append(item)
        files = {name for name, _ in pieces}
        for info in self._empty:
            if info.relative_path in files:
                pieces.setdefault((info.relative_path, info.offset), (info, []))
        return pieces.values()

    def _at(self, name: str) -> tuple[str, _native.HttpOptions]:
        """Return the location of a file of the checkpoint, and the options of its requests."""
        http = self._deadline.of(self._settings.http)
        return _native.url_at_commit(join(self._directory, name), self._commit), http.with_mirrors([join(one, name) for one in http.mirrors])

    @contextmanager
    def _session(self, memory: Any) -> Iterator[Session | None]:
        """Provide a session. None: files of this machine need none."""
        if self._given is not None or local_path(self._directory) is not None:
            yield self._given
            return
        with self._settings._replace(device=memory).open_session() as session:
            yield session

    def _read_small(self, name: str) -> bytes:
        with self._session("host") as session:
            location, http = self._at(name)
            text: bytes
            text, self._commit = wait(_native.read_url(session, location, _METADATA_LIMIT, http))
            return text

    @contextmanager
    def _reading(self, device: Any) -> Iterator[Callable[[str, Ranges], Operation]]:
        """Provide a function that starts to read ranges of a file of the checkpoint into memory of the device."""
        with self._session(device) as session:
            budget = FlowBudget(self._settings.http.flows)
            current: dict[str, OpenObject] = {}  # the file of the last batch; an operation keeps its file

            def start(name: str, ranges: Ranges) -> Operation:
                if name not in current:
                    current.clear()
                    location, http = self._at(name)
                    current[name] = OpenObject(session, location, device, http, budget)
                return current[name].fetch(ranges)

            try:
                yield start
            finally:
                current.clear()


# Data of one save. Another save into the same directory has other names, so the last .metadata keeps its files.
_DATA = re.compile(r"__([0-9a-f-]{36})_\d+_\d+\.distcp")


class _Stored:
    """Files of a checkpoint, as torch's writer makes them."""

    def __init__(self, writer: Writer) -> None:
        self.create_stream = lambda path, mode: writer.create(path)
        self.concat_path = join
        self.init_path = os.fspath


class StorageWriter(filesystem.FileSystemWriter):  # type: ignore[misc, unused-ignore]
    """Write checkpoints of torch.distributed.checkpoint to a directory of S3 or of this machine, as torch's FileSystemWriter
    does. StorageReader and torch's FileSystemReader read them.

    * checkpoint_id: s3:// URL or path of the directory.
    * overwrite: replace a checkpoint in the directory. False: raise FileExistsError if there is one.
    * part_size: bytes of a request to S3, as for gpurx.save_file(). A rank holds `flows` + 1 of them.
    * single_file_per_rank, per_thread_copy_ahead: as for FileSystemWriter.
    * options: see gpurx.Options. Writing uses them as gpurx.save_file() does.

    Every file appears with all of its bytes, and .metadata is the last one. A reader sees the last complete checkpoint until
    then, also if writers are killed: each save has names of its own. Afterwards the writer removes the files of earlier saves
    and parts of killed ones. Only one save at a time may write to a directory.

    S3 compares the CRC32C of each part and of each file, and StorageReader compares that of the file. A failed part is sent
    again. Writing to S3 needs boto3. Without `credentials`, boto3 looks for them.
    """

    def __init__(
        self,
        checkpoint_id: str | os.PathLike[str] = "",
        *,
        overwrite: bool = True,
        part_size: int = PART_SIZE,
        single_file_per_rank: bool = True,
        per_thread_copy_ahead: int = 10_000_000,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            "",
            single_file_per_rank=single_file_per_rank,
            sync_files=False,  # the writer below does
            per_thread_copy_ahead=per_thread_copy_ahead,
            overwrite=overwrite,
        )
        self._writer = Writer(options, part_size)
        self.fs = _Stored(self._writer)
        self.path = os.fspath(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        location = os.fspath(checkpoint_id)
        return local_path(location) is not None or location.lower().startswith("s3://")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        if not self.overwrite and self._writer.exists(join(self.path, self._name())):
            raise FileExistsError(f"save {redacted(self.path)}: it has a checkpoint, and overwrite is False")
        if not self._is_common():
            return self._named(plan, self.rank)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [one if one.storage_data else self._named(one, rank) for rank, one in enumerate(plans)]

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        if version := getattr(filesystem, "CURRENT_DCP_VERSION", None):
            metadata.version = version
        metadata.storage_data = {one.index: one.storage_data for of_rank in results for one in of_rank}
        metadata.storage_meta = self.storage_meta()
        with self._writer.create(join(self.path, self._name())) as file:
            file.write(pickle.dumps(metadata))
        if self._is_common():
            self._clean({one.relative_path for one in metadata.storage_data.values()})

    # ---- implementation ----

    def _is_common(self) -> bool:
        """Return whether the ranks have one .metadata together."""
        return getattr(self, "use_collectives", True) or self.rank is None

    def _name(self) -> str:
        return ".metadata" if self._is_common() else f"__{self.rank}.metadata"

    def _named(self, plan: SavePlan, rank: int | None) -> SavePlan:
        return dataclasses.replace(plan, storage_data=filesystem._StoragePrefix(f"__{self.save_id}_{rank}_"))

    def _clean(self, names: set[str]) -> None:
        """Remove data that no .metadata names any more. The checkpoint is complete, so a failure is a warning."""
        try:
            others = [name for name in self._writer.names(self.path) if _DATA.fullmatch(name) and name not in names]
            self._writer.remove(self.path, others)
            self._writer.end_uploads(self.path, lambda name: bool(_DATA.fullmatch(name)))
        except (Error, OSError) as error:
            warnings.warn(f"files of earlier checkpoints are left: {error}", RuntimeWarning, stacklevel=2)
