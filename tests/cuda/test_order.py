"""Device memory keeps the order of the caller's stream, though every stream runs as late as it may."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator, plan
from securecoll.codes import Collective
from securecoll.shape import Shape
from tests.cuda.arrays import Array
from tests.cuda.groups import devices
from tests.groups import SMALL, run

COUNT = 9000


def _values(rank: int, salt: int) -> Any:
    return ((np.arange(COUNT) * 7 + rank * 13 + salt) % 101).astype(np.float32)


def _between_copies(comm: Communicator, rounds: int, in_place: bool, async_op: bool) -> None:
    """Each round's input is written by the caller's stream just before the call, and its result read just behind it,
    without the caller's waiting in between."""
    assert comm.device is not None
    engine = comm.device.engine
    stream = engine.stream()
    kept = []
    x = Array(comm.device, np.zeros(COUNT, np.float32), stream)
    y = x if in_place else Array(comm.device, np.zeros(COUNT, np.float32), stream)
    works = []
    for salt in range(rounds):
        source = Array(comm.device, _values(comm.rank, salt), engine.stream())
        result = Array(comm.device, np.zeros(COUNT, np.float32), stream)
        engine.copy(x.address, source.address, x.nbytes, stream)
        work = comm.all_reduce(x, y, async_op=async_op)
        if work is not None:
            works.append(work)
            work.wait()
        engine.copy(result.address, y.address, y.nbytes, stream)
        kept.append((source, result))
    for salt, (_, result) in enumerate(kept):
        want = np.sum([_values(r, salt) for r in range(comm.size)], axis=0, dtype=np.float32)
        np.testing.assert_array_equal(result.get(), want, err_msg=f"rank {comm.rank}, round {salt}")
    comm.barrier()
    assert all(work.done() for work in works)


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize(
    ("how", "in_place"),
    [({}, True), ({}, False), ({"mapped": True}, False), ({"copies_block": True}, True)],
    ids=["staged", "staged out of place", "mapped", "copies block"],
)
@pytest.mark.parametrize("size", [1, 3])
def test_calls_come_after_the_stream_and_the_stream_goes_on_behind_them(
    tmp_path: Path, size: int, how: dict[str, bool], in_place: bool, async_op: bool
) -> None:
    run(
        size,
        tmp_path,
        _between_copies,
        4,
        in_place,
        async_op,
        shape=SMALL,
        device=devices("latency=300", **how),
        timeout=60.0,
    )


def _swap(kind: Collective, rank: int, size: int, *, nbytes: int, chunk: int, wave: int, **_: Any) -> plan.ir.Plan:
    """Two ranks exchange a buffer in place: what comes in goes where what goes out still lies."""
    block, peer = plan.ir.Block(plan.ir.OUTPUT, 0, nbytes), 1 - rank
    out = plan.ir.Step(
        plan.ir.StepOp.SEAL, nbytes, block, lanes=(plan.ir.to_rank(peer),), stream=plan.ir.Stream(rank, peer)
    )
    record = plan.ir.Record(plan.ir.from_rank(peer), plan.ir.Stream(peer, rank))
    back = plan.ir.Step(plan.ir.StepOp.OPEN, nbytes, block, sources=(record,), after=(0,))
    blocks = plan.ir.cipher_blocks(nbytes, chunk)
    return plan.ir.Plan(kind, "swap", rank, size, chunk, wave, (out, back), bytes(32), blocks=blocks)


def _late_sealing(comm: Communicator) -> None:
    plan.plan = _swap  # type: ignore[assignment]
    for salt in range(6):
        x = _values(comm.rank, salt)
        there = Array(comm.device, x) if comm.device else None
        comm.all_reduce(x if there is None else there)
        got = x if there is None else there.get()
        np.testing.assert_array_equal(got, _values(1 - comm.rank, salt), err_msg=f"rank {comm.rank}")


def test_what_comes_in_does_not_overwrite_what_is_still_to_be_sealed(tmp_path: Path) -> None:
    """With a plan of this test's own, towards a rank whose records are all there before this rank's kernels run."""
    how = devices("latency=300", only=(0,))
    run(2, tmp_path, _late_sealing, shape=Shape(4096, depth=16, wave=8), device=how, timeout=60.0)


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


def _nobody_asks_again(comm: Communicator, done: str) -> bool:
    x = Array(comm.device, _values(comm.rank, 0)) if comm.rank == 0 else _values(comm.rank, 0)
    comm.all_reduce(x)
    if comm.rank == 1:
        Path(done).touch()
        return bool((x == _values(0, 0) + _values(1, 0)).all())
    # Rank 0 makes no call until rank 1 has all, though its last records still had to leave it.
    deadline = time.monotonic() + 15
    while not Path(done).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return Path(done).exists()


def test_what_was_handed_to_the_device_leaves_it_without_another_call(tmp_path: Path) -> None:
    done = str(tmp_path / "done")
    how = devices("latency=300", only=(0,))
    assert run(2, tmp_path, _nobody_asks_again, done, shape=SMALL, device=how, timeout=30.0) == [True, True]
