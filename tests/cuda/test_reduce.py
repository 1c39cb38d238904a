"""Reductions on the card equal the host's, bit for bit: between arrays, in a commit, and in a commit that seals."""

from __future__ import annotations

import ctypes
import secrets
from itertools import combinations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securecoll import _engine
from securecoll.codes import DType, ReduceOp
from tests.cuda.card import MACRO_BYTES, TAG, Card, Chunk, ReduceArgs, Reduction, u64
from tests.cuda.conftest import Cards
from tests.emulator.emulator import EmulatorError, Order
from tests.host.test_reduce import (
    A_IS_ACCUMULATOR,
    CASES,
    FINISH,
    NARROW,
    OUT_IS_ACCUMULATOR,
    SCALE_A,
    SCALE_B,
    elements,
)

WORLD, FACTOR = 3, 0.7
ORDERED_AND_SUMMED = (ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX)
FUSABLE = {
    *((dtype, op) for dtype in (DType.I32, DType.I64) for op in ORDERED_AND_SUMMED),
    *(
        (dtype, op)
        for dtype in (DType.F16, DType.BF16, DType.F32, DType.F64)
        for op in (*ORDERED_AND_SUMMED, ReduceOp.AVG, ReduceOp.PREMUL_SUM)
    ),
}


def seeded() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def flag_sets(dtype: DType, op: ReduceOp) -> list[int]:
    """All flags that matter, in all combinations, and all flags that there are."""
    matter = [A_IS_ACCUMULATOR, OUT_IS_ACCUMULATOR] if dtype in NARROW else []
    matter += [SCALE_A, SCALE_B] if op is ReduceOp.PREMUL_SUM else []
    matter += [FINISH] if op is ReduceOp.AVG else []
    subsets = [sum(some) for size in range(len(matter) + 1) for some in combinations(matter, size)]
    return [*subsets, 31]


def width(dtype: DType, flags: int, accumulator: int) -> int:
    return _engine.accumulator_bytes(dtype) if flags & accumulator else dtype.itemsize


def random_bytes(rng: np.random.Generator, dtype: DType, count: int) -> bytes:
    """Half of the time any bits, else usual and special values."""
    if rng.random() < 0.5:
        return rng.bytes(count * dtype.itemsize)
    return elements(rng, dtype, count).tobytes()


def on_host(dtype: DType, op: ReduceOp, a: bytes, b: bytes | None, count: int, flags: int) -> bytes:
    out = bytearray(count * width(dtype, flags, OUT_IS_ACCUMULATOR))
    _engine.reduce("generic", dtype, op, out, a, b, count, FACTOR, WORLD, flags)
    return bytes(out)


def reduction(dtype: DType, op: ReduceOp, flags: int, opened_is_a: bool = False) -> Reduction:
    return Reduction(dtype, op, flags, opened_is_a, WORLD, FACTOR)


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.NONE])
def test_arrays_reduce_as_on_the_host(make_card: Cards, dtype: DType) -> None:
    rng = seeded()
    card = make_card(order=Order.RANDOM)
    for op in (op for of, op in CASES if of is dtype):
        for flags in flag_sets(dtype, op):
            count = int(rng.integers(1, 700))
            wide = width(dtype, flags, A_IS_ACCUMULATOR)
            a = rng.bytes(count * wide) if wide != dtype.itemsize else random_bytes(rng, dtype, count)
            for b in (random_bytes(rng, dtype, count), None):
                want = on_host(dtype, op, a, b, count, flags)
                args = ReduceArgs(card.room(len(want)), card.upload(a), card.upload(b) if b is not None else 0, count)
                args.reduction = reduction(dtype, op, flags)
                card.launch("sc_reduce", args, grid=2)
                assert card.read(args.out, len(want)) == want, (dtype, op, flags, b is None)


def test_a_result_may_take_the_place_of_either_array(make_card: Cards) -> None:
    rng = seeded()
    card = make_card(order=Order.REVERSED)
    for dtype, op in CASES:
        a, b = random_bytes(rng, dtype, 300), random_bytes(rng, dtype, 300)
        want = on_host(dtype, op, a, b, 300, FINISH | SCALE_A)
        for place in (0, 1):
            at = [card.upload(a), card.upload(b)]
            args = ReduceArgs(at[place], *at, 300)
            args.reduction = reduction(dtype, op, FINISH | SCALE_A)
            card.launch("sc_reduce", args)
            assert card.read(at[place], len(want)) == want, (dtype, op, place)


