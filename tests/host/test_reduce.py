"""Every reduction equals an independent computation in NumPy and torch, to the bit, on every instruction set."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securecoll import _engine
from securecoll.codes import DType, ReduceOp

torch = pytest.importorskip("torch")

Array = np.ndarray[Any, np.dtype[Any]]

# Flags of kernels/host/reduce.hpp.
A_IS_ACCUMULATOR, OUT_IS_ACCUMULATOR, SCALE_A, SCALE_B, FINISH = 1, 2, 4, 8, 16

ISAS = [isa for isa in ("avx512", "avx2", "generic") if _engine.reducible(isa, DType.F32, ReduceOp.SUM)]

SIGNED = {DType.I8: np.int8, DType.I16: np.int16, DType.I32: np.int32, DType.I64: np.int64}
UNSIGNED = {DType.U8: np.uint8, DType.U16: np.uint16, DType.U32: np.uint32, DType.U64: np.uint64}
INTEGERS: dict[DType, Any] = {**SIGNED, **UNSIGNED}
WIDE_FLOATS: dict[DType, Any] = {DType.F32: np.float32, DType.F64: np.float64}
COMPLEX: dict[DType, Any] = {DType.C64: np.float32, DType.C128: np.float64}  # by the type of a component
# Floats that are reduced in float32: how they lie in memory, torch's type, and the code of our NaN.
NARROW: dict[DType, tuple[Any, Any, int]] = {
    DType.F16: (np.uint16, torch.float16, 0x7E00),
    DType.BF16: (np.uint16, torch.bfloat16, 0x7FC0),
    DType.F8E4M3FN: (np.uint8, torch.float8_e4m3fn, 0x7F),
    DType.F8E5M2: (np.uint8, torch.float8_e5m2, 0x7F),
    DType.F8E4M3FNUZ: (np.uint8, torch.float8_e4m3fnuz, 0x80),
    DType.F8E5M2FNUZ: (np.uint8, torch.float8_e5m2fnuz, 0x80),
}
RAW = {np.uint8: torch.uint8, np.uint16: torch.uint16}

ARITHMETIC = {ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.PREMUL_SUM}
ORDER = {ReduceOp.MIN, ReduceOp.MAX}
BITS = {ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR}
OPERATIONS: dict[DType, set[ReduceOp]] = {
    DType.NONE: set(),
    **dict.fromkeys(INTEGERS, ARITHMETIC | ORDER | BITS),
    **dict.fromkeys([*WIDE_FLOATS, *NARROW], ARITHMETIC | ORDER),
    **dict.fromkeys(COMPLEX, ARITHMETIC),
    DType.BOOL: {ReduceOp.SUM, ReduceOp.PRODUCT} | ORDER | BITS,
}
CASES = [(dtype, op) for dtype, ops in OPERATIONS.items() for op in sorted(ops)]


def seeded() -> np.random.Generator:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def storage(dtype: DType) -> Any:
    """The NumPy type that elements of ``dtype`` are kept in here; a complex number is two."""
    if dtype in NARROW:
        return NARROW[dtype][0]
    return {**INTEGERS, **WIDE_FLOATS, **COMPLEX, DType.BOOL: np.uint8}[dtype]


def elements(rng: np.random.Generator, dtype: DType, count: int) -> Array:
    """Random elements, as they lie in memory: half of any bits, half of usual size, and some special values."""
    kind = storage(dtype)
    if dtype in COMPLEX:
        return np.concatenate([elements(rng, _component(dtype), 2 * count)])
    raw = np.frombuffer(rng.bytes(count * np.dtype(kind).itemsize), kind).copy()
    if dtype in INTEGERS:
        info = np.iinfo(kind)
        special = np.array([0, 1, info.max, info.min, info.max - 1], kind)
    elif dtype in WIDE_FLOATS:
        usual = rng.random(count) < 0.5
        raw[usual] = (rng.standard_normal(count) * 100)[usual]
        tiny = np.finfo(kind).tiny
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, tiny, tiny / 2, np.finfo(kind).max, 1], kind)
    elif dtype in NARROW:
        usual = rng.random(count) < 0.5
        raw[usual] = narrowed(dtype, (rng.standard_normal(count) * 3).astype(np.float32))[usual]
        special = narrowed(dtype, np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-3, 240, 448], np.float32))
    else:
        special = np.array([0, 1, 2, 0x80, 0xFF], kind)
    chosen = rng.random(count) < 0.2
    raw[chosen] = special[rng.integers(len(special), size=count)][chosen]
    return raw


def _component(dtype: DType) -> DType:
    return {DType.C64: DType.F32, DType.C128: DType.F64}[dtype]


def settled(x: Array) -> Array:
    """NaN as we give it: positive, quiet, without a payload."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x)


