"""Plans: algorithms as data.

:func:`plan` builds what one rank does for one collective, on a :class:`~securecoll.plan.topology.Topology`;
:mod:`securecoll.plan.check` proves the plans of all ranks together, :mod:`securecoll.plan.cost` and
:mod:`securecoll.plan.estimate` price them, :mod:`securecoll.plan.tuner` picks an algorithm and a chunk,
:mod:`securecoll.plan.peers` tells whom they meet, and :mod:`securecoll.plan.picture` draws them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from struct import pack

from securecoll.codes import Collective
from securecoll.plan import direct, hierarchical, one_shot, recursive_doubling, ring, tree
from securecoll.plan.call import ALIGNMENT, PARTED, REDUCTIONS, ROOTED, Call
from securecoll.plan.ir import INPUT, OUTPUT, Block, Generator, Plan, Step, StepOp, encode
from securecoll.plan.topology import Topology

__all__ = ["ALGORITHMS", "MAX_RECORDS", "VERSION", "Plan", "Topology", "encode", "plan"]

VERSION = 3
"""Of the generators. Raise it with any change to what they generate: ranks with different versions must not meet."""

MAX_RECORDS = 1 << 24
"""Records that a stream may have in one collective: a nonce has 24 bits for them."""

_CROWDED = frozenset({Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER})
"""Where slices of several ranks of a host share the lanes of a ring of hosts."""

_GENERATORS: dict[str, dict[Collective, Generator]] = {
    "one_shot": one_shot.GENERATORS,
    "direct": direct.GENERATORS,
    "ring": ring.GENERATORS,
    "tree": tree.GENERATORS,
    "recursive_doubling": recursive_doubling.GENERATORS,
    "hierarchical": hierarchical.GENERATORS,
}

ALGORITHMS: dict[Collective, tuple[str, ...]] = {
    collective: tuple(name for name, table in _GENERATORS.items() if collective in table) for collective in Collective
}
"""The algorithms that each collective has; the first one serves every call."""


def plan(
    collective: Collective,
    rank: int,
    size: int,
    *,
    nbytes: int,
    itemsize: int,
    root: int = 0,
    counts: Sequence[int] | None = None,
    send: Sequence[int] | None = None,
    recv: Sequence[int] | None = None,
    chunk: int,
    wave: int,
    algorithm: str,
    topology: Topology | None = None,
) -> Plan:
    """What ``rank`` does for this call.

    Args:
        collective: What the group does.
        rank: This rank, in the group.
        size: Ranks in the group.
        nbytes: Bytes; of what, see :class:`~securecoll.plan.call.Call`.
        itemsize: Bytes of an element; 1 for a barrier.
        root: The root of broadcast, reduce, gather and scatter; ignored by the others.
        counts: Bytes of each rank's part where they are uneven (reduce_scatter, all_gather, gather, scatter).
        send: Bytes to each peer of an uneven all_to_all.
        recv: Bytes from each peer of an uneven all_to_all.
        chunk: Bytes a record carries at most, a multiple of 64.
        wave: Chunks in a wave. Lanes need a slot more, or rings deadlock. (The hierarchical algorithm makes waves of
            fewer chunks where hosts are uneven, and keeps to that.)
        algorithm: One of ``ALGORITHMS[collective]``.
        topology: The host of each rank; all on one where not given.

    Raises:
        ValueError: says which argument is wrong, what was expected and what was given.
    """
    if algorithm not in ALGORITHMS[collective]:
        offered = ", ".join(ALGORITHMS[collective])
        raise ValueError(f"{collective.name.lower()} has the algorithms {offered}, not {algorithm!r}")
    if chunk < ALIGNMENT or chunk % ALIGNMENT:
        raise ValueError(f"chunk must be a positive multiple of {ALIGNMENT} bytes, not {chunk}")
    if wave < 1:
        raise ValueError(f"wave must be at least 1, not {wave}")
    if topology is None:
        topology = Topology.single(max(size, 1))
    if not serves(collective, algorithm, topology, wave):
        raise ValueError(
            f"hosts are too uneven for the hierarchical algorithm with waves of {wave}: it would need waves of "
            f"{topology.crowding}; use ring"
        )
    parts = None if counts is None else tuple(counts)
    if parts is not None and collective in PARTED and len(parts) == size and len({*parts}) == 1 and not nbytes:
        nbytes, parts = parts[0], None  # even parts are the same call however they were written down
    call = Call(
        collective,
        rank,
        size,
        topology,
        nbytes,
        itemsize,
        root if collective in ROOTED else 0,
        parts,
        None if send is None else tuple(send),
        None if recv is None else tuple(recv),
    )
    steps, blocks = _generator(call, algorithm)(call, chunk)
    last = max((step.record + -(-step.length // chunk) for step in steps if step.stream is not None), default=0)
    if last > MAX_RECORDS:
        raise ValueError(f"a collective may have {MAX_RECORDS} records on a stream, not {last}: split it")
    return Plan(
        collective,
        algorithm,
        rank,
        size,
        chunk,
        wave // _sharers(collective, algorithm, topology),
        tuple(steps),
        identity=_identity(call, algorithm, chunk, wave),
        call=call,
        blocks=blocks,
    )


def serves(collective: Collective, algorithm: str, topology: Topology, wave: int) -> bool:
    """Whether an algorithm of a collective can run with waves of at most ``wave`` chunks."""
    return wave >= _sharers(collective, algorithm, topology)


def _sharers(collective: Collective, algorithm: str, topology: Topology) -> int:
    """Steps of one turn of a ring of hosts that may share a lane.

    A ring runs with a slot more than a turn has records in a wave, so these steps must share the wave's chunks.
    """
    return topology.crowding if algorithm == "hierarchical" and collective in _CROWDED else 1


def _generator(call: Call, algorithm: str) -> Generator:
    if call.size == 1:
        return _alone
    # A rank that sends and receives nothing cannot tell whether an all_to_all is empty: its edges always have records.
    if not call.total and call.collective not in (Collective.ALL_TO_ALL, Collective.BARRIER):
        return one_shot.nothing if call.topology.is_single else hierarchical.barrier
    return _GENERATORS[algorithm][call.collective]


def _alone(call: Call, chunk: int) -> tuple[list[Step], int]:
    """A group of one: no lanes and no records. A reduction still scales and divides."""
    length = call.output_bytes
    if not length:
        return [], 0
    reduces = call.collective in REDUCTIONS
    step = Step(
        StepOp.REDUCE if reduces else StepOp.COPY,
        length,
        block=Block(OUTPUT, 0, length),
        sources=(Block(INPUT, 0, length),),
        scale=reduces,
        finish=reduces,
    )
    return [step], 0


def _identity(call: Call, algorithm: str, chunk: int, wave: int) -> bytes:
    """SHA-256 over all that the group agrees on, encoded as docs/protocol.md does with its label and u32 lengths.

    Of an all_to_all only what both ends of any edge know enters: no sizes, since uneven ones differ by edge, and a
    rank with even ones may meet a rank that spells them out. Each edge's descriptor holds its own size.
    """
    sized = call.collective is not Collective.ALL_TO_ALL
    parts = (
        pack(">I", VERSION),
        pack(">B", call.collective),
        algorithm.encode(),
        pack(">I", call.size),
        pack(">Q", call.nbytes) if sized else b"",
        pack(f">{len(call.counts)}Q", *call.counts) if call.counts is not None else b"",
        pack(">I", call.itemsize),
        pack(">I", call.root),
        b"" if call.topology.is_single else pack(f">{call.size}I", *call.topology.hosts),
        pack(">I", chunk),
        pack(">I", wave),
    )
    digest = hashlib.sha256(b"SCOLL/1 plan\0")
    for part in parts:
        digest.update(pack(">I", len(part)) + part)
    return digest.digest()
