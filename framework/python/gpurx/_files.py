# SPDX-License-Identifier: Apache-2.0
"""The open files of a model: their tensors, and the file of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from . import _native
from ._error import Forbidden, NotFound
from ._locations import (
    INDEX_SUFFIX,
    Location,
    Locations,
    Shards,
    bad_files,
    is_http_directory,
    is_index,
    is_literal,
    is_prefix,
    join,
    local_path,
    redacted,
    select_files,
    shards_of,
)
from ._native import FlowBudget, HttpOptions, Operation, TensorFile
from ._options import Deadline, Options, Settings, settings_of
from ._session import Session
from ._wait import Steps, result_of, results_of, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Where the weights of a directory are, which fetch_model() has left at their place.
RECORD = "gpurx.json"

# Far above the index of the largest models.
_INDEX_LIMIT = 100_000_000


class Entry(NamedTuple):
    """A tensor that can be fetched."""

    name: str
    dtype: str  # as the format spells it
    shape: tuple[int, ...]
    nbytes: int
    file: int
    number: int  # position in the file


class Located(NamedTuple):
    """The files of a model, and more URLs for each."""

    shards: Shards
    mirrors: dict[str, list[str]]

    def some(self, part: slice) -> Located:
        """Return some of the files, with their tensors."""
        files = self.shards.files[part]
        known = {*files}
        return Located(Shards(files, {name: file for name, file in self.shards.file_of.items() if file in known}), self.mirrors)


class Files:
    """The files of a model, empty until open(). Opens a session if a server is involved and the caller gave none."""

    def __init__(self, locations: Locations, settings: Settings, session: Session | None) -> None:
        self._is_list = not isinstance(locations, (str, os.PathLike))
        given = [locations] if isinstance(locations, (str, os.PathLike)) else locations
        self._locations = [os.fspath(one) for one in given]
        if not self._locations:
            raise ValueError("pass at least one file")
        more = f" and {len(self._locations) - 1} more" if len(self._locations) > 1 else ""
        self.name = redacted(self._locations[0]) + more
        self._settings = settings
        self.session = session
        self._owns_session = False
        self.is_open = False
        self._was_opened = False
        self.files: list[TensorFile] = []
        self.entries: dict[str, Entry] = {}
        self.metadata: dict[str, str] = {}  # of all files; where they differ the first is right
        self._mirrors: dict[str, list[str]] = {}  # URLs for each file
        self.commits: list[tuple[str, str]] = []  # of the index and the files
        self._before = 0  # bytes fetched by open()
        self._after = 0  # bytes fetched before close()
        self._deadline = Deadline(settings.deadline)
        self._budget = FlowBudget(settings.http.flows)
        if self._is_list and settings.http.mirrors:
            raise ValueError("a list of files takes no mirrors: name their index")

    def locate(self) -> Steps[Located]:
        """Return the files of the model, without opening them. open() takes them, in this process or another one."""
        self._deadline = Deadline(self._settings.deadline)
        shards = yield from self._shards()
        return Located(shards, self._mirrors)

    def open(self, located: Located | None = None) -> Steps[None]:
        """Open the files of the model, or those of `located`."""
        self._deadline = Deadline(self._settings.deadline)
        try:
            shards, self._mirrors = located or Located((yield from self._shards()), self._mirrors)
            starts = [partial(self._start, one, located is None and len(shards.files) == 1) for one in shards.files]
            self.files = yield from results_of(starts, self._settings.http.flows)
            self.commits += [(at, one.commit) for at, one in zip(shards.files, self.files, strict=True)]
            _native.check_one_commit(self.commits)
            self.entries = self._entries(shards)
            self.metadata = {key: text for file in reversed(self.files) for key, text in file.metadata.items()}
        except BaseException:
            self.close()
            raise
        self._before = self._placed()
        self.is_open = self._was_opened = True

    @property
    def is_for_gpu(self) -> bool:
        return _native.parse_device(self._settings.device) >= 0

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.entries.values())

    def fetched(self) -> int:
        """Return the fetched bytes so far, including bytes between rows."""
        return min(self._placed() - self._before, self.nbytes)

    def check_was_opened(self) -> None:
        """Raise ValueError before open(). The list of tensors stays known after close()."""
        if not self._was_opened:
            raise ValueError(f"{self.name} is not open: await async_safe_open(…), or use it in `async with`, first")

    def check_open(self) -> None:
        self.check_was_opened()
        if not self.is_open:
            raise ValueError(f"{self.name} is closed")

    def file(self, number: int) -> TensorFile:
        files = self.files  # another thread may close them
        if not files:
            raise ValueError(f"{self.name} is closed")
        return files[number]

    def close(self) -> None:
        """Close the files and their kept connections, which would count as flows of the caller's session."""
        self.is_open = False
        self._after = self._placed()
        self.files = []
        if self._owns_session and self.session is not None:
            self.session.close()

    def _placed(self) -> int:
        return sum(file.bytes_placed for file in self.files) or self._after

    # ---- files as bytes ----

    def list_all(self) -> Steps[tuple[str, list[tuple[str, int | None, str]]]]:
        """Return the directory, with its commit if it is of the hub, and all files below it: name, size and ETag."""
        listing = _native.list_files(self._locations[0], True, self._deadline.of(self._settings.http))
        found: tuple[str, list[tuple[str, int | None, str]]] = yield from result_of(listing)
        return found

    def read_all(self, locations: Sequence[str], at_most: int) -> Steps[list[bytes]]:
        """Read small files, `flows` at a time."""
        starts = [partial(_native.read_url, *self._at(one), at_most, self._http_for(one)) for one in locations]
        results: list[tuple[bytes, str]] = yield from results_of(starts, self._settings.http.flows)
        return [data for data, _ in results]

    # ---- opening ----

    def _shards(self) -> Steps[Shards]:
        if self._is_list:
            return Shards(self._locations, {})
        location = recorded_weights(self._locations[0])
        self._mirrors[location] = mirrors = self._settings.http.mirrors
        if (there := (yield from self._in_directory(location))) is not None:
            index, files = select_files(there, location)
            for one in there:
                self._mirrors[one] = [join(mirror, os.path.basename(one)) for mirror in mirrors]
            if index is None:
                return Shards(files, {})
            location = index
        elif is_http_directory(location):
            return (yield from self._in_http_directory(location))
        if is_index(location):
            return (yield from self._read_index(location))
        return Shards([location], {})

    def _in_http_directory(self, location: str) -> Steps[Shards]:
        """Return the files of a directory of a server that cannot list it."""
        for name in (f"model{INDEX_SUFFIX}", "model.safetensors"):
            self._mirrors[join(location, name)] = [join(mirror, name) for mirror in self._settings.http.mirrors]
        try:
            return (yield from self._read_index(join(location, f"model{INDEX_SUFFIX}")))
        except (NotFound, Forbidden):  # S3 answers 403 for a missing object, if the client may not list
            return Shards([join(location, "model.safetensors")], {})

    def _read_index(self, location: str) -> Steps[Shards]:
        read = _native.read_url(*self._at(location), _INDEX_LIMIT, self._http_for(location))
        text, commit = yield from result_of(read)
        shards = shards_of(_native.url_at_commit(location, commit), text)
        self.commits.append((location, commit))
        elsewhere = [shards_of(mirror, text).files for mirror in self._mirrors[location]]
        self._mirrors |= {one: [files[number] for files in elsewhere] for number, one in enumerate(shards.files)}
        return shards

    def _in_directory(self, location: str) -> Steps[list[str] | None]:
        """Return the files of a directory. None: it is none."""
        path = local_path(location)
        if not (is_prefix(location) if path is None else os.path.isdir(path)):
            return None
        where, files = yield from result_of(_native.list_files(path or location, False, self._settings.http))
        return [where + name for name, *_ in files]

    def _at(self, location: str) -> tuple[Session | None, str]:
        """Return the session and the location for a request. A file needs no session."""
        if (path := local_path(location)) is not None:
            return None, path
        if self.session is None:
            self.session = self._settings.open_session()
            self._owns_session = True
        return self.session, location

    def _http_for(self, location: str) -> HttpOptions:
        return self._deadline.of(self._settings.http).with_mirrors(self._mirrors.get(location, []))

    def _start(self, location: str, goes_on: bool) -> Operation:
        return _native.open_url(*self._at(location), self._settings.device, self._http_for(location), goes_on, self._budget)

    def _entries(self, shards: Shards) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for number, file in enumerate(self.files):
            for position, (name, dtype, shape, nbytes) in enumerate(file.tensors):
                if name in entries:
                    both = f"{redacted(shards.files[entries[name].file])} and {redacted(shards.files[number])}"
                    raise bad_files(f"tensor '{name}' is in two files, {both}", self.name)
                entries[name] = Entry(name, dtype, shape, nbytes, number, position)
        if shards.file_of:
            self._compare(entries, shards)
        return entries

    def _compare(self, entries: dict[str, Entry], shards: Shards) -> None:
        """Raise an Error if a file lacks a tensor of the index. Tensors that the index lacks belong to the model, too."""
        for name, file in shards.file_of.items():
            if name not in entries:
                raise bad_files(f"tensor '{name}' is missing: the index has it in {redacted(file)}", self.name)
            if (there := shards.files[entries[name].file]) != file:
                raise bad_files(f"the index has tensor '{name}' in {redacted(file)}, and it is in {redacted(there)}", self.name)


