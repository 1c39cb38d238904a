"""Where the arrays of a benchmark lie: on the CPU, on a GPU, or on a device that the CPU plays.

A buffer has two faces: ``array``, which communicators take, and ``storage``, the same elements as NumPy sees them. On
the CPU both are one memory; elsewhere ``to_device`` and ``from_device`` carry the elements over, outside of what is
timed.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.launch import Launch, Launcher, LaunchError
from harness.pattern import Array, Element

if TYPE_CHECKING:
    from securecoll import cuda

DEVICES = ("cpu", "cuda", "emulated")
"""What ``--device`` takes."""

ROOT = Path(__file__).resolve().parents[2]


class Buffer:
    """``count`` elements, zero at first."""

    def __init__(self, array: Any, storage: Array) -> None:
        self.array, self.storage = array, storage

    def to_device(self) -> None:
        """Makes ``array`` what ``storage`` is."""

    def from_device(self) -> None:
        """Makes ``storage`` what ``array`` is, once everything given to the device is done."""


class Device(ABC):
    """Makes buffers, and knows when what was given to it is done."""

    communicator: cuda.Device | None = None
    """What :meth:`securecoll.Communicator.create` is given."""
    note = ""
    """What a reader of the numbers must know."""

    @abstractmethod
    def buffer(self, element: Element, count: int) -> Buffer:
        """A new buffer."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for all that was given to the device: only then is a timed loop over."""


class Cpu(Device):
    """Host memory."""

    def synchronize(self) -> None:
        pass

    def buffer(self, element: Element, count: int) -> Buffer:
        if not element.torch:
            array = np.zeros(count, element.dtype)
            return Buffer(array, array)
        import torch

        tensor = torch.zeros(count, dtype=getattr(torch, element.torch))
        return Buffer(tensor, bits(tensor).numpy().view(element.dtype))


class CupyBuffer(Buffer):
    """In a CuPy array."""

    def to_device(self) -> None:
        self.array.set(self.storage)

    def from_device(self) -> None:
        self.array.get(out=self.storage)


class TorchBuffer(Buffer):
    """In a CUDA tensor; ``host`` is a CPU tensor over ``storage``."""

    def __init__(self, array: Any, host: Any, storage: Array) -> None:
        super().__init__(array, storage)
        self._host = host

    def to_device(self) -> None:
        self.array.copy_(self._host)

    def from_device(self) -> None:
        self._host.copy_(self.array)


class Cuda(Device):
    """The GPU of this rank, in CuPy arrays; in torch tensors under torchrun, and for types that only torch has."""

    def __init__(self, launch: Launch, staged: bool) -> None:
        from securecoll import ConfigError, cuda

        self._through_torch = launch.launcher is Launcher.TORCH
        try:
            import cupy

            ordinal = launch.local_rank % cupy.cuda.runtime.getDeviceCount()
            cupy.cuda.Device(ordinal).use()
            self.communicator = cuda.device(ordinal)
        except ConfigError as error:
            raise LaunchError(f"--device cuda: {error}") from error
        except ImportError as error:
            raise LaunchError("--device cuda needs CuPy: pip install 'securecoll[cuda13]' (or [cuda12])") from error
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise LaunchError(f"--device cuda: {error}") from error
        if staged:
            self.communicator = replace(self.communicator, mapped=False)
        self._cupy, self._ordinal = cupy, ordinal
        self.note = f"arrays on {self.communicator.engine.name}, ordinal {ordinal}"

    def buffer(self, element: Element, count: int) -> Buffer:
        if not (self._through_torch or element.torch):
            return CupyBuffer(self._cupy.zeros(count, element.dtype), np.zeros(count, element.dtype))
        import torch

        dtype = getattr(torch, element.torch or element.storage)
        host = torch.zeros(count, dtype=dtype)
        storage = bits(host).numpy().view(element.dtype)
        return TorchBuffer(torch.zeros(count, dtype=dtype, device=f"cuda:{self._ordinal}"), host, storage)

    def synchronize(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()


class EmulatedArray:
    """Elements in the memory of an emulated device, or a slice of them, as CuPy shows its own."""

    def __init__(self, dtype: np.dtype[Any], typestr: str, address: int, count: int) -> None:
        self._dtype, self._typestr, self.address, self._count = dtype, typestr, address, count

    def __getitem__(self, part: slice) -> EmulatedArray:
        begin, end, step = part.indices(self._count)
        assert step == 1
        return EmulatedArray(
            self._dtype, self._typestr, self.address + begin * self._dtype.itemsize, max(0, end - begin)
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self._count,),
            "typestr": self._typestr,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
            "stream": 1,
        }


class EmulatedBuffer(Buffer):
    """On an emulated device, whose memory lasts as long as this."""

    def __init__(self, device: cuda.Device, array: EmulatedArray, storage: Array) -> None:
        super().__init__(array, storage)
        self._engine = device.engine
        self.to_device()

    def to_device(self) -> None:
        if self.storage.size:
            self._engine.write(self.array.address, self.storage.tobytes())

    def from_device(self) -> None:
        if self.storage.size:
            data = self._engine.read(self.array.address, self.storage.nbytes)
            self.storage[:] = np.frombuffer(data, self.storage.dtype)

    def __del__(self) -> None:
        self._engine.synchronize()
        self._engine.release(self.array.address)


class Emulated(Device):
    """A device that the CPU plays."""

    note = "arrays on an emulated device: it shows that everything runs; its times mean nothing"

    def __init__(self, launch: Launch, staged: bool) -> None:
        sys.path.append(str(ROOT))
        from kernels.emulator.build import build
        from securecoll import cuda

        library = build([ROOT / "kernels" / "cuda" / "securecoll.cu"])
        options = f"seed={launch.rank + 1} latency=1 memory=1G"
        self.communicator = cuda.emulated(str(library), options, mapped=not staged)

    def buffer(self, element: Element, count: int) -> Buffer:
        if element.torch and element.torch != "bfloat16":
            raise LaunchError(f"-d {element.name} on an emulated device: no array of it that is not torch's")
        assert self.communicator is not None
        storage = np.zeros(count, element.dtype)
        # As ml_dtypes and torch name it.
        typestr = "<V2" if element.torch else element.dtype.str
        address = self.communicator.engine.allocate(max(1, storage.nbytes))
        array = EmulatedArray(element.dtype, typestr, address, count)
        return EmulatedBuffer(self.communicator, array, storage)

    def synchronize(self) -> None:
        assert self.communicator is not None
        self.communicator.engine.synchronize()


def bits(tensor: Any) -> Any:
    """A torch tensor's elements as integers of their width, which NumPy has for all of torch's types."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()]) if tensor.element_size() in integers else tensor


def make(name: str, launch: Launch, staged: bool = False) -> Device:
    """The device that ``--device`` names. Raises LaunchError with what is missing for it."""
    if name == "cpu":
        return Cpu()
    return Cuda(launch, staged) if name == "cuda" else Emulated(launch, staged)
