"""Each name that kernels use, against a plain model of what CUDA and PTX say that it does."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

import pytest

from tests.emulator.emulator import Emulator, Order

SEED = 20260729
EDGES = (0, 1, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x01020304, 31, 32, 33)
M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def pack(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def unpack(data: bytes) -> tuple[int, ...]:
    return struct.unpack(f"<{len(data) // 4}I", data)


def args(out: int = 0, source: int = 0, more: int = 0, a: int = 0, b: int = 0) -> bytes:
    return struct.pack("<QQQII", out, source, more, a, b)


def run(
    emulator: Emulator,
    kernel: str,
    source: bytes,
    out_bytes: int,
    order: Order = Order.IN_TURN,
    grid: int = 1,
    block: int = 256,
    shared: int = 0,
    more: int = 0,
    a: int = 0,
    b: int = 0,
) -> bytes:
    at, out = emulator.upload(source), emulator.allocate(out_bytes)
    given = args(out, at, more, a, b)
    emulator.run(kernel, given, grid=grid, block=block, shared=shared, order=order, seed=SEED)
    result = emulator.read(out, out_bytes)
    emulator.release(at)
    emulator.release(out)
    return result


def byte_perm(a: int, b: int, selector: int) -> int:
    both = (b << 32 | a).to_bytes(8, "little")
    picked = []
    for nibble in range(4):
        choice = selector >> 4 * nibble & 15
        byte = both[choice & 7]
        picked.append((0xFF if byte & 0x80 else 0) if choice & 8 else byte)
    return int.from_bytes(bytes(picked), "little")


WORD_MODELS: tuple[Callable[[int, int, int], int], ...] = (
    byte_perm,
    lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32 & M32,
    lambda a, b, c: (b << 32 | a) >> (c & 31) & M32,
    lambda a, b, c: int(f"{a:032b}"[::-1], 2),
    lambda a, b, c: a.bit_count(),
    lambda a, b, c: 32 - a.bit_length(),
    lambda a, b, c: (a & -a).bit_length(),
    lambda a, b, c: a * b >> 32,
)


def test_intrinsics_of_one_thread_match_their_models(probe: Emulator) -> None:
    generator = random.Random(SEED)
    triples = [(a, b, c) for a in EDGES for b in EDGES[:4] for c in (0, 31, 33, 0x7604, 0x7614, 0xFEDC, 0x3210)]
    triples += [tuple(generator.getrandbits(32) for _ in range(3)) for _ in range(256 * 4 - len(triples))]
    assert len(triples) == 1024
    got = unpack(run(probe, "probe_words", pack([word for t in triples for word in t]), 1024 * 8 * 4, grid=4))
    for i, (a, b, c) in enumerate(triples):
        assert got[8 * i : 8 * i + 8] == tuple(model(a, b, c) for model in WORD_MODELS), (a, b, c)


def test_intrinsics_of_64_bits_match_their_models(probe: Emulator) -> None:
    generator = random.Random(SEED)
    values = [0, 1, 1 << 63, M64, 0x3FF0000000000000, *(generator.getrandbits(62) for _ in range(251))]
    # Bit patterns of floats stay clear of NaN and infinity, whose doubling is not exact in bits.
    values = [v & ~(1 << 30) for v in values[:5]] + [v & 0xBFEFFFFFBF7FFFFF for v in values[5:]]
    got = struct.unpack("<1536Q", run(probe, "probe_doubles", struct.pack("<256Q", *values), 1536 * 8))
    for i, v in enumerate(values):
        brev, popc, clz, single, double, _ = got[6 * i : 6 * i + 6]
        assert (brev, popc, clz) == (int(f"{v:064b}"[::-1], 2), v.bit_count(), 64 - v.bit_length())
        if i < 5:
            continue
        (as_float,) = struct.unpack("<f", struct.pack("<I", v & M32))
        (as_double,) = struct.unpack("<d", struct.pack("<Q", v))
        assert single == struct.unpack("<I", struct.pack("<f", as_float * 2))[0]
        assert double == struct.unpack("<Q", struct.pack("<d", as_double * 2))[0]


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("width", "mask"), [(32, M32), (8, M32), (32, 0x0000FFFF), (4, 0xF0F0F0F0), (1, 1 << 17)])
def test_warp_operations_match_their_models(probe: Emulator, order: Order, width: int, mask: int) -> None:
    generator = random.Random(SEED)
    lanes = [lane for lane in range(32) if mask >> lane & 1]
    step = generator.randrange(1, 4) if mask == M32 else 0  # other lanes' registers may only be read of participants
    values = [generator.getrandbits(32) for _ in range(256)]
    sources = [generator.choice(lanes) for _ in range(256)]
    if width < 32:  # within the own group, which is whole for these masks
        sources = [generator.randrange(64) for _ in range(256)] if width > 1 else [0] * 256
    got = unpack(
        run(
            probe,
            "probe_warp",
            pack([word for pair in zip(values, sources, strict=True) for word in pair]),
            256 * 6 * 4,
            order,
            more=step,
            a=width,
            b=mask,
        )
    )
    for thread in range(256):
        warp, lane = thread & ~31, thread & 31
        if not mask >> lane & 1:
            continue
        group = lane & -width
        index = group | (sources[thread] & (width - 1))
        xor = lane ^ step if lane ^ step < group + width else lane
        up = lane - step if lane - group >= step else lane
        down = lane + step if lane + step < group + width else lane
        ballot = sum((values[warp + other] & 1) << other for other in lanes)
        expected = (
            values[warp + index],
            values[warp + xor],
            values[warp + up],
            values[warp + down],
            ballot,
            values[warp + index] ^ sources[warp + index],
        )
        assert got[6 * thread : 6 * thread + 6] == expected, (thread, step)


@pytest.mark.parametrize("order", Order)
def test_halves_of_a_warp_work_apart(probe: Emulator, order: Order) -> None:
    values = list(range(1000, 1256))
    got = unpack(run(probe, "probe_halves", pack(values), 1024, order))
    expected = []
    for thread in range(256):
        if thread & 16:
            expected.append(values[thread ^ 1])
        else:
            mine, other = values[thread], values[thread ^ 2]
            for _ in range(3):
                mine, other = mine + other, other + mine
            expected.append(mine)
    assert got == tuple(expected)


@pytest.mark.parametrize("order", Order)
def test_binary_mma_counts_common_bits_of_rows_and_columns(probe: Emulator, order: Order) -> None:
    generator = random.Random(SEED)
    for density in (0, 1, 2):  # random bits, few, many
        rows = [generator.getrandbits(256) for _ in range(16)]
        columns = [generator.getrandbits(256) for _ in range(8)]
        if density == 1:
            rows = [1 << generator.randrange(256) for _ in rows]
        if density == 2:
            rows, columns = [(1 << 256) - 1] * 16, [(1 << 256) - 1] * 8
        start = [[generator.getrandbits(32) for _ in range(8)] for _ in range(16)]
        words = []
        for lane in range(32):
            group, member = divmod(lane, 4)

            def piece(bits: int, half: int, member: int = member) -> int:
                return bits >> (128 * half + 32 * member) & M32

            words += [
                piece(rows[group], 0),
                piece(rows[group + 8], 0),
                piece(rows[group], 1),
                piece(rows[group + 8], 1),
            ]
            words += [piece(columns[group], 0), piece(columns[group], 1)]
            words += [start[group + 8 * (i // 2)][2 * member + i % 2] for i in range(4)]
        got = unpack(run(probe, "probe_matrix", pack(words), 32 * 4 * 4, order, block=32))
        for lane in range(32):
            group, member = divmod(lane, 4)
            for i in range(4):
                row, column = group + 8 * (i // 2), 2 * member + i % 2
                expected = start[row][column] + (rows[row] & columns[column]).bit_count()
                assert got[4 * lane + i] == expected & M32, (lane, i)


@pytest.mark.parametrize("order", Order)
def test_atomics_lose_nothing_and_return_what_was_there(probe: Emulator, order: Order) -> None:
    threads = 4 * 256
    at = probe.upload(pack([100, 0, 9]))
    got = unpack(run(probe, "probe_atomics", b"", threads * 3 * 4, order, grid=4, more=at))
    final = unpack(probe.read(at, 12))
    assert final == (100 + 3 * threads, M32, max(9, max(t ^ 5 for t in range(threads))))
    assert sorted(got[0::3]) == [100 + 3 * i for i in range(threads)]
    assert all(not before & ~M32 for before in got[1::3]) and got[1::3].count(0) == 1
    assert min(got[2::3]) == 9
    probe.release(at)


@pytest.mark.parametrize("order", Order)
def test_table_look_ups_find_their_lane_row_and_table(probe: Emulator, order: Order) -> None:
    generator = random.Random(SEED)
    tables = [generator.getrandbits(32) for _ in range(512)]
    indices = [generator.getrandbits(32) for _ in range(256)]
    got = unpack(run(probe, "probe_tables", pack(tables + indices), 256 * 8 * 4, order, shared=130048))
    for thread, word in enumerate(indices):
        expected = [tables[256 * table + (word >> 8 * byte & 255)] for table in range(2) for byte in range(4)]
        assert list(got[8 * thread : 8 * thread + 8]) == expected


def test_streaming_loads_and_stores_move_16_bytes(probe: Emulator) -> None:
    source = random.Random(SEED).randbytes(512 * 16)
    got = unpack(run(probe, "probe_streams", source, 512 * 16, grid=2))
    words = unpack(source)
    expected = [words[4 * i + k] for i in range(512) for k in (1, 0, 3, 2)]
    assert list(got) == expected


def test_threads_know_their_coordinates_and_constants(probe: Emulator) -> None:
    got = unpack(run(probe, "probe_coordinates", b"", 5 * 3 * 70 * 4, grid=3, block=70))
    for block in range(3):
        for thread in range(70):
            at = 5 * (70 * block + thread)
            assert got[at : at + 5] == (thread, block, 70, 3, (thread % 8) ** 2)
