"""The backend through torch.distributed: values, shapes, dtypes, and what is refused before anything is sent.

Bodies run on every rank (see ``ranks.py``). References are computed locally from what each rank is known to send.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from securecoll.errors import CollectiveTimeout, ConfigError
from tests.torch.ranks import on_ranks

Op = dist.ReduceOp

INTEGERS = [
    torch.uint8,
    torch.int8,
    torch.uint16,
    torch.int16,
    torch.uint32,
    torch.int32,
    torch.uint64,
    torch.int64,
]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
EVERY = [*INTEGERS, *FLOATS, *COMPLEX, torch.bool, *FLOAT8]


def equal(actual: torch.Tensor, expected: torch.Tensor | list[object]) -> None:
    """Same shape, dtype and bits."""
    if isinstance(expected, list):
        expected = torch.tensor(expected, dtype=actual.dtype)
    assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    same = torch.equal(actual.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
    assert same or actual.numel() == 0, f"{actual}\nexpected {expected}"


def equal_all(actual: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    for a, e in zip(actual, expected, strict=True):
        equal(a, e)


def pattern(rank: int, dtype: torch.dtype, count: int = 37, step: int = 0) -> torch.Tensor:
    """Small values that differ by rank and place, exact in every dtype."""
    values = [(3 * i + 5 * rank + step) % 7 + (i == rank) for i in range(count)]
    if dtype == torch.bool:
        return torch.tensor([v % 2 == 0 for v in values])
    return torch.tensor(values, dtype=torch.float32).to(dtype)


def refused(call: Callable[[], object], *words: str) -> None:
    """The call raises a ConfigError that has all the words, and nothing was sent."""
    before = sequence()
    with pytest.raises(ConfigError) as caught:
        call()
    message = str(caught.value)
    for word in (f"rank {dist.get_rank()}: ", *words):
        assert word in message, f"{word!r} is not in {message!r}"
    assert sequence() == before


def backend() -> Any:
    """The backend itself: torch.distributed refuses some calls, and sends complex tensors as real ones."""
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def options(kind: Any, **fields: Any) -> Any:
    opts = kind()
    opts.asyncOp = False
    for name, value in fields.items():
        setattr(opts, name, value)
    return opts


def sequence() -> int:
    return backend()._get_sequence_number_for_group()


def still_works(size: int) -> None:
    x = torch.ones(3)
    dist.all_reduce(x)
    equal(x, torch.full((3,), float(size)))


# --- movement ---------------------------------------------------------------------------------------------------


@on_ranks(1, 2, 4)
def test_c16_movement_keeps_every_dtype_bit_for_bit(rank: int, size: int) -> None:
    for step, dtype in enumerate(EVERY):
        mine = [pattern(r, dtype, step=step) for r in range(size)]
        root = step % size
        x = mine[rank].clone()
        dist.broadcast(x, root)
        equal(x, mine[root])

        outs = [torch.zeros_like(m) for m in mine]
        dist.all_gather(outs, mine[rank])
        equal_all(outs, mine)
        whole = torch.zeros(size, 37).to(dtype)
        dist.all_gather_into_tensor(whole, mine[rank])
        equal_all(whole, mine)

        outs = [torch.zeros_like(m) for m in mine]
        dist.gather(mine[rank], outs if rank == root else None, dst=root)
        if rank == root:
            equal_all(outs, mine)
        x = torch.zeros_like(mine[0])
        dist.scatter(x, mine if rank == root else None, src=root)
        equal(x, mine[rank])

        send = torch.cat([pattern(rank, dtype, 5, step=r).view(torch.uint8) for r in range(size)]).view(dtype)
        x = torch.zeros_like(send)
        dist.all_to_all_single(x, send)
        received = [pattern(r, dtype, 5, step=rank).view(torch.uint8) for r in range(size)]
        equal(x, torch.cat(received).view(dtype))


@on_ranks(2)
def test_dtypes_without_arithmetic_are_moved_as_bytes(rank: int, size: int) -> None:
    for dtype in (torch.float8_e8m0fnu, torch.complex32):
        mine = [torch.tensor([1 + r, 2, 3 + r, 4], dtype=torch.uint8).view(dtype) for r in range(size)]
        outs = [torch.empty_like(m) for m in mine]
        dist.all_gather(outs, mine[rank])
        equal_all(outs, mine)
        backend().allgather([outs], [mine[1 - rank]], options(dist.distributed_c10d.AllgatherOptions))
        equal_all(outs, mine[::-1])
        refused(lambda x=mine[rank]: backend().allreduce([x.clone()]), "all_reduce", "SUM is not defined")
    still_works(size)


@on_ranks(2)
def test_c1_strided_columns_are_broadcast_and_reduced(rank: int, size: int) -> None:
    base = torch.arange(12).view(4, 3) + 100 * rank
    before = base.clone()
    dist.broadcast(base[:, 1], 0)
    equal(base[:, 1], [1, 4, 7, 10])
    equal(base[:, ::2], before[:, ::2])
    base = before.clone()
    dist.reduce(base[:, 1], 0)
    equal(base[:, 1], [102, 108, 114, 120] if rank == 0 else before[:, 1])
    equal(base[:, ::2], before[:, ::2])


@on_ranks(2)
def test_c2_strided_tensors_in_every_place(rank: int, size: int) -> None:
    for blocking in (True, False):

        def done(work: dist.Work | None, blocking: bool = blocking) -> None:
            assert (work is None) == blocking
            if work is not None:
                work.wait()

        x = torch.zeros(3)
        parts = [torch.linspace(0, 5, 6)[::2]] * 2
        done(dist.scatter(x, parts if rank == 0 else None, src=0, async_op=not blocking))
        equal(x, [0.0, 2.0, 4.0])

        grid = torch.arange(12.0).view(3, 4) + 100 * rank
        done(dist.all_reduce(grid.t()[1:3], async_op=not blocking))
        expected = torch.arange(12.0).view(3, 4) + 100 * rank
        expected[:, 1:3] = 2 * torch.arange(12.0).view(3, 4)[:, 1:3] + 100
        equal(grid, expected)

        rows = torch.zeros(3, 2)
        done(dist.all_gather([rows[:, 0], rows[:, 1]], grid[:, 1], async_op=not blocking))
        equal(rows, torch.stack([expected[:, 1]] * 2, 1))

        out = torch.zeros(2, 2).t()
        done(dist.reduce_scatter_tensor(out, torch.arange(8.0).view(4, 2), async_op=not blocking))
        equal(out, 2 * torch.arange(8.0).view(4, 2)[2 * rank : 2 * rank + 2])

        x = torch.zeros(2, 4).t()
        done(dist.all_to_all_single(x, (torch.arange(8.0) + 10 * rank).view(2, 4).t(), async_op=not blocking))
        halves = [(torch.arange(8.0) + 10 * r).view(2, 4).t()[2 * rank : 2 * rank + 2] for r in range(2)]
        equal(x, torch.cat(halves))

        image = (torch.arange(24.0).view(1, 2, 3, 4) + rank).to(memory_format=torch.channels_last)
        done(dist.all_reduce(image, async_op=not blocking))
        equal(image, 2 * torch.arange(24.0).view(1, 2, 3, 4) + 1)


@on_ranks(2)
def test_lazy_conjugates_and_negatives_are_resolved(rank: int, size: int) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    view = x.conj()
    backend().allreduce([view]).wait()
    equal(x, [3 + 6j, 9 - 3j])
    outs = [torch.zeros(2), torch.zeros(2)]
    dist.all_gather(outs, (torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)).conj().imag)
    equal_all(outs, [torch.tensor([-2.0, 1.0]), torch.tensor([-4.0, 2.0])])


@on_ranks(2)
def test_c4_views_with_an_offset(rank: int, size: int) -> None:
    base = torch.arange(8) + 10 * rank
    outs = [torch.zeros(4, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(outs, base.chunk(2)[1])
    equal_all(outs, [torch.tensor([4, 5, 6, 7]), torch.tensor([14, 15, 16, 17])])
    equal(base, torch.arange(8) + 10 * rank)


@on_ranks(4)
def test_c5_empty_tensors_keep_their_shape(rank: int, size: int) -> None:
    def empty() -> torch.Tensor:
        return torch.zeros(1, 0, 2)

    lists = [empty() for _ in range(size)]
    one, whole = empty(), torch.zeros(size, 0, 2)
    dist.all_reduce(one)
    dist.broadcast(one, 1)
    dist.reduce(one, 2)
    dist.all_gather(lists, one)
    dist.all_gather_into_tensor(whole, one)
    dist.reduce_scatter(one, lists)
    dist.reduce_scatter_tensor(one, whole)
    dist.gather(one, lists if rank == 0 else None)
    dist.scatter(one, lists if rank == 0 else None)
    dist.all_to_all_single(whole, torch.zeros(size, 0, 2))
    dist.all_to_all_single(torch.zeros(0, 2), torch.zeros(0, 2))
    dist.all_reduce_coalesced([empty(), empty()])
    for x in [one, *lists]:
        assert x.shape == (1, 0, 2)
    assert whole.shape == (size, 0, 2)
    still_works(size)


@on_ranks(2)
def test_stacked_and_concatenated_outputs_of_all_gather(rank: int, size: int) -> None:
    x = torch.arange(3.0) + 10 * rank
    expected = torch.tensor([0.0, 1, 2, 10, 11, 12])
    flat, stacked = torch.zeros(6), torch.zeros(2, 3)
    dist.all_gather_into_tensor(flat, x)
    dist.all_gather_into_tensor(stacked, x)
    equal(flat, expected)
    equal(stacked, expected.view(2, 3))
    refused(lambda: dist.all_gather_into_tensor(torch.zeros(5), x), "all_gather_into_tensor", "[5]", "6")


@on_ranks(4)
def test_c8_uneven_lists(rank: int, size: int) -> None:
    sizes = [18, 19, 18, 18]
    parts = list(torch.arange(73.0).split(sizes))
    out = torch.zeros(sizes[rank])
    dist.reduce_scatter(out, [p.clone() for p in parts])
    equal(out, 4 * parts[rank])
    outs = [torch.zeros(r + 1) for r in range(size)]
    dist.all_gather(outs, torch.full((rank + 1,), float(rank)))
    equal_all(outs, [torch.full((r + 1,), float(r)) for r in range(size)])
    outs = [torch.zeros(r % 2 * 3) for r in range(size)]  # some empty
    dist.all_gather(outs, torch.full((rank % 2 * 3,), float(rank)))
    equal_all(outs, [torch.full((r % 2 * 3,), float(r)) for r in range(size)])


@on_ranks(2, 4)
def test_uneven_all_to_all(rank: int, size: int) -> None:
    seed = 20260
    counts = random.Random(seed)
    print(f"seed {seed}")
    for row in (1, 3):
        table = [[counts.randrange(4) for _ in range(size)] for _ in range(size)]  # rows that i sends to j
        blocks = [[torch.full((table[i][j], row), 10.0 * i + j) for j in range(size)] for i in range(size)]
        send = torch.cat(blocks[rank])
        expected = torch.cat([blocks[i][rank] for i in range(size)])
        out = torch.zeros_like(expected)
        dist.all_to_all_single(out, send, [table[i][rank] for i in range(size)], table[rank])
        equal(out, expected)
        outs = [torch.zeros_like(blocks[i][rank]) for i in range(size)]
        dist.all_to_all(outs, blocks[rank])
        equal_all(outs, [blocks[i][rank] for i in range(size)])


@on_ranks(2)
def test_split_sizes_on_one_side_meet_equal_ones_on_the_other(rank: int, size: int) -> None:
    out = torch.zeros(4)
    send = torch.arange(4.0) + 10 * rank
    dist.all_to_all_single(out, send, output_split_sizes=[2, 2] if rank == 0 else None)
    equal(out, [0.0, 1, 10, 11] if rank == 0 else [2.0, 3, 12, 13])


@on_ranks(2)
def test_all_gather_and_scatter_in_place(rank: int, size: int) -> None:
    whole = torch.zeros(6)
    whole[3 * rank : 3 * rank + 3] = rank + 1
    dist.all_gather_into_tensor(whole, whole[3 * rank : 3 * rank + 3])
    equal(whole, [1.0, 1, 1, 2, 2, 2])
    dist.reduce_scatter_tensor(whole[3 * rank : 3 * rank + 3], whole)
    equal(whole[3 * rank : 3 * rank + 3], torch.full((3,), 2.0 * (rank + 1)))
    parts = [torch.full((2,), float(r)) for r in range(size)]
    dist.all_gather(parts, parts[rank])
    equal_all(parts, [torch.full((2,), float(r)) for r in range(size)])


# --- reductions -------------------------------------------------------------------------------------------------


def reference(parts: list[torch.Tensor], op: Op.RedOpType) -> torch.Tensor:
    """What the reduction means, in wide arithmetic, for the small values of ``pattern``."""
    dtype = parts[0].dtype
    if dtype == torch.bool:
        stacked = torch.stack(parts)
        return stacked.any(0) if op in (Op.SUM, Op.MAX, Op.BOR) else stacked.all(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    stacked = torch.stack([p.to(wide) for p in parts])
    if op in (Op.SUM, Op.AVG):
        out = stacked.sum(0)
        if op == Op.AVG:
            exact = wide != torch.int64
            out = out / len(parts) if exact else torch.div(out, len(parts), rounding_mode="trunc")
    elif op == Op.PRODUCT:
        out = stacked.prod(0)
    elif op == Op.MIN:
        out = stacked.amin(0)
    elif op == Op.MAX:
        out = stacked.amax(0)
    else:
        bitwise = {Op.BAND: torch.bitwise_and, Op.BOR: torch.bitwise_or, Op.BXOR: torch.bitwise_xor}[op]
        out = stacked[0]
        for other in stacked[1:]:
            out = bitwise(out, other)
    # 8-bit floats round from float32, as the accumulator does
    return out.to(torch.float32).to(dtype) if dtype in FLOAT8 else out.to(dtype)


@on_ranks(1, 2, 4)
def test_every_reduction_of_every_dtype(rank: int, size: int) -> None:
    for dtype in EVERY:
        ops = [Op.SUM, Op.PRODUCT]
        if not dtype.is_complex:
            ops += [Op.MIN, Op.MAX]
        if dtype != torch.bool:
            ops += [Op.AVG]
        if dtype in INTEGERS or dtype == torch.bool:
            ops += [Op.BAND, Op.BOR] + [Op.BXOR] * (dtype != torch.bool)
        small = 13 if dtype in FLOAT8 else 37
        parts = [pattern(r, dtype, small) for r in range(size)]
        if dtype in FLOAT8 or dtype in (torch.int8, torch.uint8):
            parts = [p if dtype == torch.bool else (p.to(torch.float32) % 4).to(dtype) for p in parts]
        for op in ops:
            expected = reference(parts, op)
            x = parts[rank].clone()
            backend().allreduce([x], options(dist.AllreduceOptions, reduceOp=op))
            equal(x, expected)
            x = parts[rank].clone()
            backend().reduce([x], options(dist.ReduceOptions, reduceOp=op, rootRank=size - 1))
            equal(x, expected if rank == size - 1 else parts[rank])
            opts = options(dist.ReduceScatterOptions, reduceOp=op)
            send = torch.cat([p.view(torch.uint8) for p in [parts[rank]] * size]).view(dtype)
            out = torch.zeros_like(x)
            backend()._reduce_scatter_base(out, send, opts)
            equal(out, expected)
            out = torch.zeros_like(x)
            backend().reduce_scatter([out], [[parts[rank]] * size], opts)
            equal(out, expected)


@on_ranks(2)
def test_c16_undefined_reductions_name_operation_and_dtype(rank: int, size: int) -> None:
    cases = [
        (torch.zeros(2, dtype=torch.complex64), Op.MAX, "MAX", "torch.complex64"),
        (torch.zeros(2, dtype=torch.bool), Op.AVG, "AVG", "torch.bool"),
        (torch.zeros(2, dtype=torch.float32), Op.BAND, "BAND", "torch.float32"),
        (torch.zeros(2, dtype=torch.bfloat16), Op.BXOR, "BXOR", "torch.bfloat16"),
    ]
    for x, op, *words in cases:
        opts = options(dist.AllreduceOptions, reduceOp=op)
        refused(lambda x=x, opts=opts: backend().allreduce([x], opts), "all_reduce", *words)
    still_works(size)


@on_ranks(2)
def test_c10_integer_average_truncates(rank: int, size: int) -> None:
    x = torch.tensor([[1, -3], [2, -4]][rank], dtype=torch.int32)
    dist.all_reduce(x, Op.AVG)
    equal(x, [1, -3])


@on_ranks(2)
def test_c27_premul_sum_scales_each_contribution_once(rank: int, size: int) -> None:
    for factor in (0.5, torch.tensor([0.5]), torch.tensor(0.5, dtype=torch.float64)):
        op = dist._make_nccl_premul_sum(factor)
        x = torch.tensor([2.0, 10.0]) * (rank + 1)
        dist.all_reduce(x, op)
        equal(x, [3.0, 15.0])
        out = torch.zeros(1)
        dist.reduce_scatter_tensor(out, torch.tensor([2.0, 10.0]) * (rank + 1), op)
        equal(out, [[3.0, 15.0][rank]])


@on_ranks(4)
def test_c12_booleans_stay_zero_or_one(rank: int, size: int) -> None:
    table = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]], dtype=torch.bool)
    for op, expected in ((Op.SUM, [0, 1, 1]), (Op.MAX, [0, 1, 1]), (Op.PRODUCT, [0, 0, 1]), (Op.MIN, [0, 0, 1])):
        x = table[rank].clone()
        dist.all_reduce(x, op)
        equal(x.view(torch.uint8), expected)


@on_ranks(2)
def test_c13_small_integers_wrap(rank: int, size: int) -> None:
    cases = [
        (torch.int8, Op.SUM, (120, 100), -36),
        (torch.uint8, Op.SUM, (200, 100), 44),
        (torch.uint8, Op.PRODUCT, (16, 16), 0),
        (torch.uint8, Op.MAX, (200, 100), 200),
        (torch.int8, Op.MIN, (-1, 1), -1),
        (torch.uint64, Op.MAX, (2**63 + 1, 5), 2**63 + 1),
        (torch.uint16, Op.SUM, (65535, 3), 2),
    ]
    for dtype, op, values, expected in cases:
        x = torch.tensor([values[rank]], dtype=dtype)
        dist.all_reduce(x, op)
        equal(x, [expected])


@on_ranks(2, 4)
def test_c15_half_precision_rounds_once_per_step(rank: int, size: int) -> None:
    values = [256.0, 1.0, 1.0, 1.0] if size == 4 else [256.0, 3.0]
    x = torch.tensor([values[rank]], dtype=torch.bfloat16)
    dist.all_reduce(x)
    # 256 + 1 would stay 256 if each hop rounded to bfloat16; a float32 accumulator gives 259, which rounds to 260
    equal(x, [260.0])
    x = torch.tensor([256.0 if rank == 0 else 1.0], dtype=torch.bfloat16)
    dist.all_reduce(x)
    equal(x, [256.0 if size == 2 else 260.0])


@on_ranks(2)
def test_nan_wins_minimum_and_maximum(rank: int, size: int) -> None:
    for op in (Op.MIN, Op.MAX):
        x = torch.tensor([float("nan"), 1.0] if rank == 0 else [1.0, float("nan")])
        dist.all_reduce(x, op)
        assert x.isnan().all(), x


@on_ranks(4)
def test_c17_reduce_leaves_other_ranks_alone(rank: int, size: int) -> None:
    for count in (1, 5, 1_000_003):
        x = torch.full((count,), float(rank + 1))
        dist.reduce(x, 2)
        equal(x, torch.full((count,), 10.0 if rank == 2 else rank + 1.0))


@on_ranks(2, 4)
def test_large_and_odd_sizes(rank: int, size: int) -> None:
    for count in (1, 127, 65_537, 1_500_001):
        x = (torch.arange(count) % 1000).float() + rank
        dist.all_reduce(x)
        equal(x, (torch.arange(count) % 1000).float() * size + sum(range(size)))


# --- lists and coalescing ---------------------------------------------------------------------------------------


@on_ranks(2)
def test_coalesced_calls_equal_single_ones(rank: int, size: int) -> None:
    shapes = [(3,), (2, 5), (0,), (1,), (70_000,)]
    tensors = [torch.full(shape, float(i + rank)) for i, shape in enumerate(shapes)]
    tensors.append((torch.arange(12.0) + rank).view(3, 4).t())
    expected = [2 * t + 1 - 2 * rank for t in tensors]
    before = sequence()
    dist.all_reduce_coalesced(tensors)
    assert sequence() == before + 1
    equal_all(tensors, expected)

    tensors = [torch.full(shape, float(i + rank)) for i, shape in enumerate(shapes)]
    with dist._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    equal_all(tensors, expected[:-1])

    parts = [(torch.arange(4.0) + 10 * rank + i).view(2, 2) for i in range(3)]
    outs = [torch.zeros(4, 2) for _ in parts]
    with dist._coalescing_manager():
        for out, part in zip(outs, parts, strict=True):
            dist.all_gather_into_tensor(out, part)
    whole = [torch.cat([(torch.arange(4.0) + 10 * r + i).view(2, 2) for r in range(2)]) for i in range(3)]
    equal_all(outs, whole)

    outs = [torch.zeros(2), torch.zeros(3)]
    sends = [torch.arange(4.0) + rank, torch.arange(6.0) + rank]
    with dist._coalescing_manager():
        for out, send in zip(outs, sends, strict=True):
            dist.reduce_scatter_tensor(out, send)
    equal_all(outs, [(2 * torch.arange(2.0 * n) + 1)[n * rank : n * rank + n] for n in (2, 3)])


@on_ranks(2)
def test_coalesced_tensors_of_two_dtypes_are_refused(rank: int, size: int) -> None:
    mixed = [torch.zeros(2), torch.zeros(2, dtype=torch.int32)]
    refused(lambda: backend().allreduce_coalesced(mixed), "same dtype", "torch.float32", "torch.int32")
    still_works(size)


@on_ranks(2)
def test_functional_collectives(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional

    x = torch.arange(4.0) + rank
    equal(functional.all_reduce(x, "sum", [0, 1]).clone(), 2 * torch.arange(4.0) + 1)
    gathered = functional.all_gather_tensor(x, 0, [0, 1]).clone()
    equal(gathered, torch.cat([torch.arange(4.0), torch.arange(4.0) + 1]))
    equal(functional.reduce_scatter_tensor(x, "avg", 0, [0, 1]).clone(), [[0.5, 1.5], [2.5, 3.5]][rank])
    moved = functional.all_to_all_single(x, [1, 3] if rank == 0 else [3, 1], [1, 3], [0, 1]) if rank == 0 else None
    if rank == 1:
        moved = functional.all_to_all_single(x, [3, 1], [3, 1], [0, 1])
    equal(moved.clone(), [0.0, 1, 2, 3] if rank == 0 else [1.0, 2, 3, 4])


@on_ranks(2)
def test_objects(rank: int, size: int) -> None:
    found: list[object] = [None, None]
    dist.all_gather_object(found, {"rank": rank, "text": "x" * (10 + 1000 * rank)})
    assert [len(f["text"]) for f in found] == [10, 1010]
    box = [["from", rank], None] if rank == 1 else [None, None]
    dist.broadcast_object_list(box, src=1)
    assert box == [["from", 1], None]
    mine: list[object] = [None]
    dist.scatter_object_list(mine, ["a", ("b", 2)] if rank == 0 else None, src=0)
    assert mine == [["a"], [("b", 2)]][rank]


# --- what is refused --------------------------------------------------------------------------------------------


@on_ranks(2)
def test_c7_bad_split_sizes_are_refused_before_anything_is_sent(rank: int, size: int) -> None:
    x = torch.zeros(3)
    call = dist.all_to_all_single
    refused(lambda: call(x.clone(), x), "all_to_all_single", "does not divide")
    refused(lambda: call(x.clone(), x, [1, 2], [1, 1]), "input split sizes [1, 1]", "add up to 3")
    refused(lambda: call(x.clone(), x, [1, 2], [1, 1, 1]), "2 split sizes", "not 3")
    refused(lambda: call(x.clone(), x, [1, 2], [-1, 4]), "must not be negative")
    refused(lambda: call(x.clone(), x, [4, -1], [1, 2]), "output split sizes")
    refused(lambda: call(x.clone(), x, None, [1, 2]), "output", "does not divide")
    refused(lambda: call(torch.zeros(()), torch.zeros(())), "no dimension 0")
    refused(lambda: call(x.clone(), x, [2, 1], [1, 2]), "sends itself")
    still_works(size)


@on_ranks(2)
def test_gather_and_scatter_lists_belong_to_the_root(rank: int, size: int) -> None:
    x, two, three = torch.zeros(2), [torch.zeros(2)] * 2, [torch.zeros(2)] * 3
    gather, scatter = dist.GatherOptions(), dist.ScatterOptions()
    gather.rootRank = scatter.rootRank = 0
    if rank == 0:
        refused(lambda: backend().gather([three], [x], gather), "gather", "2 entries", "not 3")
        refused(lambda: backend().gather([], [x], gather), "gather", "one list")
        refused(lambda: backend().scatter([x], [three], scatter), "scatter", "2 entries")
        refused(lambda: backend().gather([[torch.zeros(2), torch.zeros(3)]], [x], gather), "shape [3]")
    else:
        refused(lambda: backend().gather([two], [x], gather), "only the root, rank 0")
        refused(lambda: backend().scatter([x], [two], scatter), "only the root, rank 0")
    for bad in (-1, 2):
        gather.rootRank = scatter.rootRank = bad
        refused(lambda: backend().gather([], [x], gather), "root must be a rank of the group", str(bad))
        opts = dist.BroadcastOptions()
        opts.rootRank = bad
        refused(lambda opts=opts: backend().broadcast([x], opts), "broadcast", str(bad))
    still_works(size)


@on_ranks(2)
def test_shapes_dtypes_layouts_and_devices_are_checked(rank: int, size: int) -> None:
    x = torch.zeros(2)
    refused(lambda: dist.all_gather([x], x), "all_gather", "2 entries")
    refused(lambda: dist.all_gather([torch.zeros(3), torch.zeros(3)], x), "own output", "[3]")
    refused(lambda: backend().allgather([[x, x.int()]], [x]), "same dtype", "torch.int32")
    refused(lambda: dist.reduce_scatter_tensor(x, torch.zeros(5)), "reduce_scatter_tensor", "[5]", "4")
    refused(lambda: dist.reduce_scatter(x, [torch.zeros(3), torch.zeros(3)]), "output", "[2]")
    refused(lambda: backend().broadcast([x.to_sparse()]), "dense")
    refused(lambda: backend().allreduce([x.to("meta")]), "on the CPU", "meta")
    refused(lambda: backend().allreduce([x, x]), "takes one tensor", "2")
    refused(lambda: backend().allreduce([]), "takes one tensor", "0")
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    refused(lambda: backend().broadcast([quantized]), "quantized")
    still_works(size)


@on_ranks(2)
def test_overlapping_memory_is_refused(rank: int, size: int) -> None:
    x = torch.zeros(8)
    refused(lambda: dist.all_gather([x[0:4], x[2:6]], torch.zeros(4)), "two outputs share memory")
    refused(lambda: dist.all_gather_into_tensor(x, x[1 + rank : 5 + rank]), "share memory", "own part")
    other = 4 * (1 - rank)
    refused(lambda: dist.all_gather_into_tensor(x, x[other : other + 4]), "share memory", "own part")
    refused(lambda: dist.reduce_scatter_tensor(x[2:6], x), "share memory")
    refused(lambda: dist.all_to_all_single(x, x), "share memory")
    refused(lambda: dist.all_reduce_coalesced([x, x]), "two outputs share memory")
    refused(lambda: dist.all_reduce(torch.zeros(1).expand(4)), "expanded")
    still_works(size)


# --- groups -----------------------------------------------------------------------------------------------------


@on_ranks(1)
def test_a_world_of_one(rank: int, size: int) -> None:
    x = torch.arange(4.0)
    for op in (Op.SUM, Op.AVG, Op.MAX):
        dist.all_reduce(x, op)
    dist.reduce(x, 0)
    dist.broadcast(x, 0)
    dist.barrier()
    out = [torch.zeros(4)]
    dist.gather(x, out)
    equal(out[0], torch.arange(4.0))
    y = torch.zeros(4)
    dist.all_to_all_single(y, x, [4], [4])
    equal(y, torch.arange(4.0))
    works = [dist.all_reduce(x, async_op=True), dist.barrier(async_op=True)]
    for work in works:
        work.wait()
    equal(x, torch.arange(4.0))


@on_ranks(2)
def test_groups_of_one_member(rank: int, size: int) -> None:
    groups = [dist.new_group([r]) for r in range(size)]
    x = torch.tensor([1.0 + rank])
    dist.all_reduce(x, Op.AVG, group=groups[rank])
    dist.barrier(groups[rank])
    equal(x, [1.0 + rank])


@on_ranks(4)
def test_roots_are_global_ranks(rank: int, size: int) -> None:
    group = dist.new_group([1, 3])
    if rank in (1, 3):
        x = torch.tensor([float(rank)])
        dist.broadcast(x, src=3, group=group)
        equal(x, [3.0])
        x = torch.tensor([float(rank)])
        dist.broadcast(x, group_src=1, group=group)
        equal(x, [3.0])
        with pytest.raises(ValueError):
            dist.broadcast(x, src=0, group=group)
        x = torch.tensor([float(rank)])
        dist.reduce(x, dst=3, group=group)
        equal(x, [4.0 if rank == 3 else 1.0])
    still_works(size)


@on_ranks(2)
def test_sequence_numbers_advance_alike(rank: int, size: int) -> None:
    before = sequence()
    x = torch.zeros(1)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    dist.barrier()
    dist.all_reduce(torch.zeros(0))
    assert sequence() == before + 3
    numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(numbers, torch.tensor([sequence()]))
    assert numbers[0] == numbers[1]


@on_ranks(2)
def test_many_groups_with_traffic_in_opposite_order(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    tensors = [torch.full((1000,), float(rank + i)) for i in range(2)]
    order = [0, 1] if rank == 0 else [1, 0]
    works = []
    for i in order:
        works.append(dist.all_reduce(tensors[i], group=groups[i], async_op=True))
        time.sleep(0.01)
    for work in works:
        work.wait()
    equal_all(tensors, [torch.full((1000,), 1.0), torch.full((1000,), 3.0)])
    for group in groups:
        dist.destroy_process_group(group)


@on_ranks(1, 2, 4)
def test_all_gather_coalesced(rank: int, size: int) -> None:
    def inputs(r: int) -> list[torch.Tensor]:
        return [torch.full((3, 2), float(r)), torch.arange(5.0) + 10 * r, torch.empty(0)]

    outputs = [[torch.full_like(t, -1) for t in inputs(r)] for r in range(size)]
    dist.all_gather_coalesced(outputs, inputs(rank))
    for r in range(size):
        for got, want in zip(outputs[r], inputs(r), strict=True):
            assert torch.equal(got, want)
    with pytest.raises(ConfigError, match=r"each output list needs 1 tensors, not 2"):
        default = dist.distributed_c10d._get_default_group()
        default.allgather_coalesced([[torch.ones(1), torch.ones(1)]] * size, [torch.ones(1)])


@on_ranks(4)
def test_a_monitored_barrier_names_every_rank_that_does_not_come(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    group.monitored_barrier(timedelta(seconds=10))
    if rank in (0, 2):
        began = time.monotonic()
        # The first whose limit passes names them; it tells the other, which may be faster than its own clock.
        told = r"rank [02] reports a timeout \(rank 1\) in barrier"
        with pytest.raises(CollectiveTimeout, match=rf"barrier.* waiting for ranks 1, 3\b|{told}"):
            group.monitored_barrier(timedelta(seconds=1))
        assert 0.9 < time.monotonic() - began < 4
    dist.barrier()
