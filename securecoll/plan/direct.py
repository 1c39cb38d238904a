"""Direct: two dependent steps. Slice j goes to its owner j, which reduces all contributions and passes the sum on.

The best within a host: an all_reduce seals ``nbytes`` and opens ``2 * nbytes * (size - 1) / size`` on every rank,
whatever the size, and each sum is computed once, so that all ranks hold the same bits.
"""

from __future__ import annotations

from securecoll.codes import Collective
from securecoll.plan.call import Call, slices
from securecoll.plan.delivery import arrivals, take, to_everyone
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
    """Slices to their owners on link streams; sums to all on the owner's sender stream."""
    own, spans = call.rank, slices(call.nbytes, call.size)
    steps = _contribute(call)
    if spans[own][1]:
        steps.append(_combine(call, Block(OUTPUT, *spans[own]), Stream(own), to_everyone(call.topology, own)))
    for owner in arrivals(call.topology, own):
        if spans[owner][1]:
            steps.append(take(call.topology, owner, own, Block(OUTPUT, *spans[owner])))
    return steps, cipher_blocks(spans[0][1], chunk)


def reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Slices to their owners, sums to the root, all on link streams.

    A link to the root carries the root's slice first and then the writer's sum.
    """
    own, root, spans = call.rank, call.root, slices(call.nbytes, call.size)
    steps = _contribute(call)
    first_sum = records(spans[root][1], chunk) if spans[root][1] else 0
    if own == root:
        if spans[own][1]:
            steps.append(_combine(call, Block(OUTPUT, *spans[own])))
        for owner in _others(call):
            source = Record(from_rank(owner), Stream(owner, own), first_sum)
            steps.append(Step(StepOp.OPEN, spans[owner][1], block=Block(OUTPUT, *spans[owner]), sources=(source,)))
    elif spans[own][1]:
        steps.append(_combine(call, None, Stream(own, root), (to_rank(root),), first_sum))
    to_root = cipher_blocks(spans[root][1], chunk) if spans[root][1] else 0
    sums = (cipher_blocks(length, chunk) for owner, (_, length) in enumerate(spans) if owner != root and length)
    return steps, to_root + max(sums, default=0)


def _others(call: Call) -> list[int]:
    """The other owners of a slice, starting after this rank, so that not all ranks turn to the same owner at once."""
    spans = slices(call.nbytes, call.size)
    return [p for p in (*range(call.rank + 1, call.size), *range(call.rank)) if spans[p][1]]


def _contribute(call: Call) -> list[Step]:
    spans = slices(call.nbytes, call.size)
    return [
        Step(
            StepOp.SEAL,
            spans[owner][1],
            block=Block(INPUT, *spans[owner]),
            lanes=(to_rank(owner),),
            stream=Stream(call.rank, owner),
            scale=True,
        )
        for owner in _others(call)
    ]


def _combine(
    call: Call, block: Block | None, stream: Stream | None = None, lanes: tuple[int, ...] = (), record: int = 0
) -> Step:
    """The owner's sum of its slice, contributions in rank order."""
    own, span = call.rank, slices(call.nbytes, call.size)[call.rank]
    mine = Block(INPUT, *span)
    return Step(
        StepOp.REDUCE,
        span[1],
        block=block,
        sources=tuple(mine if p == own else Record(from_rank(p), Stream(p, own)) for p in range(call.size)),
        lanes=lanes,
        stream=stream,
        record=record,
        scale=True,
        finish=True,
    )


GENERATORS: dict[Collective, Generator] = {
    Collective.ALL_REDUCE: all_reduce,
    Collective.REDUCE: reduce,
}
