# SPDX-License-Identifier: Apache-2.0
"""Locations of the files of a model: a file, its shards, their directory, or an index of them. No input or output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit, urlunsplit

from ._error import Error
from ._native import IngestErrorCode, is_checkpoint, redacted_url

Location = str | os.PathLike[str]
Locations = Location | Sequence[Location]

INDEX_SUFFIX = ".safetensors.index.json"


class Shards(NamedTuple):
    """Content of an index: the files, in the order of their first mention, and the file of each tensor."""

    files: list[str]
    file_of: dict[str, str]


def redacted(location: str) -> str:
    """Return the location for messages, without the secrets that a URL may have."""
    return location if local_path(location) is not None else redacted_url(location)


def bad_files(text: str, location: str) -> Error:
    name = redacted(location)
    return Error(
        f"read {name}: {text}",
        code=IngestErrorCode.BAD_SAFETENSORS,
        category="gpurx.ingest",
        operation="read",
        object=name,
        advice=text,
    )


def local_path(location: str) -> str | None:
    """Return the path of a file of this machine, from a path or a file:// URL. None: it is elsewhere."""
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", location):
        return location
    parts = urlsplit(location)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise ValueError(f"{location!r} names another machine: a file:// URL is one of this machine, file:///PATH")
    return unquote(parts.path)


def is_literal(location: str) -> bool:
    """Return whether it is an s3://, gs://, az:// or hf:// URL. All behind its bucket or model is a name, unquoted."""
    return location.lower().startswith(("s3://", "gs://", "az://", "hf://"))


def is_prefix(location: str) -> bool:
    """Return whether it is a directory of a server that lists its files: a prefix of a bucket, or a model of the hub."""
    return is_literal(location) and not is_index(location) and is_checkpoint(location)


def is_http_directory(location: str) -> bool:
    """Return whether it is a directory of a server that cannot list it."""
    return bool(re.match("https?://", location, re.IGNORECASE)) and urlsplit(location).path.endswith("/")


def is_index(location: str) -> bool:
    if is_literal(location) or local_path(location) is not None:
        return location.endswith(".json")
    return urlsplit(location).path.endswith(".json")


def _one_form(locations: list[str]) -> list[str]:
    """Return those of the model's first form, of model* and consolidated*, which some publishers put side by side."""
    if not any(os.path.basename(one).startswith("model") for one in locations):
        return locations
    return [one for one in locations if not os.path.basename(one).startswith("consolidated")]


def select_files(locations: Sequence[str], where: str) -> tuple[str | None, list[str]]:
    """Return the index or None, and the files of tensors."""
    indices = _one_form([one for one in locations if one.endswith(INDEX_SUFFIX)])
    files = _one_form([one for one in locations if one.endswith(".safetensors")])
    if len(indices) > 1:
        raise bad_files(f"it has several indices: {', '.join(map(redacted, indices))}; pass the URL or path of one", where)
    if not files:
        raise bad_files("there is no .safetensors file in it", where)
    return (indices[0] if indices else None), files


def join(directory: str, name: str) -> str:
    """Return the location of a file in a directory, or below a URL or prefix, which may have a query."""
    if (path := local_path(directory)) is not None:
        return os.path.join(path, name)
    if is_literal(directory):
        return f"{directory.rstrip('/')}/{name}"
    parts = urlsplit(directory)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}").geturl()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"'{next(name for name in names if names.count(name) > 1)}' comes twice")
    return found


def is_beside(name: Any) -> bool:
    """Return whether the name is that of a file beside the index or below. An untrusted index must not name others."""
    if not isinstance(name, str) or not name or name.startswith("/"):
        return False
    return not ("\\" in name or "\0" in name or ".." in name.split("/") or "://" in name)


def _opens_neighbours(query: str) -> bool:
    """Return whether it is a SAS token of Azure for a container, a directory or an account.

    Another signature or a version in the query belongs to the index alone.
    """
    fields = dict(parse_qsl(query))
    return bool(fields.get("sig")) and (fields.get("sr") in ("c", "d") or "o" in fields.get("srt", ""))


def _beside(index: str, name: str) -> str:
    """Return the location of a file that an index names."""
    if not is_beside(name):
        raise bad_files(f"it names the file {name!r}, which is not a name in its directory", index)
    if (path := local_path(index)) is not None:
        return os.path.join(os.path.dirname(path), name)
    if is_literal(index):
        return index.rpartition("/")[0] + "/" + name
    parts = urlsplit(index)
    query = parts.query if _opens_neighbours(parts.query) else ""
    return urlunsplit(parts._replace(path=parts.path.rpartition("/")[0] + "/" + quote(name), query=query, fragment=""))


def shards_of(index: str, text: bytes) -> Shards:
    """Parse the index at `index`."""
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise bad_files(f"it is no index: {error}", index) from None
    names = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(names, Mapping) or not all(isinstance(file, str) for file in names.values()):
        raise bad_files('it is no index: it has no "weight_map" of tensors and the files that they are in', index)
    if not names:
        raise bad_files("it names no tensors", index)
    beside = {name: _beside(index, name) for name in dict.fromkeys(names.values())}
    return Shards(list(beside.values()), {tensor: beside[name] for tensor, name in names.items()})
