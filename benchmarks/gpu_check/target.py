"""What a run is done on, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_check.findings import Skipped

if TYPE_CHECKING:
    from securecoll import cuda

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "build" / "gpu_check"
"""Where a run builds."""
OFFLINE = ROOT / "build" / "offline"
"""What ``gpu_check.sh --prepare`` gathers for a machine without a network."""


class Scale(IntEnum):
    """How much is done."""

    SMALLEST = 0
    """For a test of the script."""
    SMALL = 1
    """What the emulated device does in a minute or two."""
    FULL = 2
    """For a GPU."""


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU, or the emulated device."""

    emulate: bool
    scale: Scale
    kernels: str = ""
    """The kernels, built for the emulated device."""

    @classmethod
    def of(cls, emulate: bool, scale: Scale) -> Target:
        """For a step; builds the library if that is not up to date."""
        if not emulate:
            return cls(False, scale)
        from kernels.emulator.build import build

        return cls(True, scale, str(build([ROOT / "kernels" / "cuda" / "securecoll.cu"])))

    def pick(self, smallest: int, small: int, full: int) -> int:
        """A number for the scale."""
        return (smallest, small, full)[self.scale]

    def needs_gpu(self, why: str) -> None:
        """Skips what the emulated device does not have."""
        if self.emulate:
            raise Skipped(f"only on a GPU: {why}")

    def communicator_device(self, rank: int, mapped: bool = False, options: str = "") -> cuda.Device:
        """For a rank: the one GPU, which all ranks share, or an emulated device of its own."""
        from dataclasses import replace

        from securecoll import cuda

        if not self.emulate:
            return replace(cuda.device(0), mapped=mapped)
        return cuda.emulated(self.kernels, f"seed={rank + 1} {options}", mapped=mapped)
