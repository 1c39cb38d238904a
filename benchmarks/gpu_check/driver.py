"""CUDA's driver, as far as a check needs it: by ctypes, so that nothing but the driver itself has to be right."""

from __future__ import annotations

import ctypes
from pathlib import Path

from gpu_check.findings import Skipped

_ATTRIBUTES = {"multiprocessors": 16, "clock_khz": 13, "major": 75, "minor": 76, "l2_bytes": 38, "shared_optin": 97}
_MAX_DYNAMIC_SHARED = 8
_PORTABLE = 1

_int, _uint, _size, _u64, _pointer = (
    ctypes.c_int,
    ctypes.c_uint,
    ctypes.c_size_t,
    ctypes.c_uint64,
    ctypes.c_void_p,
)


def _out(kind: type) -> type:
    return ctypes.POINTER(kind)  # type: ignore[return-value]


_SIGNATURES: dict[str, list[type]] = {
    "cuInit": [_uint],
    "cuDriverGetVersion": [_out(_int)],
    "cuDeviceGet": [_out(_int), _int],
    "cuDeviceGetName": [ctypes.c_char_p, _int, _int],
    "cuDeviceGetAttribute": [_out(_int), _int, _int],
    "cuDevicePrimaryCtxRetain": [_out(_pointer), _int],
    "cuCtxSetCurrent": [_pointer],
    "cuCtxSynchronize": [],
    "cuGetErrorString": [_int, _out(ctypes.c_char_p)],
    "cuModuleLoadData": [_out(_pointer), ctypes.c_char_p],
    "cuModuleGetFunction": [_out(_pointer), _pointer, ctypes.c_char_p],
    "cuFuncSetAttribute": [_pointer, _int, _int],
    "cuLaunchKernel": [_pointer, *[_uint] * 7, _pointer, _out(_pointer), _pointer],
    "cuMemAlloc_v2": [_out(_u64), _size],
    "cuMemFree_v2": [_u64],
    "cuMemcpyHtoD_v2": [_u64, ctypes.c_char_p, _size],
    "cuMemcpyDtoH_v2": [_pointer, _u64, _size],
    "cuMemcpyDtoHAsync_v2": [_pointer, _u64, _size, _pointer],
    "cuMemsetD8_v2": [_u64, ctypes.c_ubyte, _size],
    "cuMemHostAlloc": [_out(_pointer), _size, _uint],
    "cuEventCreate": [_out(_pointer), _uint],
    "cuEventRecord": [_pointer, _pointer],
    "cuEventSynchronize": [_pointer],
    "cuEventElapsedTime": [_out(ctypes.c_float), _pointer, _pointer],
}


class DriverError(RuntimeError):
    """A call that failed, with the driver's words."""


class Driver:
    """The first GPU, in its primary context, which CuPy, torch and securecoll use too. Work is on the default stream.

    Raises Skipped where there is no driver or no GPU.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Skipped("no CUDA driver: libcuda.so.1 cannot be opened") from error
        for name, signature in _SIGNATURES.items():
            getattr(self._library, name).argtypes = signature
        self._device, context = _int(), _pointer()
        try:
            self._call("cuInit", 0)
            self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        except DriverError as error:
            raise Skipped(f"no GPU: {error}") from error
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._modules: list[ctypes.c_void_p] = []
        self._functions: dict[str, ctypes.c_void_p] = {}

    def _call(self, name: str, *args: object) -> None:
        code = getattr(self._library, name)(*args)
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'unknown').decode()} ({code})")

    @property
    def name(self) -> str:
        text = ctypes.create_string_buffer(128)
        self._call("cuDeviceGetName", text, len(text), self._device)
        return text.value.decode()

    @property
    def version(self) -> str:
        """Of CUDA, the newest that the driver serves."""
        number = _int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def attribute(self, name: str) -> int:
        value = _int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], self._device)
        return value.value

    @property
    def capability(self) -> int:
        """Ten times the compute capability."""
        return 10 * self.attribute("major") + self.attribute("minor")

    def load(self, cubin: Path) -> None:
        """Loads a module. Where several have a kernel, the first one's is launched."""
        module = _pointer()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin.read_bytes())
        self._modules.append(module)

    def _function(self, kernel: str) -> ctypes.c_void_p:
        if kernel not in self._functions:
            function, error = _pointer(), DriverError("no module is loaded")
            for module in self._modules:
                try:
                    self._call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
                    break
                except DriverError as why:
                    error = why
            else:
                raise error
            self._functions[kernel] = function
        return self._functions[kernel]

    def launch(self, kernel: str, args: bytes, grid: int, block: int, shared: int) -> None:
        """``args`` is the kernel's one parameter."""
        function = self._function(kernel)
        if shared:
            self._call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, shared)
        # Aligned as any struct may have to be.
        room = (_u64 * (len(args) // 8 + 1))()
        ctypes.memmove(room, args, len(args))
        parameters = (_pointer * 1)(ctypes.addressof(room))
        self._call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, parameters, None)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def allocate(self, size: int) -> int:
        at = _u64()
        self._call("cuMemAlloc_v2", ctypes.byref(at), size)
        return at.value

    def release(self, at: int) -> None:
        self._call("cuMemFree_v2", at)

    def fill(self, at: int, value: int, size: int) -> None:
        self._call("cuMemsetD8_v2", at, value, size)

    def write(self, at: int, data: bytes) -> None:
        self._call("cuMemcpyHtoD_v2", at, data, len(data))

    def read(self, at: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self._call("cuMemcpyDtoH_v2", data, at, size)
        return data.raw

    def pinned(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """Host memory that copies need not wait for. It lasts as long as the process."""
        at = _pointer()
        self._call("cuMemHostAlloc", ctypes.byref(at), size, _PORTABLE)
        assert at.value is not None
        return (ctypes.c_char * size).from_address(at.value)

    def copy_out(self, to: ctypes.Array[ctypes.c_char], at: int, size: int) -> None:
        """Behind what the default stream was given; returns at once."""
        self._call("cuMemcpyDtoHAsync_v2", ctypes.addressof(to), at, size, None)

    def event(self) -> ctypes.c_void_p:
        event = _pointer()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def record(self, event: ctypes.c_void_p) -> None:
        self._call("cuEventRecord", event, None)

    def seconds(self, begin: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Between two recorded events, once the second has passed."""
        milliseconds = ctypes.c_float()
        self._call("cuEventSynchronize", end)
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value / 1e3
