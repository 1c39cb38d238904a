"""Ring: each rank reads from the one before it and writes to the one after it.

Ranks are in the order of their hosts, so that each host is entered once and left once. Partial sums are opened, added
to and sealed anew at each hop, on link streams; what is complete is sealed once, on its owner's sender stream, and
passed on as ciphertext: an all_reduce seals ``nbytes`` and opens ``2 * nbytes * (size - 1) / size`` on every rank, as
the direct one does, where sealing each hop anew would seal as much as it opens. (The ring itself: Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.)
"""

from __future__ import annotations

from collections.abc import Sequence

from securecoll.codes import Collective
from securecoll.plan.call import Call, Span, slices
from securecoll.plan.delivery import opened
from securecoll.plan.ir import (
    INPUT,
    OUTPUT,
    Block,
    Generator,
    Record,
    Step,
    StepOp,
    Stream,
    cipher_blocks,
    from_rank,
    records,
    to_rank,
)


def all_reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Reduce-scatter of slices, then all-gather of the sums; the step that completes a sum seals it too."""
    own, spans = call.rank, slices(call.nbytes, call.size)
    following = to_rank(_neighbours(call)[1])
    steps = _partial_sums(call, spans, chunk)
    if spans[own][1]:
        steps.append(_complete(call, spans, chunk, Block(OUTPUT, *spans[own]), Stream(own), following))
    steps += _pass_on(call, spans)
    return steps, max(_partial_blocks(spans, chunk), cipher_blocks(spans[0][1], chunk))


def reduce_scatter(call: Call, chunk: int) -> tuple[list[Step], int]:
    """The sum of a part starts after its owner and grows around the ring until it comes home."""
    spans = call.parts
    length = spans[call.rank][1]
    steps = _partial_sums(call, spans, chunk)
    if length:
        steps.append(_complete(call, spans, chunk, Block(OUTPUT, 0, length)))
    return steps, _partial_blocks(spans, chunk)


def all_gather(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every part is sealed once and travels around the ring as it is."""
    own, spans, steps = call.rank, call.parts, []
    length = spans[own][1]
    if length:
        mine, following = Block(INPUT, 0, length), to_rank(_neighbours(call)[1])
        steps = [
            Step(StepOp.SEAL, length, block=mine, lanes=(following,), stream=Stream(own)),
            Step(StepOp.COPY, length, block=Block(OUTPUT, *spans[own]), sources=(mine,)),
        ]
    steps += _pass_on(call, spans)
    return steps, cipher_blocks(max(length for _, length in spans), chunk)


def broadcast(call: Call, chunk: int) -> tuple[list[Step], int]:
    """A chain from the root: chunks follow each other, so its length adds latency but takes no bandwidth."""
    blocks, whole = cipher_blocks(call.nbytes, chunk), Block(OUTPUT, 0, call.nbytes)
    root, chain = call.root, call.topology.outward(call.root)
    place = chain.index(call.rank)
    following = tuple(to_rank(p) for p in chain[place + 1 : place + 2])
    if not place:
        mine = Block(INPUT, 0, call.nbytes)
        return [
            Step(StepOp.SEAL, call.nbytes, block=mine, lanes=following, stream=Stream(root)),
            Step(StepOp.COPY, call.nbytes, block=whole, sources=(mine,)),
        ], blocks
    return [opened(whole, Record(from_rank(chain[place - 1]), Stream(root)), following)], blocks


def reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """A chain to the root, which ends on its host: each adds its own contribution and seals the sum for the next."""
    own, blocks, mine = call.rank, cipher_blocks(call.nbytes, chunk), Block(INPUT, 0, call.nbytes)
    chain = call.topology.inward(call.root)
    place = chain.index(own)
    following = chain[(place + 1) % call.size]
    if not place:
        seal = Step(
            StepOp.SEAL,
            call.nbytes,
            block=mine,
            lanes=(to_rank(following),),
            stream=Stream(own, following),
            scale=True,
        )
        return [seal], blocks
    previous = chain[place - 1]
    sources = (Record(from_rank(previous), Stream(previous, own)), mine)
    if own == call.root:
        whole = Block(OUTPUT, 0, call.nbytes)
        return [Step(StepOp.REDUCE, call.nbytes, block=whole, sources=sources, scale=True, finish=True)], blocks
    add = Step(
        StepOp.REDUCE,
        call.nbytes,
        sources=sources,
        lanes=(to_rank(following),),
        stream=Stream(own, following),
        scale=True,
    )
    return [add], blocks


