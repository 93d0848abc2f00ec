# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions."""
from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ._native import ErrorCode, IngestErrorCode

P = ParamSpec("P")
T = TypeVar("T")

_CODES: dict[str, type[IntEnum]] = {"gpurx": ErrorCode, "gpurx.ingest": IngestErrorCode}


class Error(RuntimeError):
    """Report a failure of the library, the kernel, CUDA or a server. str() has the whole text.

    The attributes are the parts of the text:

    * operation, object: the failed operation and its object.
    * kernel_message: the kernel's message, if there is one.
    * advice: the change that helps.
    * code, category: for programs. The category "gpurx" has an ErrorCode, "gpurx.ingest" an IngestErrorCode, "system" a
      number of errno, "cuda" a CUresult.
    * url: the URL, if the operation asked a server; else empty.
    * status: the HTTP status of a refusal; else None.
    """

    def __init__(
        self,
        text: str,
        code: int = 0,
        category: str = "gpurx",
        operation: str = "",
        object: str = "",
        kernel_message: str = "",
        advice: str = "",
    ) -> None:
        super().__init__(text)
        self.code = _known(code, category)
        self.category = category
        self.operation = operation
        self.object = object
        self.kernel_message = kernel_message
        self.advice = advice
        self.url = object if re.match(r"(https?|s3|gs|hf)://", object) else ""
        self.status = _status_in(advice) if self.code is IngestErrorCode.HTTP_STATUS else None

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.operation, self.object, self.kernel_message, self.advice)
        return error_of, (str(self), int(self.code), self.category, *parts)


class NotFound(Error, FileNotFoundError):
    """Report that there is no such object or file: status 404 or 410 of a server, or ENOENT of the system."""


class Forbidden(Error, PermissionError):
    """Report that this client may not read the object or file: status 401 or 403, or EACCES or EPERM."""


class _IsDirectory(Error, IsADirectoryError):
    """Report that the path of a file names a directory."""


class _NotDirectory(Error, NotADirectoryError):
    """Report that the path of a directory names a file."""


class _NoTensor(Error, KeyError):
    """Report that no file has a tensor of this name."""


# Names in tracebacks. Programs catch the private ones by their public bases.
for _public in (Error, NotFound, Forbidden):
    _public.__module__ = "gpurx"
for _private in (_IsDirectory, _NotDirectory, _NoTensor):
    _private.__module__, _private.__qualname__ = "gpurx", "Error"

_OF_STATUS: dict[int | None, type[Error]] = {404: NotFound, 410: NotFound, 401: Forbidden, 403: Forbidden}
_OF_FILE: dict[int, type[Error]] = {
    errno.ENOENT: NotFound,
    errno.EACCES: Forbidden,
    errno.EPERM: Forbidden,
    errno.EISDIR: _IsDirectory,
    errno.ENOTDIR: _NotDirectory,
}


def _known(code: int, category: str) -> int:
    """Return the code as an enumerator, if it is one."""
    try:
        return _CODES[category](code)
    except (KeyError, ValueError):
        return code


def _status_in(words: str) -> int | None:
    """Return the status with which the library begins the text of a refusal: "it answers 404 Not Found"."""
    found = re.search(r"\b[1-5][0-9]{2}\b", words)
    return int(found[0]) if found else None


def error_of(text: str, code: int, category: str, *parts: str) -> Error:
    """Make the exception that the library raises."""
    error = Error(text, code, category, *parts)
    is_file = category == "system" and error.operation in ("open", "list", "read")
    kind = _OF_FILE.get(code) if is_file else _OF_STATUS.get(error.status)
    if error.operation == "find" and error.object.startswith("tensor '"):
        kind = _NoTensor
    result = (kind or Error)(text, code, category, *parts)
    if is_file and isinstance(result, OSError):
        result.errno, result.filename = code, result.object
    return result


def no_tensor(name: str, where: str, known: Iterable[str]) -> Error:
    """Make the exception for a name that no tensor has: a KeyError, too. It proposes similar names."""
    similar = " or ".join(f"'{one}'" for one in difflib.get_close_matches(name, known, 3, 0.75))
    advice = f"{where} has no such tensor" + (f"; did you mean {similar}?" if similar else "")
    return error_of(f"find tensor '{name}': {advice}", errno.EINVAL, "system", "find", f"tensor '{name}'", "", advice)


# ---- tracebacks ----

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep

# Errors of the program's arguments and of the outside. Others are defects of this package, and keep their traceback.
EXPLAINED = (Error, ValueError, TypeError, LookupError)


def outside(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this package."""
    frames = []
    while trace:
        if not trace.tb_frame.f_code.co_filename.startswith(_HERE):
            frames.append(trace)
        trace = trace.tb_next
    for one in reversed(frames):
        trace = TracebackType(trace, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return trace


def briefly(function: Callable[P, T]) -> Callable[P, T]:
    """Shorten the tracebacks of a function's errors: they end at the message, without the package's own calls."""

    @wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return function(*arguments, **options)
        except EXPLAINED as error:
            raise error.with_traceback(outside(error.__traceback__))

    return call