def widened(dtype: DType, x: Array) -> Array:
    """float32 of narrow floats, as torch converts them."""
    wide: Array = torch.from_numpy(x.copy()).view(NARROW[dtype][1]).to(torch.float32).numpy()
    return wide


def narrowed(dtype: DType, x: Array) -> Array:
    """Narrow floats of float32, as torch converts them; NaN becomes ours."""
    kind, torch_type, nan = NARROW[dtype]
    codes = torch.from_numpy(np.ascontiguousarray(x)).to(torch_type).view(RAW[kind]).numpy()
    return np.where(np.isnan(x), np.array(nan, kind), codes)


def float_operation(op: ReduceOp, a: Array, b: Array) -> Array:
    """On float32 or float64, each step rounded on its own."""
    with np.errstate(all="ignore"):
        if op is ReduceOp.PRODUCT:
            return settled(a * b)
        if op in ORDER:
            less = np.where(a < b, a, b) if op is ReduceOp.MIN else np.where(a > b, a, b)
            return settled(np.where(np.isnan(a), a, less))
        return settled(a + b)


def complex_product(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        re_a, im_a, re_b, im_b = a[0::2], a[1::2], b[0::2], b[1::2]
        product = np.empty_like(a)
        product[0::2] = settled(re_a * re_b - im_a * im_b)
        product[1::2] = settled(re_a * im_b + im_a * re_b)
        return product


def integer_operation(dtype: DType, op: ReduceOp, a: Array, b: Array) -> Array:
    """With Python's integers, wrapped at the end."""
    bits = 8 * np.dtype(storage(dtype)).itemsize
    operations: dict[ReduceOp, Callable[[int, int], int]] = {
        ReduceOp.PRODUCT: lambda x, y: x * y,
        ReduceOp.MIN: min,
        ReduceOp.MAX: max,
        ReduceOp.BAND: lambda x, y: x & y,
        ReduceOp.BOR: lambda x, y: x | y,
        ReduceOp.BXOR: lambda x, y: x ^ y,
    }
    combine = operations.get(op, lambda x, y: x + y)
    wrapped = [combine(x, y) & ((1 << bits) - 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array(wrapped, np.dtype(f"u{bits // 8}")).view(storage(dtype))


def scaled(dtype: DType, x: Array, factor: float) -> Array:
    """A contribution times a factor: floats in their own precision, integers in float64, cut and saturated."""
    with np.errstate(all="ignore"):
        if dtype not in INTEGERS:
            return settled(x * x.dtype.type(factor))
    info = np.iinfo(x.dtype)
    products = [float(value) * factor for value in x.tolist()]
    return np.array([info.max if p >= info.max else info.min if p <= info.min else int(p) for p in products], x.dtype)


def divided(dtype: DType, x: Array, world: int) -> Array:
    if dtype in INTEGERS:
        return np.array([abs(v) // world * (1 if v >= 0 else -1) for v in x.tolist()], x.dtype)
    with np.errstate(all="ignore"):
        return settled(x / x.dtype.type(world))


def expected(
    dtype: DType, op: ReduceOp, a: Array, b: Array | None, factor: float = 1.0, world: int = 1, flags: int = 0
) -> Array:
    """What a reduction gives; accumulators of narrow floats are float32 arrays."""
    if dtype is DType.BOOL:
        x = (a != 0).astype(np.uint8)
        if b is None:
            return x
        y = (b != 0).astype(np.uint8)
        if op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR):
            return x | y
        return x ^ y if op is ReduceOp.BXOR else x & y
    if dtype in NARROW:
        a = a if flags & A_IS_ACCUMULATOR else widened(dtype, a)
        b = None if b is None else widened(dtype, b)
    if op is ReduceOp.PREMUL_SUM:
        a = scaled(dtype, a, factor) if flags & SCALE_A else a
        b = scaled(dtype, b, factor) if b is not None and flags & SCALE_B else b
    if b is None:
        result = a
    elif dtype in INTEGERS:
        result = integer_operation(dtype, op, a, b)
    elif dtype in COMPLEX and op is ReduceOp.PRODUCT:
        result = complex_product(a, b)
    else:
        result = float_operation(op, a, b)
    if op is ReduceOp.AVG and flags & FINISH:
        result = divided(dtype, result, world)
    return narrowed(dtype, result) if dtype in NARROW and not flags & OUT_IS_ACCUMULATOR else result


def reduced(
    isa: str,
    dtype: DType,
    op: ReduceOp,
    a: Array,
    b: Array | None,
    factor: float = 1.0,
    world: int = 1,
    flags: int = 0,
) -> Array:
    kind = np.float32 if dtype in NARROW and flags & OUT_IS_ACCUMULATOR else storage(dtype)
    out = np.full(len(a), 0x5A, np.uint8).astype(kind)
    count = len(a) // 2 if dtype in COMPLEX else len(a)
    _engine.reduce(isa, dtype, op, out, a, b, count, factor, world, flags)
    return out


def assert_same(got: Array, want: Array) -> None:
    assert got.dtype == want.dtype
    unsigned = np.dtype(f"u{got.dtype.itemsize}")
    different = np.flatnonzero(got.view(unsigned) != want.view(unsigned))
    assert different.size == 0, f"at {different[:5]}: {got[different[:5]]}, not {want[different[:5]]}"


def test_the_chosen_instruction_set_is_the_best_of_this_cpu() -> None:
    assert _engine.reduce_isa() == ISAS[0]
    assert "generic" in ISAS
    assert not _engine.reducible("sse9", DType.F32, ReduceOp.SUM)


@pytest.mark.parametrize("isa", ISAS)
def test_what_can_be_reduced_is_the_documented_table(isa: str) -> None:
    table = {(dtype, op) for dtype in range(-1, 300) for op in range(-1, 300) if _engine.reducible(isa, dtype, op)}
    assert table == set(CASES)
    with pytest.raises(ValueError, match="no such reduction"):
        _engine.reduce(isa, DType.C64, ReduceOp.MIN, bytearray(8), bytes(8), bytes(8), 1)


def test_accumulators_are_float32_for_narrow_floats_only() -> None:
    for dtype in DType:
        assert _engine.accumulator_bytes(dtype) == (4 if dtype in NARROW else dtype.itemsize)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_two_contributions(isa: str, dtype: DType, op: ReduceOp) -> None:
    rng = seeded()
    for count in (0, 1, 2, 7, 31, 64, 511, 512, 513, 3000):
        a, b = elements(rng, dtype, count), elements(rng, dtype, count)
        assert_same(reduced(isa, dtype, op, a, b), expected(dtype, op, a, b))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if ReduceOp.AVG in OPERATIONS[dtype]])
def test_averages_are_divided_when_finished(isa: str, dtype: DType) -> None:
    rng = seeded()
    for world in (1, 2, 3, 7, 4096, 2**32 - 1):
        a, b = elements(rng, dtype, 700), elements(rng, dtype, 700)
        for second in (b, None):
            got = reduced(isa, dtype, ReduceOp.AVG, a, second, world=world, flags=FINISH)
            assert_same(got, expected(dtype, ReduceOp.AVG, a, second, world=world, flags=FINISH))
    assert_same(reduced(isa, dtype, ReduceOp.SUM, a, b, world=9, flags=FINISH), expected(dtype, ReduceOp.SUM, a, b))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if ReduceOp.PREMUL_SUM in OPERATIONS[dtype]])
