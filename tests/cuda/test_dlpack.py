"""Arrays that come by DLPack, in the dtypes that NumPy has no name for: device sums have the bits of the host's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator, ReduceOp
from tests.cuda.arrays import Array
from tests.cuda.dlpack import BFLOAT16, CUDA, FLOAT8, Tensor, on_cpu
from tests.cuda.groups import devices
from tests.groups import SMALL, run

DTYPES = {"bfloat16": BFLOAT16, **FLOAT8}
COUNT = 5003
OPS = (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX, ReduceOp.PREMUL_SUM)


def _values(rank: int, bits: int) -> Any:
    """Every pattern of 8 bits, infinities and NaNs among them; of 16 bits, many."""
    rng = np.random.default_rng(rank)
    return rng.integers(0, 1 << bits, COUNT).astype(np.uint8 if bits == 8 else np.uint16)


def _reductions(comm: Communicator, dtype: tuple[int, int]) -> list[str]:
    wrong = []
    for op in OPS:
        given = _values(comm.rank, dtype[1])
        here = given.copy()
        comm.all_reduce(on_cpu(here, dtype), op=op, factor=0.5)
        there = Array(comm.device, given)
        comm.all_reduce(Tensor(there.address, COUNT, dtype, CUDA, there), op=op, factor=0.5)
        if there.get().tobytes() != here.tobytes():
            wrong.append(op.name)
        there.close()
    return wrong


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_have_the_bits_of_the_hosts(tmp_path: Path, dtype: str) -> None:
    results = run(3, tmp_path, _reductions, DTYPES[dtype], shape=SMALL, device=devices(), timeout=60.0)
    assert results == [[]] * 3
