"""Arrays that offer DLPack and nothing else, in any dtype, in device memory or on the CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
BFLOAT16 = (4, 16)
FLOAT8 = {"e4m3fn": (10, 8), "e4m3fnuz": (11, 8), "e5m2": (12, 8), "e5m2fnuz": (13, 8)}
"""Codes and bits of DLPack's dtypes."""


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Tensor:
    """``count`` elements at ``address``, of a DLPack dtype. ``keep`` is what holds the memory."""

    def __init__(self, address: int, count: int, dtype: tuple[int, int], device: int, keep: Any) -> None:
        self._device, self._keep = device, keep
        self._shape = (ctypes.c_int64 * 1)(count)
        self._managed = _Managed(_Tensor(address, device, 0, 1, *dtype, 1, self._shape, None, 0), None, None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)


def on_cpu(values: Any, dtype: tuple[int, int]) -> Tensor:
    """The bytes of a NumPy array, seen as another dtype of the same size."""
    assert values.dtype.itemsize * 8 == dtype[1] and isinstance(values, np.ndarray)
    return Tensor(values.ctypes.data, values.size, dtype, CPU, values)
