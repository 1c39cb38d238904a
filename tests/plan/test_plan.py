"""What :func:`securecoll.plan.plan` accepts, refuses and encodes."""

from __future__ import annotations

import hashlib
import time
from struct import pack

import pytest

from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS, Plan, encode, plan
from securecoll.plan.call import slices
from securecoll.plan.ir import INPUT, OUTPUT, Block, Record, StepOp, Stream, cipher_blocks, records
from securecoll.plan.one_shot import ALL_TO_ALL_EDGE_BYTES
from securecoll.plan.topology import Topology
from tests.plan.cases import EVERY, NAMES, filling, group


def make(collective: Collective = Collective.ALL_REDUCE, rank: int = 0, size: int = 2, **changes: object) -> Plan:
    given: dict[str, object] = {
        "nbytes": 64,
        "itemsize": 4,
        "chunk": 64,
        "wave": 8,
        "algorithm": ALGORITHMS[collective][0],
    }
    return plan(collective, rank, size, **{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "changes", "sentence"),
    [
        (Collective.GATHER, {"algorithm": "ring"}, "gather has the algorithms one_shot, not 'ring'"),
        (Collective.ALL_REDUCE, {"chunk": 0}, "chunk must be a positive multiple of 64 bytes, not 0"),
        (Collective.ALL_REDUCE, {"chunk": 100}, "chunk must be a positive multiple of 64 bytes, not 100"),
        (Collective.ALL_REDUCE, {"wave": 0}, "wave must be at least 1, not 0"),
        (Collective.ALL_REDUCE, {"rank": 2}, "rank must be in [0, size) and size at least 1, not rank 2 of 2"),
        (Collective.ALL_REDUCE, {"size": 0}, "rank must be in [0, size) and size at least 1, not rank 0 of 0"),
        (
            Collective.ALL_REDUCE,
            {"topology": Topology.single(3)},
            "the topology must have one host per rank, 2, not 3",
        ),
        (Collective.BROADCAST, {"root": 2}, "root must be a rank in [0, 2), not 2"),
        (Collective.ALL_REDUCE, {"itemsize": 3}, "itemsize must divide 64, not 3"),
        (Collective.ALL_REDUCE, {"nbytes": 6}, "nbytes must hold whole elements of 4 bytes, not 6"),
        (Collective.ALL_REDUCE, {"nbytes": -4}, "nbytes must hold whole elements of 4 bytes, not -4"),
        (Collective.ALL_REDUCE, {"counts": (64, 64)}, "all_reduce takes no counts"),
        (Collective.ALL_GATHER, {"counts": (4, 8)}, "nbytes must be 0 where counts is given, not 64"),
        (Collective.ALL_GATHER, {"nbytes": 0, "counts": (4,)}, "counts must have one entry per rank, 2, not 1"),
        (Collective.ALL_GATHER, {"nbytes": 0, "counts": (4, 6)}, "counts must hold whole elements of 4 bytes..."),
        (Collective.ALL_GATHER, {"nbytes": 0, "counts": (4, -4)}, "counts must hold whole elements of 4 bytes..."),
        (Collective.ALL_TO_ALL, {"nbytes": 0, "send": (4, 4)}, "an uneven all_to_all needs both send and recv"),
        (Collective.ALL_GATHER, {"send": (4, 4), "recv": (4, 4)}, "all_gather takes no send and recv"),
        (
            Collective.ALL_TO_ALL,
            {"nbytes": 0, "send": (4, 4), "recv": (8, 4)},
            "this rank sends itself 4 bytes but...",
        ),
        (Collective.ALL_TO_ALL, {"nbytes": ALL_TO_ALL_EDGE_BYTES + 4}, "all_to_all moves at most 4294967296 bytes..."),
        (Collective.BARRIER, {"nbytes": 4}, "a barrier carries nothing, not 4 bytes"),
        (Collective.BROADCAST, {"nbytes": 64 << 24, "chunk": 64}, None),
        (Collective.BROADCAST, {"nbytes": (64 << 24) + 4}, "a collective may have 16777216 records on a stream..."),
    ],
)
def test_bad_calls_are_refused(collective: Collective, changes: dict[str, object], sentence: str | None) -> None:
    if sentence is None:
        assert make(collective, **changes).steps  # type: ignore[arg-type]
        return
    with pytest.raises(ValueError) as caught:
        make(collective, **changes)  # type: ignore[arg-type]
    if sentence.endswith("..."):
        assert str(caught.value).startswith(sentence[:-3])
    else:
        assert str(caught.value) == sentence


