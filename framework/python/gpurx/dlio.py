# SPDX-License-Identifier: Apache-2.0
"""gpurx as a storage library of DLIO, the benchmark behind MLPerf Storage. It reads the objects of a workload, from S3 or
elsewhere.

    reader:
      reader_classname: gpurx.dlio.Reader
    storage:
      storage_type: s3
      storage_root: bucket
      storage_options: {storage_library: gpurx, endpoint_url: "http://10.77.0.2:9000"}

With another storage_library DLIO lists and generates through that library, and reads through gpurx. The library name gpurx
needs this command in the place of `dlio_benchmark`:

    python -m gpurx.dlio workload=unet3d_h100 ...

It also lists through gpurx, and cannot generate.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from dlio_benchmark.common.constants import MODULE_DATA_READER
from dlio_benchmark.common.enumerations import MetadataType, NamespaceType, StorageType
from dlio_benchmark.reader.reader_handler import FormatReader
from dlio_benchmark.storage.storage_factory import StorageFactory
from dlio_benchmark.storage.storage_handler import DataStorage, Namespace
from dlio_benchmark.utils.utility import Profile

from . import _native
from ._native import Operation, Tensor
from ._options import NAMES, settings_of
from ._session import Session
from ._wait import wait

# DLIO's names in storage_options, and the variables that the rest of gpurx reads.
_ENVIRONMENT = {
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}

# Runs in a process of its own: DLIO forks its workers, and gpurx does not work in children of a process that uses it.
_LIST = """
import json, sys
from gpurx import _native
from gpurx._wait import wait
print(json.dumps(wait(_native.list_s3(sys.argv[1], _native.HttpOptions()))))
"""

_profile = Profile(MODULE_DATA_READER)


def _options_of(arguments: Any) -> Mapping[str, Any]:
    """Return storage_options, which DLIO 2.0 lacks. Copy their settings of the server to the environment for S3."""
    options: Mapping[str, Any] = getattr(arguments, "storage_options", None) or {}
    for option, variable in _ENVIRONMENT.items():
        if value := options.get(option):
            os.environ[variable] = str(value)
    return options


def _url_of(name: str, bucket: str) -> str:
    """Return the URL of a key or of a URL. DLIO 2.0 may have changed a URL into an absolute path."""
    if found := re.search(r"([a-z0-9]+):/+(.+)", name):
        return f"{found[1]}://{found[2]}"
    return f"s3://{bucket.strip('/')}/{name.lstrip('/')}"


class Reader(FormatReader):  # type: ignore[misc, unused-ignore]
    """Read whole objects into memory and decode nothing, as the readers of DLIO's other object libraries do.

    File names are keys of the bucket storage_root, URLs of any kind, or, with storage_type local_fs, paths. Keys of
    storage_options:

    * prefetch_window: objects under way at a time (8).
    * memory: memory for the objects ("host"), as for Session.
    * all of gpurx.Options. `flows` (1) counts per object. `checksum` is "none", because DLIO's other libraries compare
      none.

    With read_threads above 0 each worker opens its own session. GPU memory then needs multiprocessing_context spawn.
    """

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index)
        options = _options_of(self._args)
        self._window = int(options.get("prefetch_window", 8))
        self._memory = options.get("memory", "host")
        chosen = {"flows": 1, "checksum": "none"} | {name: options[name] for name in NAMES if name in options}
        settings = settings_of(self._memory, chosen)
        self._http = settings.http
        self._session = Session(
            self._memory,
            size=settings.size,
            interface=settings.interface,
            transport=settings.transport,
            max_flows=settings.http.flows * (self._window + 1),
        )
        self._coming: Iterator[str] = iter(())
        self._on_the_way: OrderedDict[str, Operation] = OrderedDict()

    # ---- DLIO's ----

    def open(self, filename: str) -> Tensor:
        """Return the object: prefetched, or fetched now."""
        operation = self._on_the_way.pop(filename, None) or self._start(filename)
        self._go_on()
        loaded: Tensor = wait(operation)
        return loaded

    def close(self, filename: str) -> None:
        """Do nothing. The caller drops the object, which frees its memory."""

    def get_sample(self, filename: str, sample_index: int) -> None:
        _profile.update(image_size=self.open_file_map[filename].nbytes)

    def next(self) -> Iterator[Any]:
        self._coming = iter(dict.fromkeys(name for _, name, _ in self.file_map[self.thread_index]))
        self._go_on()
        yield from super().next()

    def read_index(self, image_idx: int, step: int) -> Any:
        _profile.update(step=step)
        return super().read_index(image_idx, step)

    def finalize(self) -> None:
        for operation in self._on_the_way.values():
            operation.cancel()
            operation.wait()
        self._on_the_way.clear()
        self._session.close()

    def is_index_based(self) -> bool:
        return True

    def is_iterator_based(self) -> bool:
        return True

    # ---- implementation ----

    def _start(self, name: str) -> Operation:
        if self._args.storage_type == StorageType.S3:
            name = _url_of(name, self._args.storage_root)
        return _native.load_object(self._session, name, self._memory, self._http)

    def _go_on(self) -> None:
        """Start fetches until the window is full."""
        while len(self._on_the_way) < self._window and (name := next(self._coming, None)) is not None:
            self._on_the_way[name] = self._start(name)


class Storage(DataStorage):  # type: ignore[misc, unused-ignore]
    """Provide a bucket to DLIO, for reading a dataset only."""

    def __init__(self, namespace: str, framework: Any = None) -> None:
        super().__init__(framework)
        _options_of(self._args)
        self.namespace = Namespace(namespace, NamespaceType.FLAT)

    def get_uri(self, id: str) -> str:
        return id if "://" in id else f"s3://{self.namespace.name.strip('/')}/{id.lstrip('/')}"

    def get_basename(self, id: str) -> str:
        return os.path.basename(id)

    def walk_node(self, id: str, use_pattern: bool = False) -> list[str]:
        """Return the names directly below, as in a directory."""
        if use_pattern:
            raise NotImplementedError(f"list {id}: gpurx lists no patterns; set num_subfolders to 0")
        prefix = self.get_uri(id).rstrip("/") + "/"
        listing = subprocess.run([sys.executable, "-c", _LIST, prefix], check=True, stdout=subprocess.PIPE)
        found: list[str] = json.loads(listing.stdout)
        return list(dict.fromkeys(one[len(prefix) :].partition("/")[0] for one in found))

    def get_node(self, id: str) -> Any:
        return MetadataType.DIRECTORY if self.walk_node(id) else MetadataType.FILE

    def get_namespace(self) -> Any:
        return self.namespace.name

    def create_namespace(self, exist_ok: bool = False) -> bool:
        """Do nothing: the library that generates makes the bucket."""
        return True

    def create_node(self, id: str, exist_ok: bool = False) -> bool:
        """Do nothing: keys need no directories."""
        return True

    def delete_node(self, id: str) -> bool:
        raise NotImplementedError(f"delete {self.get_uri(id)}: gpurx only reads; generate with another storage_library")

    def put_data(self, id: str, data: Any, offset: int | None = None, length: int | None = None) -> bool:
        raise NotImplementedError(f"write {self.get_uri(id)}: gpurx only reads; generate with another storage_library")


def register() -> None:
    """Register storage_library gpurx with the DLIO of this process, also with a DLIO without storage libraries."""
    others = StorageFactory.get_storage

    def get_storage(storage_type: Any, namespace: str, framework: Any = None) -> Any:
        from dlio_benchmark.utils.config import ConfigArguments

        library = (getattr(ConfigArguments.get_instance(), "storage_options", None) or {}).get("storage_library", "gpurx")
        if storage_type == StorageType.S3 and library == "gpurx":
            return Storage(namespace, framework)
        return others(storage_type, namespace, framework)

    StorageFactory.get_storage = staticmethod(get_storage)


if __name__ == "__main__":
    from dlio_benchmark.main import main

    register()
    main()
