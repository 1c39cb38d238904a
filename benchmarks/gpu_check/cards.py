"""A GPU with the face of the tests' emulated card: what is tested without silicon is tested on it by the same code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_check import cubins
from gpu_check.driver import Driver, DriverError
from gpu_check.target import Target
from tests.cuda.card import PARTIAL_BYTES, RECORDS, Card
from tests.cuda.conftest import SOURCES
from tests.emulator.conftest import PROBE
from tests.emulator.emulator import Emulator, EmulatorError, Order, build

Cards = Callable[..., Card]

GARBAGE = 0xA5


@functools.cache
def loaded(kind: str) -> Driver:
    """The driver, with the kernels of that kind: see :func:`gpu_check.cubins.sources`."""
    driver = Driver()
    for source in cubins.sources(kind):
        cubin = cubins.cubin(source)
        if cubin.exists():  # else its kernels are missed where they are launched
            driver.load(cubin)
    return driver


class Gpu:
    """As :class:`tests.emulator.emulator.Emulator`; orders and seeds are the silicon's own."""

    def __init__(self, kind: str) -> None:
        self.driver = loaded(kind)
        self._live: set[int] = set()

    def close(self) -> None:
        for at in self._live:
            self.driver.release(at)
        self._live.clear()

    def allocate(self, size: int) -> int:
        at = self.driver.allocate(size)
        self._live.add(at)
        self.driver.fill(at, GARBAGE, size)
        return at

    def upload(self, data: bytes) -> int:
        at = self.allocate(max(1, len(data)))
        self.write(at, data)
        return at

    def release(self, at: int) -> None:
        if at not in self._live:
            raise ValueError(f"nothing was allocated at {at:#x}")
        self._live.remove(at)
        self.driver.release(at)

    def write(self, at: int, data: bytes) -> None:
        if data:
            self.driver.write(at, data)

    def read(self, at: int, size: int) -> bytes:
        return self.driver.read(at, size) if size else b""

    def run(self, kernel: str, args: bytes, grid: int = 1, block: int = 256, shared: int = 0, **_: object) -> None:
        try:
            self.driver.launch(kernel, args, grid, block, shared)
            self.driver.synchronize()
        except DriverError as error:
            raise EmulatorError(f"{kernel}: {error}") from error

    def time(self, kernel: str, args: bytes, grid: int, block: int, shared: int, times: int) -> float:
        """Seconds that a launch takes, of many in a row."""
        begin, end = self.driver.event(), self.driver.event()
        self.driver.record(begin)
        for _ in range(times):
            self.driver.launch(kernel, args, grid, block, shared)
        self.driver.record(end)
        return self.driver.seconds(begin, end) / times


@dataclass
class GpuCard(Card):
    """A card on the GPU."""

    hash: str = "tensor"

    def __post_init__(self) -> None:
        self.emulator = Gpu(self.hash)  # type: ignore[assignment]
        self.status = self.emulator.upload(bytes(64))
        self.partials = self.emulator.upload(bytes(PARTIAL_BYTES * RECORDS))


def maker(target: Target, made: list[Card], forced_mode: str = "") -> Cards:
    """As the tests' fixture ``make_card``; every card that it makes is added to ``made``, to be closed.

    ``forced_mode``: the emulator's build, whatever a test asks for.
    """

    def make(mode: str = "plain", hash: str = "tensor", order: Order = Order.IN_TURN, seed: int = 1) -> Card:
        if target.emulate:
            mode = forced_mode or mode
            card = Card(build(SOURCES[mode, hash], mode), order, seed)
        else:
            card = GpuCard(Path(), order, seed, hash=hash)
        made.append(card)
        return card

    return make


def names(target: Target) -> Emulator | Gpu:
    """The kernels of tests/emulator/probe.cu."""
    if target.emulate:
        return Emulator(build(PROBE))
    return Gpu("names")
