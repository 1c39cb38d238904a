"""Arrays in the memory of an emulated device, as CuPy's are in a GPU's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from kernels.emulator.build import build
from securecoll import cuda
from tests.emulator.emulator import ROOT

KERNELS = ROOT / "kernels" / "cuda" / "securecoll.cu"


@functools.cache
def kernels() -> str:
    """The path of the kernels, built for the emulator."""
    return str(build([KERNELS]))


class Array:
    """A C-contiguous array in device memory, with the face that CuPy's have."""

    def __init__(self, device: cuda.Device, value: Any, stream: int = 0) -> None:
        value = np.ascontiguousarray(value)
        self._device = device.engine
        self.stream = stream
        self.dtype, self.shape, self.nbytes = value.dtype, value.shape, value.nbytes
        self.address = self._device.allocate(max(1, value.nbytes))
        if value.nbytes:
            self._device.write(self.address, value.tobytes(), stream)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": self.stream or 1,
        }

    def get(self) -> Any:
        """A copy in host memory, of what is there once the stream's work is done."""
        data = self._device.read(self.address, self.nbytes, self.stream) if self.nbytes else b""
        return np.frombuffer(data, self.dtype).reshape(self.shape)

    def close(self) -> None:
        """Gives the memory back, when the device is done with it."""
        self._device.synchronize(self.stream)
        self._device.release(self.address)
