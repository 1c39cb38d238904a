"""Groups whose ranks work on emulated devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

from securecoll import cuda
from tests.cuda import arrays


def _device(
    library: str, options: str, mapped: bool, copies_block: bool, only: Collection[int] | None, rank: int
) -> cuda.Device | None:
    if only is not None and rank not in only:
        return None
    options = f"seed={rank + 1} blocking_copies={int(copies_block)} {options}"
    return cuda.emulated(library, options, mapped=mapped, copies_block=copies_block)


def devices(
    options: str = "",
    mapped: bool = False,
    copies_block: bool = False,
    only: Collection[int] | None = None,
) -> Callable[[int], cuda.Device | None]:
    """For ``device`` of :func:`tests.groups.group`: a device for each rank, or for ``only`` some.

    The kernels are built here, once, and not by each rank.
    """
    return functools.partial(_device, arrays.kernels(), options, mapped, copies_block, only)
