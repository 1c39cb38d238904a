"""The communicator's collectives on real processes, against NumPy."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, ReduceOp
from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS
from tests.groups import SMALL, left_behind, run

# 4096-byte chunks: below one, exactly one, slices of several and ragged ones, several waves of a lane.
COUNTS = (1, 7, 1024, 1025, 9000, 30011)


def _data(rank: int, count: int, dtype: Any, salt: int = 0) -> Any:
    """Distinct small integers: sums of them are exact in every dtype used here, in any order."""
    return ((np.arange(count) * 7 + rank * 13 + salt) % 11).astype(dtype)


def every_collective(comm: Communicator, counts: tuple[int, ...] = COUNTS) -> int:
    """Checks every collective and algorithm against NumPy, in and out of place. How many results it checked."""
    n, me = comm.size, comm.rank
    checks = 0

    def same(got: Any, want: Any, what: object) -> None:
        nonlocal checks
        checks += 1
        np.testing.assert_array_equal(got, want, err_msg=f"rank {me} of {n}: {what}")

    for count, in_place in itertools.product(counts, (False, True)):
        dtype = np.float32
        mine = _data(me, count, dtype)
        everyone = [_data(r, count, dtype) for r in range(n)]
        total = np.sum(everyone, axis=0, dtype=dtype)
        big = _data(me, count * n, dtype)
        bigs = [_data(r, count * n, dtype) for r in range(n)]
        big_total = np.sum(bigs, axis=0, dtype=dtype)
        part = slice(me * count, (me + 1) * count)
        root = count % n

        for algorithm in ALGORITHMS[Collective.ALL_REDUCE]:
            send = mine.copy()
            recv = send if in_place else np.full(count, -1, dtype)
            comm.all_reduce(send, None if in_place else recv, algorithm=algorithm)
            same(recv, total, ("all_reduce", algorithm, count, in_place))
            if not in_place:
                same(send, mine, "all_reduce input")
        for algorithm in ALGORITHMS[Collective.REDUCE_SCATTER]:
            send = big.copy()
            recv = send[part] if in_place else np.full(count, -1, dtype)
            comm.reduce_scatter(send, recv, algorithm=algorithm)
            same(recv, big_total[part], ("reduce_scatter", algorithm, count, in_place))
        for algorithm in ALGORITHMS[Collective.ALL_GATHER]:
            recv = np.full(count * n, -1, dtype)
            send = recv[part] if in_place else mine.copy()
            send[:] = mine
            comm.all_gather(send, recv, algorithm=algorithm)
            same(recv, np.concatenate(everyone), ("all_gather", algorithm, count, in_place))
        for algorithm in ALGORITHMS[Collective.BROADCAST]:
            buffer = mine.copy()
            comm.broadcast(buffer, root, algorithm=algorithm)
            same(buffer, everyone[root], ("broadcast", algorithm, count))
        for algorithm in ALGORITHMS[Collective.REDUCE]:
            send = mine.copy()
            recv = None if in_place else np.full(count, -1, dtype)
            comm.reduce(send, recv, root=root, algorithm=algorithm)
            if me == root:
                same(send if in_place else recv, total, ("reduce", algorithm, count, in_place))
            else:
                same(send, mine, "reduce leaves the input of others alone")
                if not in_place:
                    same(recv, np.full(count, -1, dtype), "reduce leaves the output of others alone")
        for algorithm in ALGORITHMS[Collective.GATHER]:
            recv = np.full(count * n, -1, dtype)
            send = recv[part] if in_place and me == root else mine.copy()
            send[:] = mine
            comm.gather(send, recv if me == root else None, root, algorithm=algorithm)
            if me == root:
                same(recv, np.concatenate(everyone), ("gather", algorithm, count, in_place))
        for algorithm in ALGORITHMS[Collective.SCATTER]:
            send = big.copy()
            recv = send[part] if in_place and me == root else np.full(count, -1, dtype)
            comm.scatter(send if me == root else None, recv, root, algorithm=algorithm)
            same(recv, bigs[root][part], ("scatter", algorithm, count, in_place))
        for algorithm in ALGORITHMS[Collective.ALL_TO_ALL]:
            recv = np.full(count * n, -1, dtype)
            comm.all_to_all(big, recv, algorithm=algorithm)
            same(recv, np.concatenate([b[part] for b in bigs]), ("all_to_all", algorithm, count))
    comm.barrier()
    return checks


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_collective_and_algorithm(tmp_path: Path, size: int) -> None:
    """All sizes, in and out of place, every algorithm, small slots."""
    assert min(run(size, tmp_path, every_collective, shape=SMALL)) > 100
    assert not left_behind()


def _default_shape(comm: Communicator) -> None:
    for count in (1, 3000, 200_000, 1_000_003):
        x = _data(comm.rank, count, np.float32)
        want = np.sum([_data(r, count, np.float32) for r in range(comm.size)], axis=0, dtype=np.float32)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, want)


def _both_ways_of_storing(comm: Communicator) -> Any:
    # Large operations try storing records through and past the caches in turn, then settle, then try again.
    for i in range(40):
        x = _data(comm.rank, 300_001, np.float32, i)
        want = np.sum([_data(r, 300_001, np.float32, i) for r in range(comm.size)], axis=0, dtype=np.float32)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, want)
    return comm.stats()


@pytest.mark.parametrize("size", [2, 4])
def test_large_operations_try_both_ways_of_storing(tmp_path: Path, size: int) -> None:
    for stats in run(size, tmp_path, _both_ways_of_storing):
        assert 0 < stats.records_past_caches < stats.records_sealed


def _outputs_past_the_caches(comm: Communicator) -> None:
    """Outputs of 8 MiB and more, at addresses for whole vectors, for whole blocks, and for neither; guarded."""
    n, me = comm.size, comm.rank
    each = (9 << 20) // n + 5  # the last chunk of a part is ragged
    everyone = np.concatenate([_data(r, each, np.uint8, r) for r in range(n)])
    for shift in (0, 16, 1):
        room = np.full(len(everyone) + 256, 0xA5, np.uint8)
        start = -room.ctypes.data % 64 + shift
        out = room[start : start + len(everyone)]
        for algorithm in ALGORITHMS[Collective.ALL_GATHER]:
            out[:] = 0xA5
            comm.all_gather(_data(me, each, np.uint8, me), out, algorithm=algorithm)
            np.testing.assert_array_equal(out, everyone)
        out[:] = everyone if me == 0 else 0xA5
        comm.broadcast(out, 0)
        np.testing.assert_array_equal(out, everyone)
        assert (room[:start] == 0xA5).all() and (room[start + len(everyone) :] == 0xA5).all()


@pytest.mark.parametrize("size", [2, 3])
def test_outputs_past_the_caches(tmp_path: Path, size: int) -> None:
    run(size, tmp_path, _outputs_past_the_caches)


@pytest.mark.parametrize("size", [2, 3])
def test_default_shape_and_tuner(tmp_path: Path, size: int) -> None:
    run(size, tmp_path, _default_shape)


def uneven_parts(comm: Communicator) -> None:
    """Checks empty and ragged parts of every collective that has parts."""
    n, me = comm.size, comm.rank
    counts = [(r * 700 + 3) if r != 1 else 0 for r in range(n)]
    parts = [_data(r, c, np.int64) for r, c in enumerate(counts)]
    out = np.full(sum(counts), -1, np.int64)
    comm.all_gather(parts[me], out, counts=counts)
    np.testing.assert_array_equal(out, np.concatenate(parts))

    whole = [_data(r, sum(counts), np.int64, salt=5) for r in range(n)]
    start = sum(counts[:me])
    mine = np.full(counts[me], -1, np.int64)
    comm.reduce_scatter(whole[me], mine, counts=counts)
    np.testing.assert_array_equal(mine, np.sum(whole, axis=0)[start : start + counts[me]])

    out = np.full(sum(counts), -1, np.int64)
    comm.gather(parts[me], out if me == 2 else None, 2, counts=counts)
    if me == 2:
        np.testing.assert_array_equal(out, np.concatenate(parts))
    mine = np.full(counts[me], -1, np.int64)
    comm.scatter(np.concatenate(parts) if me == 0 else None, mine, 0, counts=counts)
    np.testing.assert_array_equal(mine, parts[me])

    table = [[(s * n + d) * 300 % 1700 for d in range(n)] for s in range(n)]
    pieces = [[_data(s * n + d, table[s][d], np.int64) for d in range(n)] for s in range(n)]
    got = np.full(sum(table[s][me] for s in range(n)), -1, np.int64)
    comm.all_to_all(np.concatenate(pieces[me]), got, table[me], [table[s][me] for s in range(n)])
    np.testing.assert_array_equal(got, np.concatenate([pieces[s][me] for s in range(n)]))


def test_uneven_parts(tmp_path: Path) -> None:
    """Empty and ragged parts of every collective that has parts."""
    run(3, tmp_path, uneven_parts, shape=SMALL)


def every_dtype(comm: Communicator) -> None:
    """Checks NumPy's dtypes with every operation that they have."""
    n, me = comm.size, comm.rank
    for dtype in (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64):
        data = [((np.arange(5000) * 31 + r * 97) % 251).astype(dtype) for r in range(n)]
        with np.errstate(over="ignore"):
            want = {
                ReduceOp.SUM: np.add.reduce(data, dtype=dtype),
                ReduceOp.PRODUCT: np.multiply.reduce(data, dtype=dtype),
                ReduceOp.MIN: np.minimum.reduce(data),
                ReduceOp.MAX: np.maximum.reduce(data),
                ReduceOp.BAND: np.bitwise_and.reduce(data),
                ReduceOp.BOR: np.bitwise_or.reduce(data),
                ReduceOp.BXOR: np.bitwise_xor.reduce(data),
            }
        for op, result in want.items():
            x = data[me].copy()
            comm.all_reduce(x, op=op)
            np.testing.assert_array_equal(x, result, err_msg=f"{np.dtype(dtype)} {op.name}")
    for dtype in (np.float16, np.float32, np.float64, np.complex64, np.complex128):
        data = [_data(r, 5000, dtype) for r in range(n)]
        x = data[me].copy()
        comm.all_reduce(x, op=ReduceOp.AVG)
        wide = (
            np.float32 if np.dtype(dtype).itemsize <= 4 else np.float64
        )  # one division, in the accumulator's precision
        real = np.sum([d.real for d in data], axis=0).astype(np.float32 if dtype == np.complex64 else wide) / wide(n)
        np.testing.assert_array_equal(x, real.astype(dtype))
        x = data[me].copy()
        comm.all_reduce(x, op=ReduceOp.PREMUL_SUM, factor=float(me + 1))
        np.testing.assert_array_equal(x, np.sum([d * (r + 1) for r, d in enumerate(data)], axis=0).astype(dtype))
    flags = [np.arange(5000) % (r + 2) == 0 for r in range(n)]
    for op, result in ((ReduceOp.SUM, np.any(flags, axis=0)), (ReduceOp.PRODUCT, np.all(flags, axis=0))):
        b = flags[me].copy()
        comm.all_reduce(b, op=op)
        np.testing.assert_array_equal(b, result)
        assert set(b.view(np.uint8)) <= {0, 1}
    nan = np.full(5000, me, np.float32)
    nan[100 + me] = np.nan
    comm.all_reduce(nan, op=ReduceOp.MAX)
    assert np.flatnonzero(np.isnan(nan)).tolist() == list(range(100, 100 + n))


