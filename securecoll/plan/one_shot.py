"""One-shot: one dependent step. Whoever has data seals it once, whoever needs it opens it.

Least latency, most bytes: an all_reduce opens ``nbytes * (size - 1)`` on every rank. For small messages; and for
gather, scatter and all_to_all, where no bytes could be saved.

Data for everybody goes on the sender stream through the lane to all, and across hosts as
:mod:`securecoll.plan.delivery` says; data for one rank on a link stream.
"""

from __future__ import annotations

from securecoll.codes import Collective
from securecoll.plan.call import Call
from securecoll.plan.delivery import arrivals, take, to_everyone, to_host
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
    from_all,
    from_rank,
    to_rank,
)

ALL_TO_ALL_EDGE_BYTES = 1 << 32
"""The most that one all_to_all moves between two ranks. No rank knows the other edges of an uneven all_to_all, so each
call is charged to the key budget as if one edge were this long."""


def _peers(call: Call) -> list[int]:
    """The other ranks, starting after this one, so that not all ranks turn to the same peer at once."""
    return [*range(call.rank + 1, call.size), *range(call.rank)]


def nothing(call: Call, chunk: int) -> tuple[list[Step], int]:
    """A barrier or a zero-byte operation: an empty record from each rank to every rank.

    So calls that do not match are noticed, and no rank returns before all have called.
    """
    steps = [Step(StepOp.SEAL, 0, lanes=_to_each(call), stream=Stream(call.rank))]
    steps += [Step(StepOp.OPEN, 0, sources=(_from(call, p),)) for p in _peers(call)]
    return steps, cipher_blocks(0, chunk)


def _to_each(call: Call) -> tuple[int, ...]:
    """Lanes to all other ranks without relays: in shared memory one for all, else one each."""
    remote = (p for p in _peers(call) if call.topology.crosses(call.rank, p))
    return (*to_host(call.topology, call.rank), *map(to_rank, remote))


def _from(call: Call, peer: int) -> Record:
    """What ``peer`` wrote to the lanes of ``_to_each``."""
    across = call.topology.crosses(call.rank, peer)
    return Record(from_rank(peer) if across else from_all(call.size, peer), Stream(peer))


def all_reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals its contribution to all, and reduces all contributions in rank order.

    The first step writes to OUTPUT exactly the bytes that it seals. A rank must add the same bits of its own
    contribution as the others do: were it to scale INPUT while it reduces (PREMUL_SUM), it would keep digits that
    rounding took from the others, and ranks would end with different results.

    No relays between hosts: a step that reduces cannot take two records from one lane.
    """
    own, whole = call.rank, Block(OUTPUT, 0, call.nbytes)
    mine = Block(INPUT, 0, call.nbytes)
    announce = Step(
        StepOp.REDUCE,
        call.nbytes,
        block=whole,
        sources=(mine,),
        lanes=_to_each(call),
        stream=Stream(own),
        scale=True,
    )
    combine = Step(
        StepOp.REDUCE,
        call.nbytes,
        block=whole,
        sources=tuple(whole if p == own else _from(call, p) for p in range(call.size)),
        after=(0,),
        finish=True,
    )
    return [announce, combine], cipher_blocks(call.nbytes, chunk)


def reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals its contribution for the root, which reduces in rank order."""
    own, root, mine = call.rank, call.root, Block(INPUT, 0, call.nbytes)
    blocks = cipher_blocks(call.nbytes, chunk)
    if own != root:
        seal = Step(StepOp.SEAL, call.nbytes, block=mine, lanes=(to_rank(root),), stream=Stream(own, root), scale=True)
        return [seal], blocks
    combine = Step(
        StepOp.REDUCE,
        call.nbytes,
        block=Block(OUTPUT, 0, call.nbytes),
        sources=tuple(mine if p == own else Record(from_rank(p), Stream(p, own)) for p in range(call.size)),
        scale=True,
        finish=True,
    )
    return [combine], blocks


