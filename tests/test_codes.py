"""The two copies of the frozen code table agree."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from securecoll.codes import Collective, DType, PointToPoint, ReduceOp

HEADER = Path(__file__).parent.parent / "kernels" / "engine" / "codes.hpp"
NAMES = {"boolean": "bool"}


@pytest.mark.parametrize(
    ("python", "cpp"),
    [((Collective, PointToPoint), "Collective"), ((DType,), "DType"), ((ReduceOp,), "RedOp")],
    ids=["collectives", "dtypes", "reductions"],
)
def test_codes_are_the_engines(python: tuple[type[IntEnum], ...], cpp: str) -> None:
    body = re.search(rf"enum class {cpp} : uint8_t {{(.*?)}};", HEADER.read_text(), re.S)
    assert body is not None
    theirs = {NAMES.get(n, n): int(v) for n, v in re.findall(r"(\w+) = (\d+)", body[1])}
    assert theirs == {member.name.lower(): member.value for codes in python for member in codes}


def test_item_sizes_are_the_engines() -> None:
    sizes = re.search(r"sizes\[kDTypes\] = {([\d, ]+)}", HEADER.read_text())
    assert sizes is not None
    assert [int(x) for x in sizes[1].split(",")] == [dtype.itemsize for dtype in DType]