@pytest.mark.parametrize("size", [2, 3])
def test_dtypes_and_reductions(tmp_path: Path, size: int) -> None:
    """All operations that make sense: sums wrap, NaN wins, bool stays bool, AVG and PREMUL_SUM scale."""
    run(size, tmp_path, every_dtype, shape=SMALL)


def _bits(comm: Communicator) -> list[str]:
    rng = np.random.default_rng(comm.rank)
    digests = []
    for algorithm in ALGORITHMS[Collective.ALL_REDUCE]:
        for dtype in (np.float32, np.float16):
            x = (rng.standard_normal(20_000) * np.exp(rng.standard_normal(20_000))).astype(dtype)
            comm.all_reduce(x, algorithm=algorithm)
            digests.append(hashlib.sha256(x.tobytes()).hexdigest())
    return digests


def test_same_bits_on_every_rank_and_in_every_run(tmp_path: Path) -> None:
    """Random floats, whose sums depend on the order: the order is the plan's, not the schedule's."""
    runs = []
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        digests = run(3, folder, _bits, shape=SMALL)
        assert all(d == digests[0] for d in digests)
        runs.append(digests[0])
    assert runs[0] == runs[1]


def _kernels_agree(comm: Communicator) -> str:
    x = np.random.default_rng(comm.rank).standard_normal(50_000).astype(np.float32)
    comm.all_reduce(x)
    return hashlib.sha256(x.tobytes()).hexdigest()


