# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations


class Error(RuntimeError):
    """What went wrong, in the library's own words: str() has all of it.

    The attributes are its parts: `operation` and `object`, what was being done and with what; `kernel_message`, the
    kernel's words where it has any; `advice`, what to change; and for programs `code`, a number of `category` ("gpurx",
    "gpurx.ingest", "system" for errno, "cuda" for CUresult).
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
        self.code = code
        self.category = category
        self.operation = operation
        self.object = object
        self.kernel_message = kernel_message
        self.advice = advice