def recorded_weights(location: str) -> str:
    """Return the place of the weights, if it is a directory of fetch_model() without weights. Else the location itself."""
    path = local_path(location)
    if path is None or not os.path.isfile(os.path.join(path, RECORD)):
        return location
    if any(one.endswith(".safetensors") for one in os.listdir(path)):
        return location
    try:
        weights: str = json.loads(Path(path, RECORD).read_bytes())["weights"]
        if is_literal(weights) or os.path.isabs(weights):
            return weights
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise bad_files(f"{RECORD} names no place of weights; call fetch_model() again", location)


def groups(entries: Iterator[Entry], first: int, most: int) -> Iterator[list[Entry]]:
    """Yield neighbours to fetch at once: at most `first` bytes, then more, up to `most`; a larger tensor alone."""
    group: list[Entry] = []
    size, limit = 0, first
    for one in entries:
        if group and (one.file != group[0].file or size + one.nbytes > limit):
            yield group
            group, size, limit = [], 0, min(2 * limit, most)
        group.append(one)
        size += one.nbytes
    if group:
        yield group


def list_files(url: Location, *, recursive: bool = False, **options: Unpack[Options]) -> list[str]:
    """Return the names of the files of a directory, sorted.

        gpurx.list_files("hf://org/model@v1.0")            # ["config.json", "model.safetensors", …]

    * url: a path, a prefix of s3://, gs:// or az://, or a model of Hugging Face's hub: hf://ORG/MODEL@REVISION/DIRECTORY/.
    * recursive: include the files of directories below it, as DIRECTORY/NAME.
    * options: see gpurx.Options. They need no session.

    Raises gpurx.Error; NotFound if there is no such directory, and Forbidden if the server or the system denies it.
    """
    location = os.fspath(url)
    http = settings_of("host", options).http
    _, files = run(result_of(_native.list_files(local_path(location) or location, recursive, http)))
    return [name for name, *_ in files]
