"""Buffers and results of the six collectives, against their definitions run in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from harness.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    REDUCE,
    REDUCE_SCATTER,
    Case,
    Collective,
)
from harness.pattern import ELEMENTS, Array, Pattern

RANKS, COUNT, ROOT = 3, 1000, 1


def define(case: Case, sends: list[Array], recvs: list[Array]) -> None:
    """What the collective is defined to do, on the buffers of all ranks."""
    collective, count = case.collective, case.count
    inputs = [send.copy() for send in sends]
    total = np.sum(inputs, axis=0, dtype=inputs[0].dtype) if collective.reduces else None
    for rank, recv in enumerate(recvs):
        if collective is ALL_REDUCE or (collective is REDUCE and rank == case.root):
            recv[:] = total
        elif collective is ALL_GATHER:
            recv[:] = np.concatenate(inputs)
        elif collective is REDUCE_SCATTER:
            assert total is not None
            recv[:] = total[rank * count : (rank + 1) * count]
        elif collective is BROADCAST:
            recv[:] = inputs[case.root]
        elif collective is ALL_TO_ALL:
            recv[:] = np.concatenate([part[rank * count : (rank + 1) * count] for part in inputs])


FORMS = [
    pytest.param(collective, in_place, id=f"{collective.name}-{'in' if in_place else 'out-of'}-place")
    for collective in COLLECTIVES.values()
    for in_place, offered in ((False, collective.out_of_place), (True, collective.in_place))
    if offered
]


@pytest.mark.parametrize(("collective", "in_place"), FORMS)
def test_the_definition_has_no_wrong_element_and_one_changed_bit_is_one(
    collective: Collective, in_place: bool
) -> None:
    element = ELEMENTS["float"]
    pattern = Pattern(element, "sum" if collective.reduces else None, RANKS)
    cases = [Case(collective, pattern, rank, COUNT, ROOT if collective.rooted else 0) for rank in range(RANKS)]
    placed = [
        case.place(in_place, np.zeros(case.send_count, np.float32), np.zeros(case.recv_count, np.float32))
        for case in cases
    ]
    for case, (send, recv) in zip(cases, placed, strict=True):
        case.prepare(send, recv)
    receivers = [ROOT] if collective is REDUCE else range(RANKS)
    if not in_place:
        for rank in receivers:
            assert cases[rank].count_wrong(placed[rank][1]) == cases[rank].recv_count
    define(cases[0] if not collective.rooted else cases[ROOT], [s for s, _ in placed], [r for _, r in placed])
    for case, (_, recv) in zip(cases, placed, strict=True):
        assert case.count_wrong(recv) == 0
    for rank in receivers:
        recv = placed[rank][1]
        recv.view(np.uint32)[recv.size // 2] ^= 1
        assert cases[rank].count_wrong(recv) == 1


def test_what_only_the_root_gets_is_checked_on_the_root_only() -> None:
    pattern = Pattern(ELEMENTS["float"], "sum", RANKS)
    garbage = np.full(COUNT, np.nan, np.float32)
    wrong = [Case(REDUCE, pattern, rank, COUNT, ROOT).count_wrong(garbage) for rank in range(RANKS)]
    assert wrong == [0, COUNT, 0]


@pytest.mark.parametrize(
    ("collective", "factors"),
    [
        (ALL_REDUCE, {2: 1.0, 4: 1.5, 8: 1.75}),
        (ALL_GATHER, {2: 0.5, 4: 0.75, 8: 0.875}),
        (REDUCE_SCATTER, {2: 0.5, 4: 0.75, 8: 0.875}),
        (ALL_TO_ALL, {2: 0.5, 4: 0.75, 8: 0.875}),
        (BROADCAST, {2: 1.0, 4: 1.0, 8: 1.0}),
        (REDUCE, {2: 1.0, 4: 1.0, 8: 1.0}),
    ],
    ids=lambda value: value.name if isinstance(value, Collective) else "",
)
def test_bus_factors_are_those_of_nccl_tests(collective: Collective, factors: dict[int, float]) -> None:
    assert {ranks: collective.bus_factor(ranks) for ranks in factors} == factors


@pytest.mark.parametrize(
    ("collective", "nbytes"),
    [
        (ALL_REDUCE, 400),
        (BROADCAST, 400),
        (REDUCE, 400),
        (ALL_GATHER, 1200),
        (REDUCE_SCATTER, 1200),
        (ALL_TO_ALL, 1200),
    ],
    ids=lambda value: value.name if isinstance(value, Collective) else "",
)
def test_the_size_of_a_row_is_that_of_the_larger_buffer(collective: Collective, nbytes: int) -> None:
    case = Case(collective, Pattern(ELEMENTS["float"], "sum" if collective.reduces else None, 3), 0, 100)
    assert case.nbytes == nbytes == 4 * max(case.send_count, case.recv_count)
