"""Messages between two ranks, on real processes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import (
    CollectiveTimeout,
    Communicator,
    ConfigError,
    MismatchError,
    PeerLostError,
)
from securecoll.errors import SecureCollError
from securecoll.shape import Shape
from tests.groups import SMALL, Outcome, group, left_behind

EAGER = 64 << 10
SIZES = (0, 1, 4095, 4096, 4097, EAGER, EAGER + 1, 1 << 20)
"""Bytes: empty, around a slot, around the most that is sent before it is asked for, and many slots."""


pytestmark = pytest.mark.usefixtures("transport")


def ends(size: int, folder: Path, body: Any, *args: Any, **options: Any) -> list[Outcome]:
    """How each rank ended."""
    with group(size, folder, body, *args, **options) as ranks:
        return ranks.finish()


def _bytes(seed: int, size: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _sizes(comm: Communicator) -> None:
    for size in SIZES:
        if comm.rank == 0:
            comm.send(_bytes(size, size), 1)
            back = np.zeros(size, np.uint8)
            assert comm.recv(back, 1) == 1
            np.testing.assert_array_equal(back, _bytes(size + 1, size))
        else:
            got = np.zeros(size, np.uint8)
            assert comm.recv(got, 0) == 0
            np.testing.assert_array_equal(got, _bytes(size, size))
            comm.send(_bytes(size + 1, size), 0)


@pytest.mark.parametrize("shape", [SMALL, None], ids=["small slots", "default"])
def test_every_size_arrives(tmp_path: Path, shape: Shape | None) -> None:
    for outcome in ends(2, tmp_path, _sizes, shape=shape):
        assert outcome.error is None, outcome.error


def _tags(comm: Communicator, size: int) -> None:
    if comm.rank == 0:
        works = [comm.send(np.full(size, tag, np.int32), 1, tag, async_op=True) for tag in (7, 3, 5, 3)]
        for work in works:
            work.wait()
        return
    got = np.zeros(size, np.int32)
    time.sleep(0.05)
    for tag in (5, 3, 7):
        comm.recv(got, 0, tag)
        assert (got == tag).all()
    # Two of one tag: in the order they were sent, and posted receives in the order they were posted.
    comm.recv(got, 0, 3)
    assert (got == 3).all()


@pytest.mark.parametrize("size", [1, 50000])
def test_tags_are_matched_in_any_order(tmp_path: Path, size: int) -> None:
    for outcome in ends(2, tmp_path, _tags, size):
        assert outcome.error is None, outcome.error


def _in_order(comm: Communicator) -> list[int]:
    """Alternating sizes of one tag, some announced and some not: never one before another."""
    sizes = [8, 200_000, 16, 70_000, 0, 8]
    if comm.rank == 0:
        works = [comm.send(np.full(n, i, np.uint8), 1, async_op=True) for i, n in enumerate(sizes)]
        for work in works:
            work.wait()
        return []
    buffers = [np.full(n, 99, np.uint8) for n in sizes]
    works = [comm.recv(b, 0, async_op=True) for b in buffers]
    for work in reversed(works):
        work.wait()
        assert work.source == 0
    return [i for i, b in enumerate(buffers) if (b == i).all()]


def test_messages_of_one_tag_keep_their_order(tmp_path: Path) -> None:
    _, second = ends(2, tmp_path, _in_order)
    assert second.error is None and second.value == [0, 1, 2, 3, 4, 5]


def _any_source(comm: Communicator) -> list[int]:
    if comm.rank != 0:
        comm.send(np.full(1000 * comm.rank, comm.rank, np.int64), 0, tag=comm.rank % 2)
        if comm.rank == 3:
            comm.send(np.array([30_000]), 0, tag=9)
        return []
    sources = []
    first = np.zeros(1, np.int64)
    sources.append(comm.recv(first, tag=9))
    for _ in range(3):
        # Whose message it is decides its size, so each rank is asked for by its tag or its rank.
        if 2 not in sources:
            buffer = np.zeros(2000, np.int64)
            sources.append(comm.recv(buffer, tag=0))
            assert (buffer == 2).all()
        else:
            source = 1 if 1 not in sources else 3
            buffer = np.zeros(1000 * source, np.int64)
            sources.append(comm.recv(buffer, source, tag=1))
            assert (buffer == source).all()
    return sources


def test_a_receive_from_anybody_says_whose_message_it_got(tmp_path: Path) -> None:
    first, *rest = ends(4, tmp_path, _any_source)
    assert all(o.error is None for o in [first, *rest])
    assert first.value == [3, 2, 1, 3]


def _both_ways(comm: Communicator, size: int, posted_first: bool) -> None:
    peer = 1 - comm.rank
    mine, theirs = _bytes(comm.rank, size), np.zeros(size, np.uint8)
    if posted_first:
        work = comm.recv(theirs, peer, async_op=True)
        comm.send(mine, peer)
        work.wait()
    else:
        work = comm.send(mine, peer, async_op=True)
        comm.recv(theirs, peer)
        work.wait()
    np.testing.assert_array_equal(theirs, _bytes(peer, size))


@pytest.mark.parametrize("posted_first", [False, True])
def test_large_messages_in_both_directions_at_once(tmp_path: Path, posted_first: bool) -> None:
    for outcome in ends(2, tmp_path, _both_ways, 16 << 20, posted_first):
        assert outcome.error is None, outcome.error


def _ring(comm: Communicator) -> None:
    n, me = comm.size, comm.rank
    for size in (100, 300_000):
        buffer = np.zeros(size, np.float32)
        work = comm.recv(buffer, (me - 1) % n, async_op=True)
        comm.send(np.full(size, me, np.float32), (me + 1) % n)
        work.wait()
        assert (buffer == (me - 1) % n).all()


def test_a_ring_of_four(tmp_path: Path) -> None:
    for outcome in ends(4, tmp_path, _ring, shape=SMALL):
        assert outcome.error is None, outcome.error


def _beyond_the_bound(comm: Communicator) -> int:
    """More short messages than a receiver holds, asked for last first."""
    count = 400  # of 60,000 bytes: 24 MB, and 16 MiB are held
    if comm.rank == 0:
        works = [comm.send(np.full(60_000, i % 251, np.uint8), 1, tag=i, async_op=True) for i in range(count)]
        for work in works:
            work.wait()
        return 0
    good = 0
    buffer = np.zeros(60_000, np.uint8)
    for i in reversed(range(count)):
        comm.recv(buffer, 0, tag=i)
        good += bool((buffer == i % 251).all())
    return good


def test_what_is_held_has_a_bound_and_nothing_is_lost_beyond_it(tmp_path: Path) -> None:
    first, second = ends(2, tmp_path, _beyond_the_bound)
    assert first.error is None and second.error is None, (first.error, second.error)
    assert second.value == 400


def _under_collectives(comm: Communicator) -> float:
    """A receive that waits does not hold up collectives, nor a collective that waits the messages."""
    peer = 1 - comm.rank
    buffer = np.zeros(1 << 20, np.uint8)
    work = comm.recv(buffer, peer, tag=1, async_op=True)
    total = 0.0
    for _ in range(20):
        x = np.ones(10_000, np.float32)
        comm.all_reduce(x)
        total += float(x[0])
    assert not work.done()
    pending = comm.all_reduce(np.ones(1 << 20, np.float32), async_op=True)
    comm.send(_bytes(comm.rank, 1 << 20), peer, tag=1)
    work.wait()
    assert pending is not None
    pending.wait()
    np.testing.assert_array_equal(buffer, _bytes(peer, 1 << 20))
    return total


def test_messages_and_collectives_do_not_wait_for_each_other(tmp_path: Path) -> None:
    for outcome in ends(2, tmp_path, _under_collectives):
        assert outcome.error is None and outcome.value == 40.0, outcome.error


def _sends_then_collective(comm: Communicator) -> None:
    """More unasked-for messages than the lane has slots, then a collective that the receiver is already in."""
    count = 200
    if comm.rank == 0:
        for i in range(count):
            comm.send(np.array([i]), 1)
        comm.barrier()
        return
    comm.barrier()
    for i in range(count):
        got = np.array([-1])
        comm.recv(got, 0)
        assert got[0] == i


def test_a_rank_in_a_collective_takes_what_is_sent_to_it(tmp_path: Path) -> None:
    for outcome in ends(2, tmp_path, _sends_then_collective, shape=SMALL):
        assert outcome.error is None, outcome.error


def _close_behind_a_send(comm: Communicator, size: int) -> None:
    if comm.rank == 0:
        comm.send(_bytes(3, size), 1, async_op=True)
        comm.close()
        return
    time.sleep(0.5)
    buffer = np.zeros(size, np.uint8)
    comm.recv(buffer, 0)
    np.testing.assert_array_equal(buffer, _bytes(3, size))


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_closing_sends_what_is_queued(tmp_path: Path, size: int) -> None:
    for outcome in ends(2, tmp_path, _close_behind_a_send, size):
        assert outcome.error is None, outcome.error
    assert not left_behind()


def _close_with_a_receive(comm: Communicator) -> str:
    if comm.rank == 1:
        time.sleep(0.3)
        return ""
    buffer = np.full(4, 7, np.int32)
    work = comm.recv(buffer, 1, async_op=True)
    comm.close()
    with pytest.raises(SecureCollError, match="closed before a message came"):
        work.wait()
    return str(buffer.tolist())


def test_a_receive_in_flight_ends_when_the_communicator_closes(tmp_path: Path) -> None:
    first, second = ends(2, tmp_path, _close_with_a_receive)
    assert first.error is None and second.error is None, first.error
    assert first.value == "[0, 0, 0, 0]"


def _strided_keys(comm: Communicator) -> int:
    """Both ends step their keys at the same records."""
    for i in range(60):
        if comm.rank == 0:
            comm.send(_bytes(i, 3000), 1)
        else:
            got = np.zeros(3000, np.uint8)
            comm.recv(got, 0)
            np.testing.assert_array_equal(got, _bytes(i, 3000))
    if comm.rank == 0:
        comm.send(_bytes(99, 300_000), 1)
    else:
        large = np.zeros(300_000, np.uint8)
        comm.recv(large, 0)
        np.testing.assert_array_equal(large, _bytes(99, 300_000))
    return comm.stats().bytes_sealed


@pytest.mark.parametrize("budget", [1, 300, 1000])
def test_keys_step_by_what_was_sent(tmp_path: Path, budget: int) -> None:
    shape = Shape(4096, 4, 2, budget_blocks=budget)
    for outcome in ends(2, tmp_path, _strided_keys, shape=shape):
        assert outcome.error is None, outcome.error


# What goes wrong


def _differ(comm: Communicator, sent: Any, received: Any) -> None:
    if comm.rank == 0:
        comm.send(np.zeros(*sent), 1, tag=4)
        comm.barrier()  # the send itself may be done before it meets its receive
    else:
        comm.recv(np.zeros(*received), 0, tag=4)


@pytest.mark.parametrize(
    ("sent", "received", "texts"),
    [
        ((100, np.float32), (200, np.float32), ("float32[100]", "float32[200]")),
        ((100, np.float32), (100, np.int32), ("float32[100]", "int32[100]")),
        ((300_000, np.uint8), (300_001, np.uint8), ("uint8[300000]", "uint8[300001]")),
    ],
)
def test_a_send_and_a_receive_that_differ_end_both_ranks(
    tmp_path: Path, sent: Any, received: Any, texts: tuple[str, str]
) -> None:
    outcomes = ends(2, tmp_path, _differ, sent, received)
    for outcome in outcomes:
        assert isinstance(outcome.error, MismatchError), outcome.error
        assert outcome.seconds < 2
        for text in (*texts, "tag=4"):
            assert text in str(outcome.error)


def _wrong(comm: Communicator) -> list[str]:
    texts = []
    calls: list[Any] = [
        lambda: comm.send(np.zeros(3), comm.rank),
        lambda: comm.recv(np.zeros(3), comm.rank),
        lambda: comm.send(np.zeros(3), 2),
        lambda: comm.recv(np.zeros(3), -1),
        lambda: comm.send(np.zeros(3), 1 - comm.rank, tag=-1),
        lambda: comm.send(np.zeros((4, 4))[:, 1], 1 - comm.rank),
        lambda: comm.send(np.zeros(3), 1 - comm.rank, timeout=0),
        lambda: comm.recv(b"abc", 1 - comm.rank),
    ]
    for call in calls:
        with pytest.raises(ConfigError) as error:
            call()
        texts.append(str(error.value))
    comm.barrier()  # nothing was sent, and the group goes on
    return texts


def test_calls_that_cannot_be_right_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for rank, outcome in enumerate(ends(2, tmp_path, _wrong)):
        assert outcome.error is None, outcome.error
        assert all(text.startswith(f"rank {rank}: ") for text in outcome.value)


def _nobody_sends(comm: Communicator, source: int | None) -> None:
    if comm.rank == 0:
        comm.recv(np.zeros(3), source, tag=5, timeout=0.5)
    else:
        time.sleep(1.5)
        comm.barrier()


@pytest.mark.parametrize("source", [1, None])
def test_a_receive_that_nobody_serves_ends_at_its_timeout(tmp_path: Path, source: int | None) -> None:
    first, second = ends(2, tmp_path, _nobody_sends, source)
    assert isinstance(first.error, CollectiveTimeout) and 0.4 < first.seconds < 1.5
    assert "recv(float64[3]" in str(first.error) and "rank 1" in str(first.error) and "tag=5" in str(first.error)
    assert isinstance(second.error, CollectiveTimeout) and "recv(float64[3]" in str(second.error)


def _wait_for_the_dead(comm: Communicator, what: str) -> None:
    if comm.rank == 1:
        time.sleep(60)
    if what == "recv":
        comm.recv(np.zeros(3), 1)
    elif what == "any":
        comm.recv(np.zeros(3))
    else:
        comm.send(np.zeros(1 << 20), 1)


@pytest.mark.parametrize("what", ["recv", "any", "send"])
def test_a_dead_peer_ends_messages_with_it(tmp_path: Path, what: str) -> None:
    with group(2, tmp_path, _wait_for_the_dead, what) as ranks:
        ranks.wait_joined()
        time.sleep(0.3)
        ranks.kill(1)
        killed = time.monotonic()
        first, _ = ranks.finish()
        assert time.monotonic() - killed < 2.5
    assert isinstance(first.error, PeerLostError) and "rank 1 is gone" in str(first.error)


def _the_sender_leaves(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.send(np.arange(3), 0)
        comm.close()
        return
    time.sleep(0.3)
    got = np.zeros(3, int)
    comm.recv(got, 1)  # sent before it left
    assert got.tolist() == [0, 1, 2]
    comm.recv(got, 1)


def test_what_was_sent_before_a_peer_left_arrives_and_nothing_more(tmp_path: Path) -> None:
    first, second = ends(2, tmp_path, _the_sender_leaves)
    assert second.error is None
    assert isinstance(first.error, PeerLostError) and "closed its communicator" in str(first.error)


def _abort(comm: Communicator) -> str:
    if comm.rank == 1:
        time.sleep(0.2)
        comm.abort("enough")
        return ""
    buffer = np.full(1000, 5, np.int32)
    work = comm.recv(buffer, 1, async_op=True)
    with pytest.raises(PeerLostError):
        work.wait()
    with pytest.raises(PeerLostError, match="cannot be used any more"):
        comm.send(buffer, 1)
    return f"{buffer.min()} {buffer.max()}"


def test_an_abort_ends_messages_and_zeroes_buffers(tmp_path: Path) -> None:
    first, _ = ends(2, tmp_path, _abort)
    assert first.error is None and first.value == "0 0", first.error


def _alone(comm: Communicator) -> None:
    with pytest.raises(ConfigError, match="rank 0: send: "):
        comm.send(np.zeros(1), 0)


def test_nobody_has_messages_with_itself(tmp_path: Path) -> None:
    (only,) = ends(1, tmp_path, _alone)
    assert only.error is None


def _memory(comm: Communicator) -> tuple[int, int]:
    before = comm.shared_bytes
    if comm.rank == 0:
        comm.send(np.zeros(1 << 20), 1)
    else:
        comm.recv(np.zeros(1 << 20), 0)
    comm.barrier()
    return before, comm.shared_bytes


def test_shared_memory_for_messages_is_taken_when_there_are_some(tmp_path: Path, transport: str) -> None:
    lane = 16 * (65536 + 4096)
    first, second = ends(2, tmp_path, _memory)
    shared = transport == "shared memory"
    assert first.value[1] - first.value[0] == (2 * lane if shared else 0)
    assert second.value[1] - second.value[0] == (lane if shared else 0)  # for its answers