def test_contributions_are_scaled_where_asked(isa: str, dtype: DType) -> None:
    rng = seeded()
    for factor in (1.0, 0.25, -1.7, 1e3, 1e30, 0.0):
        for flags in (0, SCALE_A, SCALE_B, SCALE_A | SCALE_B):
            a, b = elements(rng, dtype, 600), elements(rng, dtype, 600)
            for second in (b, None):
                got = reduced(isa, dtype, ReduceOp.PREMUL_SUM, a, second, factor, flags=flags)
                assert_same(got, expected(dtype, ReduceOp.PREMUL_SUM, a, second, factor, flags=flags))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", list(INTEGERS))
def test_an_integer_times_nan_is_zero(isa: str, dtype: DType) -> None:
    a = np.array([0, 1, 100], storage(dtype))
    got = reduced(isa, dtype, ReduceOp.PREMUL_SUM, a, None, float("nan"), flags=SCALE_A)
    assert_same(got, np.zeros_like(a))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.PREMUL_SUM])
@pytest.mark.parametrize("dtype", list(NARROW))
def test_narrow_floats_are_rounded_once_over_all_ranks(isa: str, dtype: DType, op: ReduceOp) -> None:
    rng = seeded()
    parts = [elements(rng, dtype, 1100) for _ in range(5)]
    world, factor = len(parts), 0.3
    keep, scale = A_IS_ACCUMULATOR | OUT_IS_ACCUMULATOR, SCALE_B
    got = reduced(isa, dtype, op, parts[0], parts[1], factor, world, OUT_IS_ACCUMULATOR | SCALE_A | scale)
    want = expected(dtype, op, parts[0], parts[1], factor, world, OUT_IS_ACCUMULATOR | SCALE_A | scale)
    assert got.dtype == np.float32
    for part in parts[2:-1]:
        got = reduced(isa, dtype, op, got, part, factor, world, keep | scale)
        want = expected(dtype, op, want, part, factor, world, keep | scale)
        assert_same(got, want)
    got = reduced(isa, dtype, op, got, parts[-1], factor, world, A_IS_ACCUMULATOR | scale | FINISH)
    want = expected(dtype, op, want, parts[-1], factor, world, A_IS_ACCUMULATOR | scale | FINISH)
    assert_same(got, want)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_results_may_replace_either_operand_and_need_no_alignment(isa: str, dtype: DType, op: ReduceOp) -> None:
    rng = seeded()
    count, flags = 1030, FINISH | SCALE_A | SCALE_B
    a, b = elements(rng, dtype, count), elements(rng, dtype, count)
    want = expected(dtype, op, a, b, 0.5, 3, flags)
    for replaced in (0, 1):
        buffers = [bytearray(b"\0" + x.tobytes()) for x in (a, b)]
        views = [memoryview(buffer)[1:] for buffer in buffers]
        _engine.reduce(isa, dtype, op, views[replaced], *views, count, 0.5, 3, flags)
        assert_same(np.frombuffer(views[replaced], storage(dtype)), want)
        assert views[1 - replaced] == (b, a)[replaced].tobytes()
        assert buffers[replaced][0] == 0


