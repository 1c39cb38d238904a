"""The crafted inputs: exact in any order, and unlike what a broken collective leaves."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from harness.pattern import (
    ELEMENTS,
    OPERATIONS,
    PERIOD,
    Array,
    Element,
    Pattern,
    combine,
    count_wrong,
    fill,
    reducible,
    spoil,
)

SHORT = 2039
"""A shorter period (a prime too) for tests of all problems: enough for each rank's turn at each of its values."""

PROBLEMS = [
    pytest.param(element, operation, id=f"{element.name}-{operation}")
    for element, operation in itertools.product(ELEMENTS.values(), OPERATIONS)
    if reducible(element, operation)
]


@pytest.fixture
def short_period(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.pattern.PERIOD", SHORT)


def decode(element: Element, elements: Array) -> Array:
    """Elements as values in ``element.work``; the inverse of ``encode``, written independently of it."""
    if element.torch == "bfloat16":
        return (elements.astype(np.uint32) << 16).view(np.float32)
    if element.torch:
        torch = pytest.importorskip("torch")
        return torch.from_numpy(elements.copy()).view(getattr(torch, element.torch)).to(torch.float32).numpy()
    return elements.astype(element.work)


def contribution(pattern: Pattern, rank: int) -> Array:
    """The values that a rank contributes, scaled where its factor scales them."""
    values = decode(pattern.element, pattern.block(rank))
    return (values * 2.0).astype(values.dtype) if pattern.operation == "premulsum" else values


def finish(pattern: Pattern, total: Array) -> Array:
    """AVG's division, by exact integer or correctly rounded arithmetic."""
    if pattern.operation != "avg":
        return total
    if pattern.element.kind != "i":
        if pattern.element.kind == "c":
            return (total.real / pattern.ranks + 1j * (total.imag / pattern.ranks)).astype(total.dtype)
        return (total / total.dtype.type(pattern.ranks)).astype(total.dtype)
    toward_zero = [abs(int(v)) // pattern.ranks * (1 if v >= 0 else -1) for v in total]
    return np.array(toward_zero).astype(total.dtype)


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize("ranks", [2, 5, 23])
@pytest.mark.parametrize(("element", "operation"), PROBLEMS)
def test_every_order_of_reduction_gives_the_same_bits(element: Element, operation: str, ranks: int) -> None:
    if element.torch.startswith("float8"):
        pytest.importorskip("torch")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    order = random.Random(seed)
    pattern = Pattern(element, operation, ranks, seed)
    contributions = [contribution(pattern, rank) for rank in range(ranks)]
    for _ in range(3):
        pool = list(contributions)
        # A random tree, every partial result stored in its own type: the worst that a plan could do.
        with np.errstate(over="ignore"):
            while len(pool) > 1:
                left, right = (pool.pop(order.randrange(len(pool))) for _ in range(2))
                pool.append(decode(element, element.encode(combine(operation, left, right))))
        result = element.encode(finish(pattern, pool[0]))
        assert count_wrong(result, pattern.reduced) == 0


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize("ranks", [2, 23])
@pytest.mark.parametrize(("element", "operation"), PROBLEMS)
def test_every_rank_counts(element: Element, operation: str, ranks: int) -> None:
    if element.torch.startswith("float8"):
        pytest.importorskip("torch")
    pattern = Pattern(element, operation, ranks)
    contributions = [contribution(pattern, rank) for rank in range(ranks)]
    for left_out in (0, ranks - 1):
        others = [values for rank, values in enumerate(contributions) if rank != left_out]
        total = others[0]
        with np.errstate(over="ignore"):
            for values in others[1:]:
                total = combine(operation, total, values)
        result = element.encode(finish(pattern, total))
        # Many elements survive the loss of a rank where each holds only a few bits, but far from all.
        assert count_wrong(result, pattern.reduced) > SHORT // 200


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize("element", [e for e in ELEMENTS.values() if e.kind in "fc"], ids=lambda element: element.name)
def test_float_values_are_finite_and_normal(element: Element) -> None:
    if element.torch.startswith("float8"):
        pytest.importorskip("torch")
    for operation in (None, *OPERATIONS):
        if operation is not None and not reducible(element, operation):
            continue
        for ranks in (2, 64):
            pattern = Pattern(element, operation, ranks)
            blocks = [pattern.block(rank) for rank in range(3 if ranks > 3 else ranks)]
            if operation not in (None, "avg"):
                blocks.append(pattern.reduced)
            for block in blocks:
                values = decode(element, block)
                parts = np.concatenate([values.real, values.imag])
                assert np.all(np.isfinite(parts))
                exponents = np.frexp(parts[parts != 0])[1] - 1
                assert element.low <= exponents.min() <= exponents.max() <= element.high


@pytest.mark.parametrize("element", ELEMENTS.values(), ids=lambda element: element.name)
def test_a_buffer_that_nobody_wrote_is_wrong_in_every_element(element: Element) -> None:
    if element.torch.startswith("float8"):
        pytest.importorskip("torch")
    block = Pattern(element, "sum", 4).reduced
    buffer = np.zeros(2 * PERIOD + 17, element.dtype)
    spoil(buffer, block, 5)
    assert count_wrong(buffer, block, 5) == buffer.size


@pytest.mark.parametrize("element", ELEMENTS.values(), ids=lambda element: element.name)
def test_one_flipped_bit_is_one_wrong_element(element: Element) -> None:
    if element.torch.startswith("float8"):
        pytest.importorskip("torch")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    block = Pattern(element, "sum", 2).reduced
    buffer = np.zeros(3 * PERIOD + 1, element.dtype)
    for _ in range(20):
        start = choice.randrange(10 * PERIOD)
        fill(buffer, block, start)
        assert count_wrong(buffer, block, start) == 0
        bits = 1 if element.kind == "b" else 8
        buffer.view(np.uint8)[choice.randrange(buffer.nbytes)] ^= 1 << choice.randrange(bits)
        assert count_wrong(buffer, block, start) == 1


def test_data_that_was_moved_by_chunks_slots_or_pages_is_wrong() -> None:
    block = Pattern(ELEMENTS["float"], "sum", 2).reduced
    buffer = np.zeros(4 << 20, np.float32)
    for shift in (1, 16, 1024, 16 << 10, 64 << 10, 1 << 20):
        fill(buffer, block, shift)
        assert count_wrong(buffer, block) > 0.99 * buffer.size


def test_a_buffer_begins_where_it_is_told_to() -> None:
    block = Pattern(ELEMENTS["int32"], None, 2).block(1)
    for start, count in ((0, 10), (PERIOD - 3, 10), (7, 2 * PERIOD + 3), (123456789, 1000)):
        buffer = np.zeros(count, np.int32)
        fill(buffer, block, start)
        assert np.array_equal(buffer, block[(start + np.arange(count)) % PERIOD])


def test_ranks_seeds_and_operations_give_different_inputs() -> None:
    blocks = [
        Pattern(ELEMENTS["int64"], None, 4, seed).block(rank).tobytes()
        for seed, rank in itertools.product((1, 2), range(4))
    ]
    assert len(set(blocks)) == len(blocks)


def test_a_reduction_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="band is not defined for float"):
        Pattern(ELEMENTS["float"], "band", 2)
    with pytest.raises(ValueError, match="nothing is reduced"):
        _ = Pattern(ELEMENTS["float"], None, 2).reduced