def reduce_scatter(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals each part for its owner, which reduces in rank order."""
    own, spans, steps = call.rank, call.parts, []
    for peer in _peers(call):
        offset, length = spans[peer]
        if length:
            steps.append(
                Step(
                    StepOp.SEAL,
                    length,
                    block=Block(INPUT, offset, length),
                    lanes=(to_rank(peer),),
                    stream=Stream(own, peer),
                    scale=True,
                )
            )
    offset, length = spans[own]
    if length:
        mine = Block(INPUT, offset, length)
        steps.append(
            Step(
                StepOp.REDUCE,
                length,
                block=Block(OUTPUT, 0, length),
                sources=tuple(mine if p == own else Record(from_rank(p), Stream(p, own)) for p in range(call.size)),
                scale=True,
                finish=True,
            )
        )
    return steps, cipher_blocks(max(length for _, length in spans), chunk)


def all_gather(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals its part to all; empty parts send nothing."""
    own, spans, steps = call.rank, call.parts, []
    offset, length = spans[own]
    if length:
        mine = Block(INPUT, 0, length)
        steps = [
            Step(StepOp.SEAL, length, block=mine, lanes=to_everyone(call.topology, own), stream=Stream(own)),
            Step(StepOp.COPY, length, block=Block(OUTPUT, offset, length), sources=(mine,)),
        ]
    for peer in arrivals(call.topology, own):
        if spans[peer][1]:
            steps.append(take(call.topology, peer, own, Block(OUTPUT, *spans[peer])))
    return steps, cipher_blocks(max(length for _, length in spans), chunk)


def broadcast(call: Call, chunk: int) -> tuple[list[Step], int]:
    """The root seals its buffer to all."""
    root, whole = call.root, Block(OUTPUT, 0, call.nbytes)
    blocks = cipher_blocks(call.nbytes, chunk)
    if call.rank != root:
        return [take(call.topology, root, call.rank, whole)], blocks
    mine = Block(INPUT, 0, call.nbytes)
    return [
        Step(StepOp.SEAL, call.nbytes, block=mine, lanes=to_everyone(call.topology, root), stream=Stream(root)),
        Step(StepOp.COPY, call.nbytes, block=whole, sources=(mine,)),
    ], blocks


def gather(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals its part for the root; an empty part is an empty record."""
    own, root, spans = call.rank, call.root, call.parts
    blocks = cipher_blocks(max(length for peer, (_, length) in enumerate(spans) if peer != root), chunk)
    if own != root:
        return [_seal_for(call, root, Block(INPUT, 0, spans[own][1]))], blocks
    steps = _keep(Block(INPUT, 0, spans[own][1]), Block(OUTPUT, *spans[own]))
    steps += [_open_from(call, peer, Block(OUTPUT, *spans[peer])) for peer in _peers(call)]
    return steps, blocks


def scatter(call: Call, chunk: int) -> tuple[list[Step], int]:
    """The root seals each part for its rank; an empty part is an empty record."""
    own, root, spans = call.rank, call.root, call.parts
    blocks = cipher_blocks(max(length for peer, (_, length) in enumerate(spans) if peer != root), chunk)
    if own != root:
        return [_open_from(call, root, Block(OUTPUT, 0, spans[own][1]))], blocks
    steps = [_seal_for(call, peer, Block(INPUT, *spans[peer])) for peer in _peers(call)]
    steps += _keep(Block(INPUT, *spans[own]), Block(OUTPUT, 0, spans[own][1]))
    return steps, blocks


def all_to_all(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every rank seals for each peer; an empty edge is an empty record.

    Raises:
        ValueError: when an edge is longer than ``ALL_TO_ALL_EDGE_BYTES``.
    """
    sends, receives = call.sends, call.receives
    longest = max(length for _, length in sends + receives)
    if longest > ALL_TO_ALL_EDGE_BYTES:
        raise ValueError(
            f"all_to_all moves at most {ALL_TO_ALL_EDGE_BYTES} bytes between two ranks in one call, not {longest}: "
            "split the call"
        )
    steps = []
    for distance in range(1, call.size):
        reader, writer = (call.rank + distance) % call.size, (call.rank - distance) % call.size
        steps.append(_seal_for(call, reader, Block(INPUT, *sends[reader])))
        steps.append(_open_from(call, writer, Block(OUTPUT, *receives[writer])))
    steps += _keep(Block(INPUT, *sends[call.rank]), Block(OUTPUT, *receives[call.rank]))
    return steps, cipher_blocks(ALL_TO_ALL_EDGE_BYTES, chunk)


def _seal_for(call: Call, peer: int, block: Block) -> Step:
    return Step(
        StepOp.SEAL,
        block.length,
        block=block if block.length else None,
        lanes=(to_rank(peer),),
        stream=Stream(call.rank, peer),
    )


def _open_from(call: Call, peer: int, block: Block) -> Step:
    source = Record(from_rank(peer), Stream(peer, call.rank))
    return Step(StepOp.OPEN, block.length, block=block if block.length else None, sources=(source,))


def _keep(source: Block, target: Block) -> list[Step]:
    """This rank's own part, which travels nowhere."""
    return [Step(StepOp.COPY, source.length, block=target, sources=(source,))] if source.length else []


GENERATORS: dict[Collective, Generator] = {
    Collective.ALL_REDUCE: all_reduce,
    Collective.REDUCE_SCATTER: reduce_scatter,
    Collective.ALL_GATHER: all_gather,
    Collective.BROADCAST: broadcast,
    Collective.REDUCE: reduce,
    Collective.GATHER: gather,
    Collective.SCATTER: scatter,
    Collective.ALL_TO_ALL: all_to_all,
    Collective.BARRIER: nothing,
}