def test_slices_are_even_in_cache_lines_and_cover_the_buffer() -> None:
    for size in (1, 2, 3, 7, 64):
        for nbytes in (0, 1, 63, 64, 65, 64 * size - 1, 64 * size + 1, 10_000):
            spans = slices(nbytes, size)
            assert [start for start, _ in spans[1:]] == [start + length for start, length in spans[:-1]]
            assert sum(length for _, length in spans) == nbytes
            assert all(start % 64 == 0 for start, length in spans if length)
            lines = [-(-length // 64) for _, length in spans]
            assert max(lines) - min(lines) <= 1


def test_cipher_blocks_are_the_sum_over_records() -> None:
    for length in (0, 1, 16, 64, 65, 128, 1000):
        lengths = [min(64, length - k * 64) for k in range(records(length, 64))]
        assert cipher_blocks(length, 64) == sum(-(-n // 16) + 3 for n in lengths)


def test_slices_are_reduced_in_rank_order() -> None:
    for algorithm in ("one_shot", "direct"):
        for made in group(Collective.ALL_REDUCE, algorithm, 4, 4 * 64):
            (combine,) = [step for step in made.steps if step.finish]
            writers = [made.rank if isinstance(s, Block) else s.stream.writer for s in combine.sources]
            assert writers == [0, 1, 2, 3]


def test_others_than_the_root_never_write_memory_in_a_reduce() -> None:
    for algorithm in ALGORITHMS[Collective.REDUCE]:
        for made in group(Collective.REDUCE, algorithm, 4, 4 * 64, root=1):
            if made.rank != 1:
                assert all(step.op is StepOp.SEAL or step.block is None for step in made.steps)


def test_a_group_of_one_needs_no_lanes() -> None:
    for collective, algorithm in EVERY:
        (made,) = group(collective, algorithm, 1, filling(collective, 1, 64))
        assert all(not step.lanes and step.stream is None for step in made.steps)
        assert made.blocks == 0


def test_encoding() -> None:
    made = make(size=3, nbytes=3 * 64, algorithm="direct")
    chunk, wave, blocks, identity, steps = encode(made)
    assert (chunk, wave, blocks, identity) == (64, 8, 7, made.identity)
    seal = (1, 64, INPUT, 64, 0, 1, 0, True, False, (), (1,), ())
    reduce = (
        3,
        64,
        OUTPUT,
        0,
        0,
        -1,
        0,
        True,
        True,
        (),
        (3,),
        ((0, INPUT, 0, 0, 0), (1, 1, 1, 0, 0), (1, 2, 2, 0, 0)),
    )
    take = (2, 64, OUTPUT, 128, -1, -1, 0, False, False, (), (), ((1, 5, 2, -1, 0),))
    assert (steps[0], steps[2], steps[4]) == (seal, reduce, take)
    empty = encode(make(Collective.BARRIER, nbytes=0))[4]
    assert empty[0] == (1, 0, -1, 0, 0, -1, 0, False, False, (), (2,), ())


def test_identity_is_the_documented_hash() -> None:
    for topology, hosts in ((None, b""), (Topology.single(3), b""), (Topology((0, 1, 0)), pack(">3I", 0, 1, 0))):
        parts = [pack(">I", 3), b"\1", b"ring", pack(">I", 3), pack(">Q", 192), b"", pack(">I", 4), pack(">I", 0)]
        parts += [hosts, pack(">I", 64), pack(">I", 8)]
        text = b"SCOLL/1 plan\0" + b"".join(pack(">I", len(part)) + part for part in parts)
        made = make(size=3, nbytes=192, algorithm="ring", topology=topology)
        assert made.identity == hashlib.sha256(text).digest()


def test_identity_tells_calls_apart_and_is_equal_on_all_ranks() -> None:
    base: dict[str, object] = {"collective": Collective.REDUCE, "nbytes": 128, "algorithm": "direct"}
    others: list[dict[str, object]] = [
        {"collective": Collective.ALL_REDUCE},
        {"algorithm": "ring"},
        {"nbytes": 64},
        {"itemsize": 8},
        {"root": 1},
        {"chunk": 128},
        {"wave": 4},
        {"size": 3},
        {"topology": Topology.even(2, 1)},
    ]
    seen = {make(**{**base, **change}).identity for change in [{}, *others]}  # type: ignore[arg-type]
    assert len(seen) == 1 + len(others)
    assert make(rank=1, **base).identity == make(rank=0, **base).identity  # type: ignore[arg-type]
    uneven = [make(Collective.ALL_GATHER, nbytes=0, counts=counts).identity for counts in ((4, 8), (8, 4))]
    assert len({*uneven}) == 2


def test_even_counts_are_the_even_call() -> None:
    even, spelled = (
        make(Collective.ALL_GATHER, nbytes=nbytes, counts=counts) for nbytes, counts in ((64, None), (0, [64, 64]))
    )
    assert even == spelled


def test_ranks_of_an_all_to_all_need_not_know_each_others_sizes() -> None:
    even = make(Collective.ALL_TO_ALL, nbytes=0)
    uneven = make(Collective.ALL_TO_ALL, nbytes=0, send=(4, 0), recv=(4, 128))
    assert even.identity == uneven.identity
    assert even.blocks == uneven.blocks
    assert all(Record(1, Stream(1, 0)) in made.steps[1].sources for made in (even, uneven))


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_building_a_plan_takes_under_a_millisecond(collective: Collective, algorithm: str) -> None:
    """The best of many, since other work shares the machine."""
    nbytes = filling(collective, 8, 1 << 20)
    best = float("inf")
    for attempt in range(50):
        start = time.perf_counter()
        made = make(
            collective, size=8, nbytes=nbytes + 64 * attempt * bool(nbytes), chunk=1 << 16, algorithm=algorithm
        )
        encode(made)
        best = min(best, time.perf_counter() - start)
    assert best < 1e-3
