# SPDX-License-Identifier: Apache-2.0
"""The files of a model that are not weights, on disk, and a record of the place of the weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ._error import Error
from ._files import RECORD, Files
from ._locations import Location, bad_files, is_beside, local_path, redacted
from ._native import IngestErrorCode
from ._options import Options, settings_of
from ._wait import Steps, run
from ._writing import PARTIAL, remove_interrupted, replacing

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Far above the tokenizers of the largest models.
_FILE_LIMIT = 1 << 30

_WEIGHTS = (
    ".safetensors", ".index.json", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".tflite",
    ".ot", ".npz", ".nemo", ".distcp", ".mlmodel", ".llamafile",
)  # fmt: skip


def fetch_model(url: Location, directory: Location, **options: Unpack[Options]) -> str:
    """Fetch all files of a model that are not weights into a directory of this machine, and return its path.

        directory = gpurx.fetch_model("s3://models/llama/", "llama")
        engine = vllm.LLM(directory, load_format="gpurx")

    * url: an S3 prefix, a model of Hugging Face's hub, or a directory of this machine, as for gpurx.list_files(). The names
      of its files keep their directories below it.
    * directory: made if it does not exist.
    * options: see gpurx.Options.

    The weights stay at their place. The directory records it in `gpurx.json`: gpurx.safe_open(), load_file() and vLLM's load
    format "gpurx" take the directory as the model. A model of the hub is of one commit, also its weights.

    A second call lists the model again, and fetches the files whose size, ETag or commit differs. It removes files that the
    model no longer has. Each file appears at once with all of its bytes, or not at all. Several processes may call it for
    one directory.

    Raises gpurx.Error as gpurx.list_files() does, and for a name that leads out of the directory. Raises OSError if the
    directory cannot be written.
    """
    location, into = os.fspath(url), os.fspath(directory)
    path = local_path(location)
    files = Files(location if path is None else os.path.abspath(path), settings_of("host", options), None)
    try:
        run(_update(files, into))
    finally:
        files.close()
    return into


class _Listed(NamedTuple):
    """A file of the model. Another version has other values."""

    size: int | None
    version: str  # ETag, or URL at a commit


def _update(files: Files, into: str) -> Steps[None]:
    where, listed = yield from files.list_all()
    if not any(name.endswith(".safetensors") for name, _, _ in listed):
        raise bad_files("there is no .safetensors file in it", where)
    there = _chosen(where, listed)
    remove_interrupted(Path(into))
    before = _recorded(into)
    changed = [name for name, one in there.items() if before.get(name) != one or not _is_whole(os.path.join(into, name), one)]
    contents = yield from files.read_all([where + name for name in changed], _FILE_LIMIT)
    for name, data in zip(changed, contents, strict=True):
        if there[name].size not in (None, len(data)):
            raise _has_changed(where + name)
        _write(into, name, data)
    for name in before.keys() - there.keys():
        Path(into, name).unlink(missing_ok=True)
    record = json.dumps({"weights": where, "files": there}, indent=1).encode()
    if not changed and _content_of(into) == record:
        return  # the directory may be one that cannot be written
    _write(into, RECORD, record)


def _chosen(where: str, listed: list[tuple[str, int | None, str]]) -> dict[str, _Listed]:
    """Return the files to fetch."""
    chosen = {}
    for name, size, etag in listed:
        if not is_beside(name):
            raise bad_files(f"it has the file {name!r}, which is not a name in a directory", where)
        if not name.endswith((*_WEIGHTS, "/")) and os.path.basename(name) != RECORD and not name.startswith(PARTIAL):
            chosen[name] = _Listed(size, etag or _time_of(where + name) or where + name)
    return chosen


def _time_of(location: str) -> str:
    """Return the time of the last write of a file of this machine."""
    path = local_path(location)
    return "" if path is None else str(os.stat(path).st_mtime_ns)


def _recorded(into: str) -> dict[str, _Listed]:
    """Return the files of the last call that has finished, if there is one."""
    try:
        return {name: _Listed(*one) for name, one in json.loads(_content_of(into))["files"].items() if is_beside(name)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _content_of(into: str) -> bytes:
    """Return the record, or nothing if there is none."""
    try:
        return Path(into, RECORD).read_bytes()
    except FileNotFoundError:
        return b""


def _is_whole(path: str, one: _Listed) -> bool:
    """Return whether the file is there with its size, if that is known."""
    return os.path.isfile(path) and one.size in (None, os.path.getsize(path))


def _has_changed(url: str) -> Error:
    advice = "its size is not that of the list; call fetch_model() again"
    name = redacted(url)
    return Error(f"fetch {name}: {advice}", IngestErrorCode.OBJECT_CHANGED, "gpurx.ingest", "fetch", name, "", advice)


# ---- files on disk ----


def _write(into: str, name: str, data: bytes) -> None:
    """Replace a file at once."""
    with replacing(Path(into, name), Path(into)) as file:
        file.write(data)
