"""The cost model: simulated times are those of the schedule, and the closed form agrees with them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from securecoll.codes import Collective
from securecoll.plan.cost import Rates, estimate, simulate
from securecoll.plan.schedule import PlanError
from securecoll.plan.tuner import DEPTH, HOST
from tests.plan.cases import EVERY, NAMES, group

ROUND = Rates(seal=1e9, open=2e9, reduce=4e9, copy=8e9, record_seconds=0.0, hop_seconds=1e-6, cores=64)


def test_one_record_by_hand() -> None:
    """1000 ns to seal, 1000 ns on the way, 500 ns to open; the root copies meanwhile."""
    run = simulate(group(Collective.BROADCAST, "one_shot", 2, 1000, chunk=1024), ROUND, DEPTH)
    assert run.seconds == pytest.approx(2.5e-6)
    assert run.busy == pytest.approx((1.125e-6, 0.5e-6))
    assert run.records == ((0, 2),)


def test_chunks_overlap() -> None:
    """Ten chunks: the reader is done half a chunk and a hop after the writer has sealed its last."""
    plans = group(Collective.GATHER, "one_shot", 2, 10_240, root=1, chunk=1024, wave=100)
    run = simulate(plans, replace(ROUND, copy=1e15), DEPTH)
    assert run.seconds == pytest.approx(10.24e-6 + 1e-6 + 0.512e-6, rel=1e-3)


def test_too_few_cores_slow_all_work_down() -> None:
    plans = group(Collective.ALL_REDUCE, "direct", 4, 4 * 640)
    full = simulate(plans, ROUND, DEPTH)
    half = simulate(plans, replace(ROUND, cores=2), DEPTH)
    assert half.busy == pytest.approx([2 * seconds for seconds in full.busy])


def test_a_full_lane_holds_its_writer_back() -> None:
    """With one slot, the next seal waits until the last open is seen: seal, hop, open, hop for each chunk."""
    plans = group(Collective.GATHER, "one_shot", 2, 4096, root=1, chunk=1024, wave=100)
    run = simulate(plans, replace(ROUND, copy=1e15), 1)
    assert run.seconds == pytest.approx(4 * (1.024e-6 + 1e-6 + 0.512e-6) + 3 * 1e-6, rel=1e-3)


def test_plans_that_deadlock_have_no_price() -> None:
    with pytest.raises(PlanError, match=r"^deadlock"):
        simulate(group(Collective.ALL_REDUCE, "ring", 3, 3 * 128, wave=2), ROUND, 2)


@pytest.mark.parametrize("cores", [2, 64])
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_the_estimate_agrees_with_the_simulation(collective: Collective, algorithm: str, cores: int) -> None:
    rates = replace(HOST, cores=cores)
    for size in (2, 3, 4, 8):
        for nbytes in (64, 4 << 10, 64 << 10, 1 << 20):
            moved = 0 if collective is Collective.BARRIER else nbytes
            for chunk in (16 << 10, 64 << 10):
                plans = group(collective, algorithm, size, moved, root=size // 2, chunk=chunk)
                ratio = estimate(collective, algorithm, size, moved, chunk, 8, rates) / (
                    simulate(plans, rates, DEPTH).seconds
                )
                assert 0.6 < ratio < 1.6, f"{size} ranks, {nbytes} bytes, chunks of {chunk}: {ratio:.2f}"


def test_every_algorithm_has_an_estimate_and_no_other() -> None:
    for collective, algorithm in EVERY:
        assert estimate(collective, algorithm, 4, 0 if collective is Collective.BARRIER else 1024, 1024, 8, HOST) > 0
    with pytest.raises(ValueError, match="gather has no algorithm 'ring'"):
        estimate(Collective.GATHER, "ring", 4, 1024, 1024, 8, HOST)


def test_an_estimate_takes_less_than_50_microseconds() -> None:
    best = float("inf")
    for _ in range(200):
        start = time.perf_counter()
        estimate(Collective.ALL_REDUCE, "ring", 8, 1 << 20, 1 << 16, 8, HOST)
        best = min(best, time.perf_counter() - start)
    assert best < 50e-6
