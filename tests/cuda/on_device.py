"""A communicator for NumPy arrays that does all its work in device memory: what is tested on CPU arrays, tests devices
too."""

from __future__ import annotations

from typing import Any

import numpy as np

from securecoll import Communicator
from tests.cuda.arrays import Array


class View:
    """Part of a device array."""

    def __init__(self, array: Array, like: Any, offset: int) -> None:
        self._array = array
        self._face = {
            **array.__cuda_array_interface__,
            "shape": like.shape,
            "typestr": like.dtype.str,
            "data": (array.address + offset, False),
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._face


class OnDevice:
    """Has the communicator's methods. Arrays are copied to the device, worked on there, and copied back."""

    def __init__(self, comm: Communicator, stream: int = 0) -> None:
        assert comm.device is not None
        self._comm, self._stream = comm, stream
        self.rank, self.size = comm.rank, comm.size

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._comm, name)

        def call(*args: Any, **options: Any) -> Any:
            copies: dict[int, tuple[Any, Array]] = {}

            def there(value: Any) -> Any:
                if not isinstance(value, np.ndarray):
                    return value
                # Arrays that share memory share it on the device, too.
                base = value
                while isinstance(base.base, np.ndarray):
                    base = base.base
                if id(base) not in copies:
                    copies[id(base)] = (base, Array(self._comm.device, base, self._stream))
                return View(copies[id(base)][1], value, value.ctypes.data - base.ctypes.data)

            try:
                return method(*map(there, args), **{name: there(value) for name, value in options.items()})
            finally:
                for base, array in copies.values():
                    if base.flags.writeable:
                        base[...] = array.get()
                    array.close()

        return call
