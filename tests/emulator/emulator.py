"""The CUDA emulator for tests: builds ``.cu`` files, holds device memory, and launches kernels by name."""

from __future__ import annotations

import ctypes
import functools
import shutil
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from kernels.emulator import build as builder

ROOT = Path(__file__).resolve().parents[2]


class Order(IntEnum):
    """In which order threads and blocks get their turns."""

    IN_TURN = 0
    REVERSED = 1
    RANDOM = 2


class EmulatorError(RuntimeError):
    """A launch that failed; the text says which kernel, block and thread, and how."""


class _Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("args", ctypes.c_char_p),
        ("args_bytes", ctypes.c_size_t),
        ("blocks", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("shared_bytes", ctypes.c_size_t),
        ("order", ctypes.c_uint32),
        ("resident", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("patience", ctypes.c_double),
    ]


def build(
    sources: Path | Sequence[Path],
    mode: str = "plain",
    macros: Sequence[str] = (),
    emulator_macros: Sequence[str] = (),
) -> Path:
    """Path of the shared object with ``sources`` and the emulator in it; see ``kernels/emulator/build.py``.

    Made once in a test session.
    """
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    paths = (sources,) if isinstance(sources, Path) else tuple(sources)
    return _built(paths, mode, tuple(macros), tuple(emulator_macros))


@functools.cache
def _built(sources: tuple[Path, ...], mode: str, macros: tuple[str, ...], emulator_macros: tuple[str, ...]) -> Path:
    return builder.build(sources, mode, macros, emulator_macros)


class Emulator:
    """Kernels in a shared object that :func:`build` made, and the device memory that they work on."""

    def __init__(self, library: Path, memory_bytes: int = 64 << 20, seed: int = 1) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.sc_emulator_memory.restype = ctypes.c_void_p
        self._library.sc_emulator_memory.argtypes = [ctypes.c_size_t, ctypes.c_uint64]
        self._library.sc_emulator_memory_free.argtypes = [ctypes.c_void_p]
        self._library.sc_emulator_allocate.restype = ctypes.c_uint64
        self._library.sc_emulator_allocate.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self._library.sc_emulator_release.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self._library.sc_emulator_map.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self._library.sc_emulator_write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
        self._library.sc_emulator_read.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
        self._library.sc_emulator_launch.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
        ]
        self._memory: int | None = self._library.sc_emulator_memory(memory_bytes, seed)

    def close(self) -> None:
        """Gives the device memory back. Does nothing the second time."""
        if self._memory is not None:
            self._library.sc_emulator_memory_free(self._memory)
            self._memory = None

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes of device memory, aligned to 256 and full of garbage."""
        at: int = self._library.sc_emulator_allocate(self._memory, size)
        if at == 0:
            raise MemoryError(f"no room for {size} bytes on the emulated device")
        return at

    def upload(self, data: bytes) -> int:
        """Address of a copy of ``data`` in device memory of just its size (one byte when it is empty)."""
        at = self.allocate(max(1, len(data)))
        self.write(at, data)
        return at

    def release(self, at: int) -> None:
        if not self._library.sc_emulator_release(self._memory, at):
            raise ValueError(f"nothing was allocated at {at:#x}")

    def map(self, address: int, size: int, writable: bool = True) -> None:
        """Lets kernels reach host memory."""
        self._library.sc_emulator_map(self._memory, address, size, writable)

    def write(self, at: int, data: bytes) -> None:
        if data and not self._library.sc_emulator_write(self._memory, at, data, len(data)):
            raise ValueError(f"{len(data)} bytes at {at:#x} are not all allocated")

    def read(self, at: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(max(1, size))
        if size and not self._library.sc_emulator_read(self._memory, data, at, size):
            raise ValueError(f"{size} bytes at {at:#x} are not all allocated")
        return data.raw[:size]

    def launch(
        self,
        kernel: str,
        args: bytes,
        grid: int = 1,
        block: int = 256,
        shared: int = 0,
        order: Order = Order.IN_TURN,
        seed: int = 1,
        resident: int = 2,
        patience: float = 10.0,
    ) -> str:
        """Runs ``kernel`` with ``args``, its struct of arguments as bytes; what went wrong, or an empty text.

        ``resident`` blocks run at a time. ``patience``: seconds without any progress, while threads poll, that count
        as a deadlock.
        """
        why = ctypes.create_string_buffer(4096)
        launch = _Launch(kernel.encode(), args, len(args), grid, block, shared, int(order), resident, seed, patience)
        self._library.sc_emulator_launch(self._memory, ctypes.byref(launch), why, len(why))
        return why.value.decode(errors="replace")

    def run(self, kernel: str, args: bytes, grid: int = 1, block: int = 256, **how: Any) -> None:
        """:meth:`launch`, raising :class:`EmulatorError` when something went wrong."""
        why = self.launch(kernel, args, grid, block, **how)
        if why:
            raise EmulatorError(why)
