"""Device memory keeps the order of the caller's stream, though every stream runs as late as it may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator
from tests.cuda.arrays import Array
from tests.cuda.groups import devices
from tests.groups import SMALL, run

COUNT = 9000


def _values(rank: int, salt: int) -> Any:
    return ((np.arange(COUNT) * 7 + rank * 13 + salt) % 101).astype(np.float32)


def _between_copies(comm: Communicator, rounds: int, async_op: bool) -> None:
    """Each round's input is written by the caller's stream just before the call, and its result read just behind it,
    without the caller's waiting in between."""
    assert comm.device is not None
    engine = comm.device.engine
    stream = engine.stream()
    kept = []
    x = Array(comm.device, np.zeros(COUNT, np.float32), stream)
    works = []
    for salt in range(rounds):
        source = Array(comm.device, _values(comm.rank, salt), engine.stream())
        result = Array(comm.device, np.zeros(COUNT, np.float32), stream)
        engine.copy(x.address, source.address, x.nbytes, stream)
        work = comm.all_reduce(x, async_op=async_op)
        if work is not None:
            works.append(work)
            work.wait()
        engine.copy(result.address, x.address, x.nbytes, stream)
        kept.append((source, result))
    for salt, (_, result) in enumerate(kept):
        want = np.sum([_values(r, salt) for r in range(comm.size)], axis=0, dtype=np.float32)
        np.testing.assert_array_equal(result.get(), want, err_msg=f"rank {comm.rank}, round {salt}")
    comm.barrier()
    assert all(work.done() for work in works)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_calls_come_after_the_stream_and_the_stream_goes_on_behind_them(
    tmp_path: Path, size: int, mapped: bool, async_op: bool
) -> None:
    run(size, tmp_path, _between_copies, 4, async_op, shape=SMALL, device=devices(mapped=mapped), timeout=60.0)


def _in_flight(comm: Communicator) -> None:
    arrays = [Array(comm.device, _values(comm.rank, i)) for i in range(6)]
    works = [comm.all_reduce(x, async_op=True) for x in arrays]
    for i, (work, x) in enumerate(zip(works, arrays, strict=True)):
        work.wait()
        want = np.sum([_values(r, i) for r in range(comm.size)], axis=0, dtype=np.float32)
        np.testing.assert_array_equal(x.get(), want)


def test_several_in_flight(tmp_path: Path) -> None:
    run(2, tmp_path, _in_flight, shape=SMALL, device=devices(), timeout=60.0)


def _host_and_device(comm: Communicator) -> None:
    for i in range(4):
        x = _values(comm.rank, i)
        want = np.sum([_values(r, i) for r in range(comm.size)], axis=0, dtype=np.float32)
        if (comm.rank + i) % 2:
            comm.all_reduce(x)
        else:
            there = Array(comm.device, x)
            comm.all_reduce(there)
            x = there.get()
        np.testing.assert_array_equal(x, want)


def test_one_communicator_serves_both_memories(tmp_path: Path) -> None:
    """In turn, and different ones on different ranks in one call: keys are the same, nonces never."""
    run(3, tmp_path, _host_and_device, shape=SMALL, device=devices(), timeout=60.0)


def _nobody_asks_again(comm: Communicator) -> bool:
    x = Array(comm.device, _values(comm.rank, 0)) if comm.rank == 0 else _values(comm.rank, 0)
    comm.all_reduce(x)
    # Rank 0 does nothing more, and its last records still have to leave it.
    return bool((x == _values(0, 0) + _values(1, 0)).all()) if comm.rank == 1 else True


def test_what_was_handed_to_the_device_leaves_it_without_another_call(tmp_path: Path) -> None:
    assert run(2, tmp_path, _nobody_asks_again, shape=SMALL, device=devices(only=(0,)), timeout=20.0) == [True, True]
