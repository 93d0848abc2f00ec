# SPDX-License-Identifier: Apache-2.0
"""A consumer of DLPack capsules, which looks at everything: what numpy, torch and cupy do inside."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_number", c_int32),
        ("dimensions", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", ctypes.CFUNCTYPE(None, c_void_p))]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, c_void_p)),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = c_char_p, [ctypes.py_object]
_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_set_name = ctypes.pythonapi.PyCapsule_SetName
_set_name.argtypes = [ctypes.py_object, c_char_p]

READ_ONLY = 1
IS_COPIED = 2


class Taken:
    """What a capsule held. It is the consumer's until let_go()."""

    def __init__(self, capsule: Any) -> None:
        self.name = _get_name(capsule).decode()
        self.versioned = self.name == "dltensor_versioned"
        self._address = _get_pointer(capsule, self.name.encode())
        managed = (_ManagedVersioned if self.versioned else _Managed).from_address(self._address)
        self._used = f"used_{self.name}".encode()  # must outlive the capsule
        _set_name(capsule, self._used)
        self._capsule = capsule
        self._deleter = managed.deleter
        self.version = (managed.major, managed.minor) if self.versioned else None
        self.flags = managed.flags if self.versioned else 0
        tensor = managed.tensor
        self.data = tensor.data or 0
        self.device = (tensor.device_type, tensor.device_number)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[: tensor.dimensions])
        self.strides = tuple(tensor.strides[: tensor.dimensions])
        self.byte_offset = tensor.byte_offset

    def let_go(self) -> None:
        self._deleter(self._address)
