"""CUDA devices: CuPy loads the kernels, the engine launches them.

Nothing here runs per chunk. :func:`device` makes CuPy load the kernels on one GPU and hands their function handles to
the engine, which does everything else. CuPy is imported when a device is first asked for, not before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from securecoll import _engine
from securecoll.cuda.confidential import Confidential, confidential
from securecoll.cuda.modules import Module, load
from securecoll.errors import ConfigError
from securecoll.suites import Suite

__all__ = ["Confidential", "Device", "check_suite", "confidential", "device", "emulated", "source"]

log = logging.getLogger("securecoll")

_devices: dict[int, Device] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator that communicators work on. See :func:`device` and :func:`emulated`."""

    engine: _engine.Device
    mapped: bool
    """Whether kernels may write and read slots in host memory themselves, where registering it works."""
    copies_block: bool = False
    """Whether calls that copy return when the copy is done, as in confidential mode: then each direction gets a thread
    that makes them."""
    module: Module | None = field(default=None, repr=False)
    """What holds the kernels."""

    def started(self, rank: int, mode: str) -> None:
        """Called by the engine when a communicator first works on the device."""
        log.info("rank %d: works on %s; slots are %s", rank, self.engine.name, mode)


def device(ordinal: int) -> Device:
    """The GPU that CuPy and torch call ``ordinal``, with its kernels loaded; the same object every time.

    Raises:
        ConfigError: when CuPy, the driver, the GPU or kernels for it are missing; the message says which.
    """
    with _lock:
        if ordinal not in _devices:
            module = load(ordinal)
            engine = _engine.Device.cuda(ordinal, module.functions)
            # In confidential mode only copy engines reach host memory, and copies block the caller.
            off = confidential() is Confidential.OFF
            _devices[ordinal] = Device(engine, mapped=off, copies_block=not off, module=module)
        return _devices[ordinal]


def emulated(library: str, options: str = "", *, mapped: bool = True, copies_block: bool = False) -> Device:
    """A device that this machine's CPU plays, for tests and for trying scripts: ``make emulator`` builds its library.

    Options are words like ``seed=7`` or ``order=random``; ``docs/gpu.md`` lists them. Slow, and as exact as a GPU.
    """
    return Device(_engine.Device.emulated(library, options), mapped, copies_block)


def check_suite(suite: Suite) -> None:
    """Raises :class:`ConfigError` where there are no kernels of a suite for device memory."""
    if suite is not Suite.AES_256_GCM:
        raise ConfigError(
            f"the suite {suite.title} works on CPU memory alone; for tensors and arrays on a GPU, give the group the "
            f"suite {Suite.AES_256_GCM.title}, on all ranks"
        )


def source(given: Device | None, suite: Suite) -> Callable[[int], Device]:
    """What a communicator asks for a device: the one it was ``given``, or else the GPU of the ordinal."""

    def ask(ordinal: int) -> Device:
        check_suite(suite)
        if given is None:
            return device(ordinal)
        if ordinal != 0 and given.module is None:
            raise ConfigError(f"the communicator works on {given.engine.name}, and got memory of device {ordinal}")
        return given

    return ask
