"""Plans run over real numbers, in random orders, by an executor that shares no code with the checker."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from securecoll.codes import Collective
from securecoll.plan.call import REDUCTIONS, Call
from securecoll.plan.ir import Plan
from securecoll.plan.topology import Topology
from tests.plan.cases import EVERY, NAMES, group
from tests.plan.executor import Bytes, Group

SIZE = 4
COUNTS = [40, 0, 202, 64]
EDGES = [[0, 40, 0, 130], [202, 2, 64, 4], [0, 0, 0, 0], [6, 300, 40, 64]]


def buffers(calls: list[Call], draw: random.Random, in_place: bool) -> list[tuple[Bytes, Bytes]]:
    """Random float16 inputs; outputs full of garbage, or the inputs' own memory."""
    made = []
    for call in calls:
        numbers = np.array([draw.uniform(-2, 2) for _ in range(call.input_bytes // 2)], np.float16)
        data = numbers.view(np.uint8)
        out = np.full(call.output_bytes, 0xEE, np.uint8)
        kind, own = call.collective, call.rank
        if in_place and kind is not Collective.ALL_TO_ALL and call.input_bytes and call.output_bytes:
            if kind in (Collective.ALL_GATHER, Collective.GATHER):
                start, length = call.parts[own]
                out[start : start + length] = data
                data = out[start : start + length]
            elif kind in (Collective.REDUCE_SCATTER, Collective.SCATTER):
                start, length = call.parts[own]
                out = data[start : start + length]
            else:
                out = data
        made.append((data, out))
    return made


def expected(calls: list[Call], inputs: list[Bytes], rank: int) -> Bytes:
    """What the collective leaves on ``rank``; not for reductions."""
    call = calls[rank]
    if not call.output_bytes:
        return np.empty(0, np.uint8)
    if call.collective is Collective.BROADCAST:
        return inputs[call.root]
    if call.collective is Collective.SCATTER:
        start, length = call.parts[rank]
        return inputs[call.root][start : start + length]
    if call.collective is Collective.ALL_TO_ALL:
        spans = [c.sends[rank] for c in calls]
        return np.concatenate([data[start : start + n] for data, (start, n) in zip(inputs, spans, strict=True)])
    return np.concatenate(inputs)


def reduced(calls: list[Call], inputs: list[Bytes], factors: list[np.float16], rank: int) -> npt.NDArray[np.float64]:
    call = calls[rank]
    total = sum(
        data.view(np.float16).astype(np.float64) * float(factor) for data, factor in zip(inputs, factors, strict=True)
    ) / len(inputs)
    assert isinstance(total, np.ndarray)
    if call.collective is Collective.REDUCE_SCATTER:
        start, length = call.parts[rank]
        return total[start // 2 : (start + length) // 2]
    return total if call.output_bytes else total[:0]


def shapes(collective: Collective) -> list[dict[str, object]]:
    if collective is Collective.BARRIER:
        return [{}]
    if collective is Collective.ALL_TO_ALL:
        return [{"nbytes": 0}, {"nbytes": 140}, {"edges": EDGES}]
    even: list[dict[str, object]] = [{"nbytes": 0}, {"nbytes": 2}, {"nbytes": 64 * 15 - 6}]
    parted = collective in (
        Collective.ALL_GATHER,
        Collective.GATHER,
        Collective.REDUCE_SCATTER,
        Collective.SCATTER,
    )
    return [*even, {"counts": COUNTS}] if parted else even


@pytest.mark.parametrize("in_place", [False, True], ids=["distinct", "in_place"])
@pytest.mark.parametrize("hosts", [(0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 0, 0), (0, 1, 2, 0)], ids=str)
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_plans_compute_their_collective_in_any_order(
    collective: Collective, algorithm: str, hosts: tuple[int, ...], in_place: bool
) -> None:
    topology = Topology(hosts)
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for shape in shapes(collective):
        plans: list[Plan] = group(collective, algorithm, SIZE, root=2, itemsize=2, wave=3, topology=topology, **shape)  # type: ignore[arg-type]
        calls = [plan.call for plan in plans if plan.call is not None]
        memory = buffers(calls, draw, in_place)
        inputs = [data.copy() for data, _ in memory]
        factors = [np.float16(draw.uniform(0.5, 1.5)) for _ in range(SIZE)]
        assert Group(plans, memory, 4, factors, topology, draw).run(), "deadlock, or records that nobody read"
        for rank, (_, out) in enumerate(memory):
            if collective not in REDUCTIONS:
                assert out.tobytes() == expected(calls, inputs, rank).tobytes()
            elif len(out):
                np.testing.assert_allclose(
                    out.view(np.float16).astype(np.float64), reduced(calls, inputs, factors, rank), atol=2e-2
                )
        if collective is Collective.ALL_REDUCE:
            assert len({out.tobytes() for _, out in memory}) == 1, "ranks hold different bits"