def test_every_kernel_set_gives_the_same_bits(tmp_path: Path) -> None:
    digests = set()
    for name in securecoll._engine.aead_names():
        folder = tmp_path / name
        folder.mkdir()
        digests |= set(run(2, folder, _kernels_agree, shape=SMALL, kernels=name))
    assert len(digests) == 1


def _asynchronous(comm: Communicator) -> None:
    arrays = [np.full(10_000 + i, comm.rank + i, np.float32) for i in range(20)]
    works = [comm.all_reduce(x, async_op=True) for x in arrays]
    assert [w.sequence for w in works] == list(range(20))
    comm.barrier()  # a blocking call behind asynchronous ones
    assert all(w.done() for w in works)
    for i, (work, x) in enumerate(zip(works, arrays, strict=True)):
        work.wait()
        np.testing.assert_array_equal(x, np.full(10_000 + i, sum(r + i for r in range(comm.size)), np.float32))


@pytest.mark.parametrize("size", [2, 4])
def test_asynchronous_calls_keep_their_order(tmp_path: Path, size: int) -> None:
    run(size, tmp_path, _asynchronous, shape=SMALL)


def _statistics(comm: Communicator) -> Any:
    comm.all_reduce(np.zeros(64_000, np.float32), algorithm="direct")
    return comm.stats()


