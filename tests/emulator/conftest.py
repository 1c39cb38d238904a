"""Fixtures of the emulator's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.emulator.device import Device
from tests.emulator.emulator import ROOT, Emulator, build

HERE = ROOT / "tests" / "emulator"
PROBE, BUGS = HERE / "probe.cu", HERE / "bugs.cu"

# Mode, and macros for the emulator. The last forces the switch of fibers that other processors use.
BUILDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain": ("plain", ()),
    "race": ("race", ()),
    "race-ucontext": ("race", ("SC_EMULATOR_UCONTEXT",)),
}

DeviceMaker = Callable[..., Device]


@pytest.fixture(params=BUILDS)
def probe(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """The kernels of ``probe.cu``, in each build."""
    mode, macros = BUILDS[request.param]
    emulator = Emulator(build(PROBE, mode, emulator_macros=macros))
    yield emulator
    emulator.close()


def _bugs(name: str) -> Iterator[Emulator]:
    mode, macros = BUILDS[name]
    emulator = Emulator(build(BUGS, mode, emulator_macros=macros))
    yield emulator
    emulator.close()


@pytest.fixture(params=BUILDS)
def bugs(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """The kernels of ``bugs.cu``, in each build."""
    yield from _bugs(request.param)


@pytest.fixture(params=[name for name in BUILDS if name != "plain"])
def checked_bugs(request: pytest.FixtureRequest) -> Iterator[Emulator]:
    """The same, in the builds that look at every access."""
    yield from _bugs(request.param)


@pytest.fixture
def plain_bugs() -> Iterator[Emulator]:
    """The same, in the build that looks at none."""
    yield from _bugs("plain")


@pytest.fixture
def make_device() -> Iterator[DeviceMaker]:
    """Makes devices with the kernels of ``probe.cu``; they are deleted after the test."""
    made: list[Device] = []

    def make(options: str = "", mode: str = "plain", bound: bool = True) -> Device:
        device = Device(PROBE, options, mode, bound)
        made.append(device)
        return device

    yield make
    for device in made:
        device.close()