def _neighbours(call: Call) -> tuple[int, int]:
    """The ranks before and after this one."""
    order, position = call.topology.order, call.topology.positions[call.rank]
    return order[position - 1], order[(position + 1) % call.size]


def _backward(call: Call, rank: int, spans: Sequence[Span]) -> list[int]:
    """Owners of slices that are not empty, from the one before ``rank`` back around to the one after it.

    This is the order in which ``rank`` meets them: the slice of the owner at distance d passes it at step d - 1.
    """
    order, position = call.topology.order, call.topology.positions[rank]
    return [p for p in (*order[:position][::-1], *order[position + 1 :][::-1]) if spans[p][1]]


def _partial_sums(call: Call, spans: Sequence[Span], chunk: int) -> list[Step]:
    """The sums of others' slices: started by this rank, or opened, added to and sealed for the next."""
    own = call.rank
    previous, following = _neighbours(call)
    arriving = _positions(call, previous, spans, chunk)
    steps, record = [], 0
    for owner in _backward(call, own, spans):
        length = spans[owner][1]
        mine = Block(INPUT, *spans[owner])
        starts = owner == previous
        steps.append(
            Step(
                StepOp.SEAL if starts else StepOp.REDUCE,
                length,
                block=mine if starts else None,
                sources=() if starts else (Record(from_rank(previous), Stream(previous, own), arriving[owner]), mine),
                lanes=(to_rank(following),),
                stream=Stream(own, following),
                record=record,
                scale=True,
            )
        )
        record += records(length, chunk)
    return steps


def _positions(call: Call, rank: int, spans: Sequence[Span], chunk: int) -> dict[int, int]:
    """The first record that each owner's slice has on the link from ``rank`` to the next."""
    positions, record = {}, 0
    for owner in _backward(call, rank, spans):
        positions[owner] = record
        record += records(spans[owner][1], chunk)
    return positions


def _complete(
    call: Call,
    spans: Sequence[Span],
    chunk: int,
    block: Block,
    stream: Stream | None = None,
    lane: int | None = None,
) -> Step:
    """The last addition to this rank's own slice."""
    own, previous = call.rank, _neighbours(call)[0]
    arriving = Record(from_rank(previous), Stream(previous, own), _positions(call, previous, spans, chunk)[own])
    return Step(
        StepOp.REDUCE,
        block.length,
        block=block,
        sources=(arriving, Block(INPUT, *spans[own])),
        lanes=() if lane is None else (lane,),
        stream=stream,
        scale=True,
        finish=True,
    )


def _pass_on(call: Call, spans: Sequence[Span]) -> list[Step]:
    """Others' complete parts: opened here and, but for the one that came all the way, passed on as they are."""
    previous, following = _neighbours(call)
    return [
        opened(
            Block(OUTPUT, *spans[owner]),
            Record(from_rank(previous), Stream(owner)),
            () if owner == following else (to_rank(following),),
        )
        for owner in _backward(call, call.rank, spans)
    ]


def _partial_blocks(spans: Sequence[Span], chunk: int) -> int:
    """Cipher blocks of the busiest link: a rank seals partial sums of every slice but its own."""
    costs = [cipher_blocks(length, chunk) if length else 0 for _, length in spans]
    return sum(costs) - min(costs)


GENERATORS: dict[Collective, Generator] = {
    Collective.ALL_REDUCE: all_reduce,
    Collective.REDUCE_SCATTER: reduce_scatter,
    Collective.ALL_GATHER: all_gather,
    Collective.BROADCAST: broadcast,
    Collective.REDUCE: reduce,
}
