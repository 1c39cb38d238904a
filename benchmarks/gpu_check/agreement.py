"""Every collective and dtype among ranks that share the GPU: results equal NumPy's and the host engine's."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_check.findings import Findings
from gpu_check.target import Scale, Target
from securecoll import Communicator, cuda
from tests.cuda.on_device import OnDevice
from tests.groups import SMALL, left_behind, run
from tests.test_communicator import every_collective, every_dtype, uneven_parts


def device(target: Target, mapped: bool, only: tuple[int, ...], rank: int) -> cuda.Device | None:
    """A rank's device; none for ranks that are not in ``only``, which work on the CPU."""
    return target.communicator_device(rank, mapped) if rank in only else None


def on_device(comm: Communicator, body: Any, *args: Any) -> Any:
    """``body`` with arrays on the communicator's device, if it has one."""
    return body(OnDevice(comm) if comm.device else comm, *args)


def check(target: Target, size: int, mapped: bool, only: tuple[int, ...], body: Any, *args: Any) -> None:
    with TemporaryDirectory() as folder:
        make = functools.partial(device, target, mapped, only)
        run(
            size,
            Path(folder),
            on_device,
            body,
            *args,
            shape=SMALL,
            device=make,
            timeout=60.0 if target.emulate else 20.0,
        )
    assert not left_behind()


def run_step(target: Target, findings: Findings) -> None:
    counts = (1025,) if target.emulate else (1, 1025, 9000)
    for size in (2,) if target.scale is Scale.SMALLEST else (2, 4):
        everyone = tuple(range(size))
        for mapped in (False, True):
            mode = "mapped" if mapped else "staged"
            with findings.check(f"{size} ranks, {mode}: every collective and algorithm"):
                check(target, size, mapped, everyone, every_collective, counts)
        if target.scale is Scale.SMALLEST:
            break
        if size > 2:
            with findings.check(f"{size} ranks, staged: uneven parts"):
                check(target, size, False, everyone, uneven_parts)
        with findings.check(f"{size} ranks, half of them on the CPU: every collective"):
            check(target, size, False, everyone[::2], every_collective, counts)
    if target.scale is Scale.FULL:
        with findings.check("2 ranks, staged: every dtype and operation"):
            check(target, 2, False, (0, 1), every_dtype)