@pytest.mark.parametrize("dtype", list(NARROW))
def test_every_conversion_to_float32_is_torchs(dtype: DType) -> None:
    kind = storage(dtype)
    codes = np.arange(1 << 8 * np.dtype(kind).itemsize, dtype=kind)
    want = widened(dtype, codes)
    for isa in ISAS:
        got = reduced(isa, dtype, ReduceOp.SUM, codes, None, flags=OUT_IS_ACCUMULATOR)
        assert_same(got, settled(want))
        back = reduced(isa, dtype, ReduceOp.SUM, codes, None)
        assert_same(back, np.where(np.isnan(want), np.array(NARROW[dtype][2], kind), codes))


@pytest.mark.parametrize("dtype", list(NARROW))
def test_conversions_from_float32_are_torchs(dtype: DType) -> None:
    # Every sign, exponent and leading mantissa bit, above, at and below the places where rounding turns.
    rng = seeded()
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    low = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001, 0x7FFF, 0x8000, 0x8001, 0xFFFF]
    bits = np.concatenate([high | np.uint32(x) for x in low])
    bits = np.concatenate([bits, rng.integers(1 << 32, size=200_000, dtype=np.uint32)])
    values = bits.view(np.float32)
    want = narrowed(dtype, values)
    for isa in ISAS:
        got = reduced(isa, dtype, ReduceOp.SUM, values, None, flags=A_IS_ACCUMULATOR)
        assert_same(got, want)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_results_do_not_depend_on_the_instruction_set(dtype: DType, op: ReduceOp) -> None:
    # Any bits: NaN with all payloads, signalling ones, denormals.
    if len(ISAS) == 1:
        pytest.skip("only one instruction set here")
    rng = seeded()
    count = 2000
    size = count * dtype.itemsize
    wide = count * _engine.accumulator_bytes(dtype)
    for flags in range(32):
        a = rng.bytes(wide if flags & A_IS_ACCUMULATOR else size)
        for b in (rng.bytes(size), None):
            results = set()
            for isa in ISAS:
                out = bytearray(wide if flags & OUT_IS_ACCUMULATOR else size)
                _engine.reduce(isa, dtype, op, out, a, b, count, 0.7, 3, flags)
                results.add(bytes(out))
            assert len(results) == 1, flags


