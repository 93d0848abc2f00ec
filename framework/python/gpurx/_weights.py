# SPDX-License-Identifier: Apache-2.0
"""Loading of a safetensors file, or of tensors of it, into one block of memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import Device, session_of
from ._convert import html_table, size_text
from ._error import no_tensor
from ._locations import Location, local_path, redacted
from ._native import Tensor, TensorFile
from ._options import Options, Settings, settings_of
from ._progress import Progress, Shown, showing
from ._session import Session
from ._wait import Steps, result_of, run, run_in_loop

if TYPE_CHECKING:
    from typing_extensions import Unpack



class Weights(dict[str, Tensor]):
    """Hold the tensors of a file by their names.

    All tensors lie in one block of memory, which lives as long as any of them.

    * metadata: the metadata of the file.
    * url: the URL after redirects, or the path.
    * etag: the server's name for this version of the file.
    * file_size: bytes of the file.
    * transport: the transport that received it: "devmem", "zcrx" or "copy"; "file" for a file of this machine. Files over https
      arrive by "copy".
    """

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.metadata: dict[str, str] = {}
        self.url = ""
        self.etag = ""
        self.file_size = 0
        self.transport = ""

    def __repr__(self) -> str:
        size = size_text(sum(one.nbytes for one in self.values()))
        return f"<gpurx.Weights: {len(self)} tensors, {size}, from {_native.redacted_url(self.url)}>"

    def _repr_html_(self) -> str:
        return html_table(repr(self), self)


def _numbers(file: TensorFile, names: Iterable[str] | None, location: str) -> list[int]:
    """Return the numbers of the wanted tensors, in the order of the file."""
    known = {tensor[0]: number for number, tensor in enumerate(file.tensors)}
    if names is None:
        return list(known.values())
    for name in (wanted := list(names)):
        if name not in known:
            raise no_tensor(name, redacted(location), known)
    return sorted({known[name] for name in wanted})


def _way_of(url: str, session: Session | None) -> str:
    """Return the transport. The CPU decrypts https, so its transport is always copy."""
    if session is None:
        return "file"
    return "copy" if url.startswith("https:") else session.transport


def _tell(show: Progress, file: TensorFile, before: int, total: int) -> None:
    show(min(file.bytes_placed - before, total), total)


def _load(
    location: str, settings: Settings, names: Iterable[str] | None, progress: Shown, session: Session | None
) -> Steps[Weights]:
    file: TensorFile = yield from result_of(_native.open_url(session, location, settings.device, settings.http, True))
    about = file.tensors
    numbers = _numbers(file, names, location)
    total = sum(about[number][3] for number in numbers)
    before = file.bytes_placed

    with showing(progress, redacted(location)) as show:
        tell = partial(_tell, show, file, before, total) if show else None
        tensors: list[Tensor] = yield from result_of(file.fetch(numbers, together=True), tell)
    weights = Weights({about[number][0]: one for number, one in zip(numbers, tensors, strict=True)})
    weights.metadata, weights.url, weights.etag, weights.file_size = file.metadata, file.url, file.etag, file.size
    weights.transport = _way_of(weights.url, session)
    return weights


@contextmanager
def _loading(
    url: Location, settings: Settings, names: Iterable[str] | None, progress: Shown, session: Session | None
) -> Iterator[Steps[Weights]]:
    """Provide the steps of a load. Open a session for it if one is needed and none is given."""
    location = os.fspath(url)
    if (path := local_path(location)) is not None:
        yield _load(path, settings, names, progress, None)
        return
    with nullcontext(session) if session else settings.open_session() as used:
        yield _load(location, settings, names, progress, used)


def load_safetensors(
    url: Location,
    device: Device = "host",
    *,
    names: Iterable[str] | None = None,
    progress: Shown = None,
    session: Session | None = None,
    **options: Unpack[Options],
) -> Weights:
    """Load the tensors of a safetensors file into memory of `device`, from a server or from this machine.

        weights = gpurx.load_safetensors("http://10.77.0.2/model.safetensors", device="cuda:0")
        model.load_state_dict({name: torch.from_dlpack(one) for name, one in weights.items()})

    * url: an http, https, s3, hf or file URL, or a path. It names one file. For models of several files use safe_open().
    * device: memory for the tensors: "host", "cpu" or None; "gpu:0", "cuda:0", 0 or a torch.device.
    * names: load these tensors only; the others are not fetched.
    * progress: called with the arrived and the total bytes, about ten times a second and at the end. None: a line on the
      terminal, if stderr is one, for loads of more than two seconds; GPURX_PROGRESS=0 disables it. False: nothing.
    * session: Session to receive through. Default: a session for this call, which takes some 100 ms to open.
    * options: see gpurx.Options.

    Returns Weights: all tensors in one block of memory. The call blocks the calling thread. Ctrl-C ends the load. Raises
    gpurx.Error if the load fails, and NotFound or Forbidden if the server refuses. The Error for a name that the file lacks
    is a KeyError, too.
    """
    settings = settings_of(device, options)
    with _loading(url, settings, names, progress, session_of(session)) as steps:
        return run(steps)


async def load_safetensors_async(
    url: Location,
    device: Device = "host",
    *,
    names: Iterable[str] | None = None,
    progress: Shown = None,
    session: Session | None = None,
    **options: Unpack[Options],
) -> Weights:
    """Load a safetensors file in a coroutine, as load_safetensors() does. The event loop continues.

    Opening a session blocks the event loop for some 100 ms; pass an open session. Cancelling the task ends the load.
    """
    settings = settings_of(device, options)
    with _loading(url, settings, names, progress, session_of(session)) as steps:
        return await run_in_loop(steps)
