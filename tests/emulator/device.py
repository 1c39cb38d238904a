"""The emulated device, called from Python as the engine calls it from C++."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.emulator.emulator import ROOT, build

_ADDRESS, _SIZE, _HANDLE, _BOOL = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_bool
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "delete": (None, []),
    "name": (ctypes.c_char_p, []),
    "multiprocessors": (ctypes.c_uint32, []),
    "capability": (ctypes.c_uint32, []),
    "why_not": (ctypes.c_char_p, []),
    "bind": (_BOOL, []),
    "unbind": (None, []),
    "allocate": (_ADDRESS, [_SIZE]),
    "release": (None, [_ADDRESS]),
    "allocate_pinned": (_HANDLE, [_SIZE]),
    "release_pinned": (None, [_HANDLE]),
    "map": (_ADDRESS, [_HANDLE, _SIZE, _BOOL]),
    "unmap": (None, [_HANDLE]),
    "copy_in": (_BOOL, [_ADDRESS, _HANDLE, _SIZE, _HANDLE]),
    "copy_out": (_BOOL, [_HANDLE, _ADDRESS, _SIZE, _HANDLE]),
    "copy": (_BOOL, [_ADDRESS, _ADDRESS, _SIZE, _HANDLE]),
    "fill": (_BOOL, [_ADDRESS, ctypes.c_uint8, _SIZE, _HANDLE]),
    "function": (_HANDLE, [ctypes.c_char_p]),
    "launch": (
        _BOOL,
        [_HANDLE, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, _SIZE, _HANDLE],
    ),
    "stream": (_HANDLE, []),
    "release_stream": (None, [_HANDLE]),
    "event": (_HANDLE, []),
    "release_event": (None, [_HANDLE]),
    "record": (_BOOL, [_HANDLE, _HANDLE]),
    "wait": (_BOOL, [_HANDLE, _HANDLE]),
    "query": (ctypes.c_int, [_HANDLE]),
    "synchronize": (_BOOL, [_HANDLE]),
    "capturing": (_BOOL, [_HANDLE]),
}


class State(IntEnum):
    PENDING = 0
    DONE = 1
    FAILED = 2


class RefusedError(RuntimeError):
    """A call that the device did not accept; the text is why_not()."""


class Device:
    """One emulated device, bound to the thread that made it. Streams and events are opaque numbers; 0 is the default
    stream. Calls that are refused raise :class:`RefusedError`."""

    def __init__(self, kernels: Path, options: str = "", mode: str = "plain", bound: bool = True) -> None:
        library = ctypes.CDLL(str(build([kernels, ROOT / "tests" / "emulator" / "device_calls.cpp"], mode)))
        library.sc_emulated_device.restype = ctypes.c_void_p
        library.sc_emulated_device.argtypes = [ctypes.c_char_p]
        library.sc_emulated_device_why_not.restype = ctypes.c_char_p
        for name, (result, arguments) in _CALLS.items():
            call = getattr(library, f"device_{name}")
            call.restype, call.argtypes = result, [ctypes.c_void_p, *arguments]
        self._library = library
        self._device: int | None = library.sc_emulated_device(options.encode())
        if self._device is None:
            raise RefusedError(library.sc_emulated_device_why_not().decode())
        if bound:
            self.bind()

    def close(self) -> None:
        if self._device is not None:
            self._call("delete")
            self._device = None

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self._library, f"device_{name}")(self._device, *arguments)

    def _accepted(self, name: str, *arguments: Any) -> Any:
        """Calls; a null result is a refusal."""
        result = self._call(name, *arguments)
        if not result:
            raise RefusedError(self.why_not)
        return result

    @property
    def name(self) -> str:
        text: bytes = self._call("name")
        return text.decode()

    @property
    def why_not(self) -> str:
        text: bytes = self._call("why_not")
        return text.decode()

    @property
    def multiprocessors(self) -> int:
        return int(self._call("multiprocessors"))

    @property
    def capability(self) -> int:
        return int(self._call("capability"))

    def bind(self) -> None:
        self._accepted("bind")

    def unbind(self) -> None:
        self._call("unbind")

    def allocate(self, size: int) -> int:
        return int(self._accepted("allocate", size))

    def release(self, at: int) -> None:
        self._call("release", at)

    def allocate_pinned(self, size: int) -> int:
        return int(self._accepted("allocate_pinned", size))

    def release_pinned(self, at: int) -> None:
        self._call("release_pinned", at)

    def map(self, host: int, size: int, writable: bool = True) -> int:
        return int(self._accepted("map", host, size, writable))

    def unmap(self, host: int) -> None:
        self._call("unmap", host)

    def copy_in(self, to: int, host: int, size: int, stream: int = 0) -> None:
        self._accepted("copy_in", to, host, size, stream)

    def copy_out(self, host: int, at: int, size: int, stream: int = 0) -> None:
        self._accepted("copy_out", host, at, size, stream)

    def copy(self, to: int, at: int, size: int, stream: int = 0) -> None:
        self._accepted("copy", to, at, size, stream)

    def fill(self, at: int, value: int, size: int, stream: int = 0) -> None:
        self._accepted("fill", at, value, size, stream)

    def launch(
        self, kernel: str, args: bytes, grid: int = 1, block: int = 256, shared: int = 0, stream: int = 0
    ) -> None:
        function = self._accepted("function", kernel.encode())
        self._accepted("launch", function, grid, block, shared, args, len(args), stream)

    def stream(self) -> int:
        return int(self._accepted("stream"))

    def release_stream(self, stream: int) -> None:
        self._call("release_stream", stream)

    def event(self) -> int:
        return int(self._accepted("event"))

    def release_event(self, event: int) -> None:
        self._call("release_event", event)

    def record(self, event: int, stream: int = 0) -> None:
        self._accepted("record", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._accepted("wait", stream, event)

    def query(self, event: int) -> State:
        return State(self._call("query", event))

    def finish(self, event: int, queries: int = 100_000) -> State:
        """Queries until the event is no longer pending."""
        for _ in range(queries):
            state = self.query(event)
            if state is not State.PENDING:
                return state
        raise AssertionError(f"the event is still pending after {queries} queries")

    def synchronize(self, stream: int = 0) -> None:
        self._accepted("synchronize", stream)

    def capturing(self, stream: int = 0) -> bool:
        return bool(self._call("capturing", stream))
