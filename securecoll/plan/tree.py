"""Tree: a binomial tree of hosts, in ceil(log2 hosts) dependent steps.

For small messages: a root's link carries its buffer once for each of its children, where a chain of hosts carries it
once. In a host, the rank in the root's column is the one that takes part; a broadcast's ciphertext is the root's own,
passed on, and a reduction's partial sums are sealed anew for each parent. On one host it is one-shot.
"""

from __future__ import annotations

from securecoll.codes import Collective
from securecoll.plan.call import Call
from securecoll.plan.delivery import opened, to_host
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
from securecoll.plan.topology import Topology


def broadcast(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Each host passes the root's ciphertext to its children and to its own ranks, from one read."""
    own, root, topology, whole = call.rank, call.root, call.topology, Block(OUTPUT, 0, call.nbytes)
    blocks = cipher_blocks(call.nbytes, chunk)
    relay = topology.relay(root, topology.hosts[own])
    if own != relay:
        return [opened(whole, Record(from_all(call.size, relay), Stream(root)), ())], blocks
    parent, kids = family(topology, root, own)
    lanes = (*map(to_rank, kids), *to_host(topology, own))
    if parent is not None:
        return [opened(whole, Record(from_rank(parent), Stream(root)), lanes)], blocks
    mine = Block(INPUT, 0, call.nbytes)
    return [
        Step(StepOp.SEAL, call.nbytes, block=mine, lanes=lanes, stream=Stream(root)),
        Step(StepOp.COPY, call.nbytes, block=whole, sources=(mine,)),
    ], blocks


def reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Each host adds up what its own ranks contribute and what its children send, and seals that for its parent."""
    own, root, topology, mine = call.rank, call.root, call.topology, Block(INPUT, 0, call.nbytes)
    blocks = cipher_blocks(call.nbytes, chunk)
    relay = topology.relay(root, topology.hosts[own])
    parent, kids = family(topology, root, own) if own == relay else (relay, ())
    # The smallest subtrees are done first.
    writers = (*topology.group(own), *reversed(kids)) if own == relay else (own,)
    sources = tuple(mine if p == own else Record(from_rank(p), Stream(p, own)) for p in writers)
    if parent is None:
        whole = Block(OUTPUT, 0, call.nbytes)
        return [Step(StepOp.REDUCE, call.nbytes, block=whole, sources=sources, scale=True, finish=True)], blocks
    lanes, stream = (to_rank(parent),), Stream(own, parent)
    if len(sources) == 1:
        return [Step(StepOp.SEAL, call.nbytes, block=mine, lanes=lanes, stream=stream, scale=True)], blocks
    return [Step(StepOp.REDUCE, call.nbytes, sources=sources, lanes=lanes, stream=stream, scale=True)], blocks


def family(topology: Topology, root: int, rank: int) -> tuple[int | None, tuple[int, ...]]:
    """Parent and children of a rank in the root's column; of the children, the one with the largest subtree first.

    Hosts are numbered from the root's on. A host's parent is its number less the highest bit, so its children are its
    number plus each higher power of two.
    """
    count = len(topology.groups)
    number = (topology.hosts[rank] - topology.hosts[root]) % count

    def at(other: int) -> int:
        return topology.relay(root, topology.beside(root, other))

    parent = None if not number else at(number - (1 << (number.bit_length() - 1)))
    powers = (1 << bit for bit in range(number.bit_length(), count.bit_length()))
    return parent, tuple(at(number + power) for power in powers if number + power < count)


GENERATORS: dict[Collective, Generator] = {Collective.BROADCAST: broadcast, Collective.REDUCE: reduce}