def test_statistics_count_what_was_sealed_and_opened(tmp_path: Path) -> None:
    """Of S bytes, direct seals S and opens 2 S (N - 1) / N."""
    for stats in run(2, tmp_path, _statistics):
        assert stats.bytes_sealed == stats.bytes_opened == 256_000
        assert stats.records_sealed > 0
        assert stats.collectives == 1


def _epochs(comm: Communicator) -> list[int]:
    epochs = []
    for i in range(30):
        x = _data(comm.rank, 3000, np.float32, i)
        want = np.sum([_data(r, 3000, np.float32, i) for r in range(comm.size)], axis=0, dtype=np.float32)
        comm.all_reduce(x)
        np.testing.assert_array_equal(x, want)
        epochs.append(comm.epoch)
    return epochs


def test_keys_step_before_their_budget_is_used_up(tmp_path: Path) -> None:
    """A budget of a few collectives: results stay right, and all ranks step at the same call."""
    shape = securecoll.communicator.Shape(slot_bytes=4096, depth=4, wave=2, budget_blocks=3000)
    epochs = run(3, tmp_path, _epochs, shape=shape)
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[0] == sorted(epochs[0])
    assert epochs[0][-1] >= 2


def _over_the_budget(comm: Communicator) -> tuple[int, int]:
    n, me = comm.size, comm.rank
    count = 30_011
    everyone = [_data(r, count, np.float32) for r in range(n)]
    bigs = [_data(r, count * n, np.float32) for r in range(n)]
    total = np.sum(everyone, axis=0, dtype=np.float32)
    part = slice(me * count, (me + 1) * count)

    x = everyone[me].copy()
    comm.all_reduce(x)
    np.testing.assert_array_equal(x, total)
    out = np.empty(count, np.float32)
    comm.reduce_scatter(bigs[me], out)
    np.testing.assert_array_equal(out, np.sum(bigs, axis=0, dtype=np.float32)[part])
    whole = np.empty(count * n, np.float32)
    comm.all_gather(everyone[me], whole)
    np.testing.assert_array_equal(whole, np.concatenate(everyone))
    x = everyone[me].copy()
    comm.broadcast(x, 1)
    np.testing.assert_array_equal(x, everyone[1])
    out = np.full(count, -1, np.float32)
    comm.reduce(everyone[me], out, root=1)
    np.testing.assert_array_equal(out, total if me == 1 else np.full(count, -1, np.float32))
    whole = np.empty(count * n, np.float32)
    comm.gather(everyone[me], whole if me == 0 else None, 0)
    if me == 0:
        np.testing.assert_array_equal(whole, np.concatenate(everyone))
    out = np.empty(count, np.float32)
    comm.scatter(bigs[me] if me == 1 else None, out, 1)
    np.testing.assert_array_equal(out, bigs[1][part])

    counts = [count + 7 * r if r != 1 else 0 for r in range(n)]
    parts = [_data(r, c, np.float32, 3) for r, c in enumerate(counts)]
    ragged = np.empty(sum(counts), np.float32)
    comm.all_gather(parts[me], ragged, counts=counts)
    np.testing.assert_array_equal(ragged, np.concatenate(parts))

    works = [comm.all_reduce(everyone[me].copy(), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    assert all(work.done() for work in works)
    sequence, epoch = comm._engine.sequence, comm.epoch
    with pytest.raises(securecoll.ConfigError, match="split it"):
        comm.all_to_all(bigs[me], np.empty_like(bigs[me]))  # no rank knows all of its edges, so none can cut it alike
    comm.barrier()
    return sequence, epoch


@pytest.mark.parametrize("size", [2, 3])
def test_a_call_over_the_budget_takes_several_sequence_numbers(tmp_path: Path, size: int) -> None:
    """Keys that may seal 48000 bytes, and calls of 120 KB and more: each is cut alike on all ranks, and keys step."""
    shape = securecoll.communicator.Shape(slot_bytes=4096, depth=4, wave=2, budget_blocks=3000)
    results = run(size, tmp_path, _over_the_budget, shape=shape)
    assert len(set(results)) == 1
    sequence, epoch = results[0]
    assert sequence > 2 * 11 and epoch > 11


def _fails_between_pieces(comm: Communicator) -> tuple[str, bool]:
    x = np.ones(100_000, np.float32)
    if comm.rank == 1:
        with pytest.raises(securecoll.SecureCollError):
            comm.all_reduce(x, timeout=1.0)
        return "", True
    out = np.full(100_000, 7, np.float32)
    work = comm.all_reduce(x, out, async_op=True)
    while comm.stats().collectives < 2:  # some pieces have brought their sums already
        time.sleep(0.001)
    comm.abort("in the middle of a call")
    with pytest.raises(securecoll.SecureCollError) as caught:
        work.wait()
    return str(caught.value), not out.any()


def test_a_cut_call_that_fails_keeps_nothing(tmp_path: Path) -> None:
    """Also what its first pieces had brought is zeroed."""
    shape = securecoll.communicator.Shape(slot_bytes=4096, depth=4, wave=2, budget_blocks=100)
    error, zeroed = run(2, tmp_path, _fails_between_pieces, shape=shape)[0]
    assert "in the middle of a call" in error and zeroed


def _many_sizes(comm: Communicator) -> None:
    rng = np.random.default_rng(7)
    for i in range(700):  # more plans than are cached
        count = int(rng.integers(0, 6000))
        x = np.full(count, comm.rank + i, np.int32)
        comm.all_reduce(x)
        assert (x == sum(r + i for r in range(comm.size))).all()


def test_many_sizes_including_none(tmp_path: Path) -> None:
    run(2, tmp_path, _many_sizes, shape=SMALL)


def _surface(comm: Communicator) -> None:
    assert "key" not in repr(comm).lower()
    with pytest.raises(TypeError, match="keys"):
        pickle.dumps(comm)
    assert len(comm.session_id) == 32
    with comm:
        comm.barrier()
    with pytest.raises(securecoll.CommunicatorClosed):
        comm.barrier()
    comm.close()


def test_context_and_closing(tmp_path: Path) -> None:
    run(2, tmp_path, _surface)


def _memory(comm: Communicator) -> int:
    comm.all_reduce(np.zeros(4 << 20, np.float32))
    return comm.shared_bytes


def test_shared_memory_of_a_rank_is_bounded(tmp_path: Path) -> None:
    """48 MiB at two ranks is the promise; both segments that a rank maps are counted."""
    assert max(run(2, tmp_path, _memory)) < 8 << 20