def test_what_the_host_cannot_reduce_traps(make_card: Cards) -> None:
    card = make_card()
    room = card.room(64)
    for dtype, op in ((dtype, op) for dtype in range(22) for op in range(12)):
        args = ReduceArgs(room, room, room, 1, Reduction(dtype, op, 0, 0, 1, 1.0))
        if (dtype, op) in CASES:
            card.launch("sc_reduce", args)
        else:
            with pytest.raises(EmulatorError, match="trap"):
                card.launch("sc_reduce", args)


# ---- in a commit


class Opening:
    """A sealed record of random elements, and its operand."""

    def __init__(self, card: Card, key: tuple[bytes, int], rng: np.random.Generator, dtype: DType, size: int) -> None:
        self.card, self.raw, self.key, self.size = card, *key, size
        self.count = size // dtype.itemsize
        self.plain = random_bytes(rng, dtype, self.count)
        self.nonce, self.associated = rng.bytes(12), rng.bytes(32)
        self.record = AESGCM(self.raw).encrypt(self.nonce, self.plain, self.associated)

    def chunk(self, operand: int, output: int) -> Chunk:
        source = self.card.upload(self.record)
        return Chunk(self.key, source, output, self.size, self.nonce, self.associated, operand=operand)


def key_of(card: Card, rng: np.random.Generator) -> tuple[bytes, int]:
    raw = rng.bytes(32)
    return raw, card.expand(raw)[0]


def expected(
    opening: Opening, dtype: DType, op: ReduceOp, operand: bytes | None, flags: int, opened_is_a: bool
) -> bytes:
    if operand is None:
        return on_host(dtype, op, opening.plain, None, opening.count, flags)
    a, b = (opening.plain, operand) if opened_is_a else (operand, opening.plain)
    return on_host(dtype, op, a, b, opening.count, flags)


@pytest.mark.parametrize(("dtype", "op"), sorted(FUSABLE))
def test_a_commit_reduces_as_the_host_does(make_card: Cards, dtype: DType, op: ReduceOp) -> None:
    rng = seeded()
    card = make_card()
    key = key_of(card, rng)
    for flags in flag_sets(dtype, op):
        for opened_is_a in (False, True):
            if opened_is_a and flags & A_IS_ACCUMULATOR:
                continue  # plaintext is never an accumulator
            size = int(rng.choice([8, 24, 96, 1000, 4096 + 8, 6000]))
            one = Opening(card, key, rng, dtype, size)
            wide = width(dtype, flags, A_IS_ACCUMULATOR)
            operand = rng.bytes(one.count * wide) if wide != dtype.itemsize else random_bytes(rng, dtype, one.count)
            want = expected(one, dtype, op, operand, flags, opened_is_a)
            shift = dtype.itemsize * int(rng.integers(0, 3))
            chunk = one.chunk(card.upload(operand, shift), card.room(len(want), dtype.itemsize * int(rng.integers(3))))
            card.crypt("sc_verify", [chunk])
            card.crypt("sc_commit", [chunk], reduction=reduction(dtype, op, flags, opened_is_a))
            assert card.read(chunk.output, len(want)) == want, (flags, opened_is_a, size)


@pytest.mark.parametrize("dtype", sorted({dtype for dtype, _ in FUSABLE}))
def test_a_commit_without_an_operand_converts_and_finishes(make_card: Cards, dtype: DType) -> None:
    rng = seeded()
    card = make_card()
    key = key_of(card, rng)
    for op in (op for of, op in sorted(FUSABLE) if of is dtype):
        one = Opening(card, key, rng, dtype, 1000)
        want = expected(one, dtype, op, None, FINISH | SCALE_A, True)
        chunk = one.chunk(0, card.room(len(want)))
        card.crypt("sc_verify", [chunk])
        card.crypt("sc_commit", [chunk], reduction=reduction(dtype, op, FINISH | SCALE_A))
        assert card.read(chunk.output, len(want)) == want, op


