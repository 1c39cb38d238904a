"""Collectives on device memory: the same checks as on CPU arrays, on devices whose streams run as late as they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from securecoll import Communicator
from tests.cuda.groups import devices
from tests.cuda.on_device import OnDevice
from tests.groups import SMALL, left_behind, run
from tests.test_communicator import every_collective, every_dtype, uneven_parts

COUNTS = (1, 1025, 9000)


def _on_device(comm: Communicator, body: Any, *args: Any) -> Any:
    return body(OnDevice(comm) if comm.device else comm, *args)


MODES = {
    "staged": {"mapped": False},
    "mapped": {"mapped": True},
    "not mappable": {"mapped": True, "options": "mappable=0"},
    "copies block": {"copies_block": True, "options": "mappable=0"},
    "mixed": {"only": (0, 2)},
}


@pytest.mark.parametrize(
    ("size", "mode"),
    [(1, "staged"), *((2, mode) for mode in MODES), *((3, mode) for mode in MODES), (4, "staged"), (4, "mixed")],
)
def test_every_collective_and_algorithm(tmp_path: Path, size: int, mode: str) -> None:
    """In and out of place; "mixed": CPU and device ranks in one group."""
    counts = COUNTS if size < 3 else COUNTS[1:] if size < 4 else COUNTS[1:2]
    options = {"shape": SMALL, "device": devices(**MODES[mode]), "timeout": 60.0}
    assert min(run(size, tmp_path, _on_device, every_collective, counts, **options)) >= 20
    assert not left_behind()


@pytest.mark.parametrize("mode", ["staged", "mapped", "mixed"])
def test_uneven_parts(tmp_path: Path, mode: str) -> None:
    run(3, tmp_path, _on_device, uneven_parts, shape=SMALL, device=devices(**MODES[mode]), timeout=60.0)


@pytest.mark.parametrize(("size", "mode"), [(2, "staged"), (3, "mixed"), (4, "staged")])
def test_every_dtype(tmp_path: Path, size: int, mode: str) -> None:
    run(size, tmp_path, _on_device, every_dtype, shape=SMALL, device=devices(**MODES[mode]), timeout=60.0)
