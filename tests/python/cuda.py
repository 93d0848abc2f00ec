# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver as a consumer of tensors uses it: its streams, and looking at a GPU's memory. On a GPU, or on the fake
driver (tests/support/fake_cuda.hpp), of which some switches are here too."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_ulonglong, c_void_p

_HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class Driver:
    """Its primary context is current in the calling thread."""

    def __init__(self, ordinal: int = 0) -> None:
        self.calls = ctypes.CDLL("libcuda.so.1")
        self.is_fake = hasattr(self.calls, "_ZN9fake_cuda8hold_allEv")
        if self.calls.cuInit(0) != 0:
            raise OSError("cuInit fails")
        self._gates: list[threading.Event] = []
        self._functions: list[Callable[..., None]] = []
        context = c_void_p()
        self.check(self.calls.cuDevicePrimaryCtxRetain(byref(context), ordinal))
        self.check(self.calls.cuCtxSetCurrent(context))

    @staticmethod
    def check(status: int) -> None:
        assert status == 0, f"CUDA error {status}"

    def stream(self) -> int:
        handle = c_void_p()
        self.check(self.calls.cuStreamCreate(byref(handle), 1))
        assert handle.value
        return handle.value

    def is_idle(self, stream: int) -> bool:
        status = self.calls.cuStreamQuery(c_void_p(stream))
        assert status in (0, 600)
        return bool(status == 0)

    def finish(self, stream: int) -> None:
        self.check(self.calls.cuStreamSynchronize(c_void_p(stream)))

    def hold(self, stream: int) -> None:
        """What is enqueued from now on waits until let_go()."""
        gate = threading.Event()
        function = _HOST_FUNCTION(lambda _: None if gate.wait(60) else None)
        self._gates.append(gate)
        self._functions.append(function)
        self.check(self.calls.cuLaunchHostFunc(c_void_p(stream), function, None))

    def let_go(self) -> None:
        for gate in self._gates:
            gate.set()

    def read(self, address: int, size: int, stream: int) -> bytes:
        """The bytes as `stream` sees them."""
        into = ctypes.create_string_buffer(max(size, 1))
        if size:
            self.check(self.calls.cuMemcpyDtoHAsync_v2(into, c_ulonglong(address), c_size_t(size), c_void_p(stream)))
        self.finish(stream)
        return into.raw[:size]

    def read_later(self, address: int, size: int, stream: int) -> Callable[[], bytes]:
        """Enqueues the copy; what it returns waits for it."""
        into = c_void_p()
        self.check(self.calls.cuMemHostAlloc(byref(into), c_size_t(size), 0))
        self.check(self.calls.cuMemcpyDtoHAsync_v2(into, c_ulonglong(address), c_size_t(size), c_void_p(stream)))

        def bytes_read() -> bytes:
            self.finish(stream)
            assert into.value
            return ctypes.string_at(into.value, size)

        return bytes_read

    # ---- of the fake one ----

    def hold_all(self) -> None:
        """All streams stand still, those of the future too."""
        self.calls._ZN9fake_cuda8hold_allEv()

    def let_all_go(self) -> None:
        self.calls._ZN9fake_cuda10let_go_allEv()

    def reset(self) -> None:
        self.calls._ZN9fake_cuda14reset_settingsEv()

    def mappings(self) -> int:
        """Pieces of memory that exist."""
        count = self.calls._ZN9fake_cuda8mappingsEv
        count.restype = c_size_t
        return int(count())

    def streams(self) -> set[int]:
        """The handles of those that exist. A handle is never used again."""
        room = 4096
        handles = (c_size_t * room)()
        count = self.calls._ZN9fake_cuda7streamsEPP11CUstream_stm
        count.restype = c_size_t
        found = count(handles, c_size_t(room))
        assert found <= room
        return set(handles[:found])