def test_a_commit_reduces_in_place_over_many_parts_without_races(make_card: Cards) -> None:
    rng = seeded()
    card = make_card("race", order=Order.RANDOM)
    key = key_of(card, rng)
    for dtype in (DType.F32, DType.BF16):
        one = Opening(card, key, rng, dtype, 2 * MACRO_BYTES + 600)
        operand = random_bytes(rng, dtype, one.count)
        at = card.upload(operand)
        chunk = one.chunk(at, at)
        card.crypt("sc_verify", [chunk], parts=3)
        card.crypt("sc_commit", [chunk], parts=3, reduction=reduction(dtype, ReduceOp.AVG, FINISH))
        want = expected(one, dtype, ReduceOp.AVG, operand, FINISH, False)
        assert card.read(at, len(want)) == want


class FusableArgs(ctypes.Structure):
    _fields_ = [("table", u64)]


def test_the_host_knows_what_a_commit_can_reduce_and_anything_else_traps(make_card: Cards) -> None:
    rng = seeded()
    card = make_card()
    table = card.room(20 * 10)
    card.launch("probe_fusable", FusableArgs(table), block=1)
    told = {divmod(i, 10) for i, yes in enumerate(card.read(table, 200)) if yes}
    assert told == FUSABLE
    one = Opening(card, key_of(card, rng), rng, DType.U8, 16)
    chunk = one.chunk(0, card.room(16))
    for dtype, op in ((dtype, op) for dtype in range(1, 22) for op in range(12) if (dtype, op) not in FUSABLE):
        with pytest.raises(EmulatorError, match="trap"):
            card.crypt("sc_commit", [chunk], reduction=Reduction(dtype, op, 0, 0, 1, 1.0))


# ---- in a commit that seals


@pytest.mark.parametrize("hash", ["tensor", "portable"])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_commit_seals_what_it_reduced(make_card: Cards, hash: str, parts: int) -> None:
    rng = seeded()
    card = make_card(hash=hash, order=Order.RANDOM)
    keys = key_of(card, rng), key_of(card, rng)
    kinds = [(DType.F32, ReduceOp.SUM), (DType.BF16, ReduceOp.AVG), (DType.I64, ReduceOp.MAX), None]
    for size in (0, 8, 1000, MACRO_BYTES + 808):
        for kind in kinds:
            dtype, op = kind or (DType.F32, ReduceOp.SUM)
            stored = bool(rng.random() < 0.5)
            openings = [Opening(card, keys[0], rng, dtype, size) for _ in range(2)]
            operands = [random_bytes(rng, dtype, one.count) for one in openings]
            wants = [
                expected(one, dtype, op, operand, FINISH, False) if kind else one.plain
                for one, operand in zip(openings, operands, strict=True)
            ]
            opened = [
                one.chunk(card.upload(operand), card.room(size) if stored else 0)
                for one, operand in zip(openings, operands, strict=True)
            ]
            nonces, associated = [rng.bytes(12) for _ in openings], [rng.bytes(32) for _ in openings]
            sealed = [
                Chunk(keys[1][1], 0, card.room(size + TAG), size, nonce, data)
                for nonce, data in zip(nonces, associated, strict=True)
            ]
            card.crypt("sc_verify", opened, parts)
            card.reseal(opened, sealed, parts, reduction(dtype, op, FINISH) if kind else None)
            assert card.failed() == (0, None)
            for i, want in enumerate(wants):
                record = AESGCM(keys[1][0]).encrypt(nonces[i], want, associated[i])
                assert card.read(sealed[i].output, size + TAG) == record, (size, kind, i)
                if stored:
                    assert card.read(opened[i].output, size) == want, (size, kind, i)


def test_a_forged_record_is_never_sealed_onward(make_card: Cards) -> None:
    rng = seeded()
    card = make_card()
    keys = key_of(card, rng), key_of(card, rng)
    one = Opening(card, keys[0], rng, DType.F32, 4000)
    one.record = one.record[:100] + bytes([one.record[100] ^ 1]) + one.record[101:]
    opened = one.chunk(card.upload(bytes(4000)), card.upload(b"b" * 4000))
    sealed = Chunk(keys[1][1], 0, card.room(4000 + TAG), 4000, rng.bytes(12), rng.bytes(32))
    card.crypt("sc_verify", [opened])
    assert card.failed() == (1, 0)
    card.reseal([opened], [sealed], 1, reduction(DType.F32, ReduceOp.SUM, 0))
    assert card.read(sealed.output, 4000 + TAG) == bytes(4000 + TAG)
    assert card.read(opened.output, 4000) == b"b" * 4000