@pytest.mark.parametrize("isa", ISAS)
def test_nan_wins_in_min_and_max_from_either_side(isa: str) -> None:
    for dtype in (DType.F32, DType.F64):
        nan, one = np.full(40, np.nan, storage(dtype)), np.ones(40, storage(dtype))
        for op in ORDER:
            for a, b in ((nan, one), (one, nan), (nan, nan)):
                assert np.isnan(reduced(isa, dtype, op, a, b)).all()


@pytest.mark.parametrize("isa", ISAS)
def test_bad_sizes_are_refused(isa: str) -> None:
    good = bytes(8)
    for dst, a, b in ((7, 8, 8), (8, 7, 8), (8, 8, 9)):
        with pytest.raises(ValueError, match="must have 8 bytes"):
            _engine.reduce(isa, DType.F32, ReduceOp.SUM, bytearray(dst), bytes(a), bytes(b), 2)
    with pytest.raises(ValueError, match="must have 16 bytes"):
        _engine.reduce(isa, DType.BF16, ReduceOp.SUM, bytearray(8), good, good, 4, flags=A_IS_ACCUMULATOR)
    with pytest.raises(ValueError, match="world"):
        _engine.reduce(isa, DType.I32, ReduceOp.AVG, bytearray(8), good, good, 2, world=0, flags=FINISH)


def test_no_multiplication_is_fused_with_an_addition() -> None:
    # A fused one rounds once where others round twice: results would depend on the CPU.
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("needs objdump")
    listing = subprocess.run([objdump, "-d", _engine.__file__], check=True, capture_output=True, text=True).stdout
    assert "vmulps" in listing
    assert re.findall(r"\bvfn?m(?:add|sub)\w+", listing) == []
