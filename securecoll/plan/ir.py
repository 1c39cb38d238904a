"""The plan: what one rank does for one collective, as data.

A plan is built by a pure function of (collective, algorithm, rank, topology, sizes), proven by
:mod:`securecoll.plan.check`, priced by :mod:`securecoll.plan.cost` and run by the engine, which knows no
collective and no cipher.

How a plan runs
---------------
A step covers ``length`` bytes in chunks of ``Plan.chunk`` bytes, one record each: chunk ``k`` covers bytes
``[k * chunk, min((k + 1) * chunk, length))`` of its blocks, and is record ``record + k`` of its stream. A step with
``length == 0`` is one chunk with an empty record and no block; generators emit one only where the protocol wants an
empty record (barriers, zero-byte operations, pairwise operations).

Chunk ``k`` belongs to wave ``k // Plan.wave``. Records on a lane are ordered by (wave, step, chunk), where *step* is
the step's index in this rank's plan; the sender's and the receiver's plan must give every lane the same order.

Each step has its own cursor and runs its chunks in order. Chunk ``k`` of step ``s`` may run once

* for every ``d`` in ``s.after``: chunk ``min(k, chunks(d) - 1)`` of step ``d`` is done;
* on every lane it uses, all records before its own in that lane's order are done;
* every lane it reads holds that record, and every lane it writes has a free slot: fewer than the lane's depth of
  records are still unread by any of its readers.

Once a chunk may run it stays so until it does, whatever else runs: so every order of execution ends alike, and one
simulated order decides whether a set of plans can deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from securecoll.codes import Collective
from securecoll.plan.call import Call

INPUT = 0
"""Buffer number of what this rank contributes."""
OUTPUT = 1
"""Buffer number of what this rank receives. May be the same memory as the input; see ``check``'s in-place rules."""


class StepOp(IntEnum):
    """What a step does."""

    SEAL = 1
    """Seal ``block`` on ``stream`` into ``lanes`` (one sealing; the ciphertext goes to each lane)."""
    OPEN = 2
    """Open the one source record into ``block``."""
    REDUCE = 3
    """Combine ``sources`` in the order given into ``block`` and/or seal the result on ``stream`` into ``lanes``."""
    FORWARD = 4
    """Pass the one source record on to ``lanes`` unopened; with a ``block``, open it there too, from the same read."""
    COPY = 5
    """Copy the one source block to ``block`` (nothing happens when they are the same memory)."""


@dataclass(frozen=True, slots=True)
class Block:
    """``length`` bytes at ``offset`` of a buffer."""

    buffer: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Who seals and who opens. ``reader`` is -1 for a sender stream, which every member may open."""

    writer: int
    reader: int = -1


@dataclass(frozen=True, slots=True)
class Record:
    """Where records come from: chunk ``k`` is record ``record + k`` of ``stream``, read from ``lane``."""

    lane: int
    stream: Stream
    record: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One step. Fields that do not apply stay at their defaults."""

    op: StepOp
    length: int
    block: Block | None = None
    sources: tuple[Block | Record, ...] = ()
    lanes: tuple[int, ...] = ()
    stream: Stream | None = None
    record: int = 0
    after: tuple[int, ...] = ()
    scale: bool = False
    """PREMUL_SUM: multiply this step's own block (SEAL's block, REDUCE's block sources) by this rank's factor."""
    finish: bool = False
    """AVG: divide this step's result (REDUCE) by the number of ranks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's plan.

    Lanes are numbered per rank. Written: ``p`` is the lane to rank ``p``, on this host or another; ``size`` the lane
    from this rank to all others of its host. Read: ``p`` is the lane from rank ``p`` to this rank; ``size + p`` rank
    ``p``'s lane to all, which every other rank of its host, and no other one, must read record for record.
    """

    collective: Collective
    algorithm: str
    rank: int
    size: int
    chunk: int
    """Bytes a record carries at most: a multiple of 64."""
    wave: int
    """Chunks in a wave."""
    steps: tuple[Step, ...]
    identity: bytes = field(repr=False, default=b"")
    """32 bytes, equal on all ranks: what was planned, by which version of which generator."""
    call: Call | None = field(repr=False, default=None)
    """What the plan is for. The engine does not look at it; the checker compares what the plan does with it."""
    blocks: int = 0
    """The most cipher blocks that any stream of any rank seals: each record costs ceil(length / 16) + 3. Equal on all
    ranks; the key budget counts it. Where no rank knows every edge (all_to_all) it is a bound that the generator
    enforces."""


Generator = Callable[[Call, int], tuple[list[Step], int]]
"""Of a call on two or more ranks that moves at least a byte, and the chunk: its steps and ``Plan.blocks``."""


def to_rank(peer: int) -> int:
    """The lane that this rank writes for ``peer`` alone."""
    return peer


def to_all(size: int) -> int:
    """The lane that this rank writes for all others of its host."""
    return size


def from_rank(peer: int) -> int:
    """The lane that ``peer`` writes for this rank alone."""
    return peer


def from_all(size: int, peer: int) -> int:
    """The lane that ``peer``, a rank of this host, writes for all others of it."""
    return size + peer


def records(length: int, chunk: int) -> int:
    """Chunks, and so records, of a step that covers ``length`` bytes."""
    return max(1, -(-length // chunk))


def cipher_blocks(length: int, chunk: int) -> int:
    """What sealing ``length`` bytes in chunks costs a stream's budget: ceil(bytes / 16) + 3 for each record."""
    whole, rest = divmod(length, chunk)
    ragged = -(-rest // 16) + 3 if rest or not whole else 0
    return whole * (chunk // 16 + 3) + ragged


EncodedSource = tuple[int, int, int, int, int]
"""A block ``(0, buffer, offset, 0, 0)`` or a record ``(1, lane, writer, reader, record)``."""

EncodedStep = tuple[
    int, int, int, int, int, int, int, bool, bool, tuple[int, ...], tuple[int, ...], tuple[EncodedSource, ...]
]
"""``(op, length, buffer, offset, writer, reader, record, scale, finish, after, lanes, sources)``; buffer is -1 where
the step has no block, writer where it has no stream."""

EncodedPlan = tuple[int, int, int, bytes, tuple[EncodedStep, ...]]
"""``(chunk, wave, blocks, identity, steps)``."""


def encode(plan: Plan) -> EncodedPlan:
    """The plan as flat tuples of ints, for the engine."""
    return plan.chunk, plan.wave, plan.blocks, plan.identity, tuple(_encode_step(step) for step in plan.steps)


def _encode_step(step: Step) -> EncodedStep:
    block, stream = step.block, step.stream
    return (
        int(step.op),
        step.length,
        -1 if block is None else block.buffer,
        0 if block is None else block.offset,
        -1 if stream is None else stream.writer,
        -1 if stream is None else stream.reader,
        step.record,
        step.scale,
        step.finish,
        step.after,
        step.lanes,
        tuple(
            (0, source.buffer, source.offset, 0, 0)
            if isinstance(source, Block)
            else (1, source.lane, source.stream.writer, source.stream.reader, source.record)
            for source in step.sources
        ),
    )
