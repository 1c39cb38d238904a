"""Recursive doubling: an all_reduce in ceil(log2 hosts) exchanges between hosts, for small messages.

The first rank of each host, its *leader*, adds up what its ranks contribute. Leaders then exchange in pairs, at
distances 1, 2, 4 and so on, after which all have the sum. Where the number of hosts is no power of two, those beyond
the last one give their sums to a partner first, and get the result from it. At the end leaders seal the result for
their hosts.

Both ends of an exchange add the same two sums in the same order, the lower host's first, and each adds its own sum as
it sealed it, rounded: so all ranks hold the same bits. (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005.)
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


def all_reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """What a rank does depends on whether it leads a host, and on whether that host has a partner."""
    topology, blocks = call.topology, cipher_blocks(call.nbytes, chunk)
    host = topology.hosts[call.rank]
    leader = topology.groups[host][0]
    mine, whole = Block(INPUT, 0, call.nbytes), Block(OUTPUT, 0, call.nbytes)
    partner = partner_of(topology, host)
    if call.rank != leader:
        sealer = leader if partner is None else partner
        return [
            _seal_for(call, leader, mine),
            opened(whole, Record(from_all(call.size, leader), Stream(sealer)), ()),
        ], blocks
    if partner is not None:
        result = Record(from_rank(partner), Stream(partner))
        return [_give(call, mine, partner), opened(whole, result, to_host(topology, leader))], blocks
    return _exchange(call, mine, whole), blocks


def rounds_of(topology: Topology) -> int:
    """Exchanges between leaders: the logarithm of the largest power of two that is not above the number of hosts."""
    return len(topology.groups).bit_length() - 1


def partner_of(topology: Topology, host: int) -> int | None:
    """The leader that takes part for a host beyond the largest power of two; None for the hosts below it."""
    paired = 1 << rounds_of(topology)
    return topology.groups[host - paired][0] if host >= paired else None


def charge_of(topology: Topology, host: int) -> int | None:
    """The leader that this host's leader takes part for, or None."""
    beyond = host + (1 << rounds_of(topology))
    return topology.groups[beyond][0] if beyond < len(topology.groups) else None


def _seal_for(call: Call, reader: int, mine: Block) -> Step:
    return Step(
        StepOp.SEAL, call.nbytes, block=mine, lanes=(to_rank(reader),), stream=Stream(call.rank, reader), scale=True
    )


def _local(call: Call, mine: Block) -> list[Block | Record]:
    """The contributions of a leader's host, in rank order."""
    own = call.rank
    return [mine if p == own else Record(from_rank(p), Stream(p, own)) for p in call.topology.group(own)]


def _give(call: Call, mine: Block, partner: int) -> Step:
    """The sum of a host beyond the power of two, for its partner."""
    sources = tuple(_local(call, mine))
    if len(sources) == 1:
        return _seal_for(call, partner, mine)
    lanes, stream = (to_rank(partner),), Stream(call.rank, partner)
    return Step(StepOp.REDUCE, call.nbytes, sources=sources, lanes=lanes, stream=stream, scale=True)


def _exchange(call: Call, mine: Block, whole: Block) -> list[Step]:
    """The host's sum, then one addition for each exchange; each step seals its result for the next one."""
    own, topology = call.rank, call.topology
    host, rounds, charge = topology.hosts[own], rounds_of(topology), charge_of(topology, topology.hosts[own])
    others = [topology.groups[host ^ (1 << k)][0] for k in range(rounds)]
    sources = _local(call, mine)
    if charge is not None:
        sources.append(Record(from_rank(charge), Stream(charge, own)))
    last = (*(() if charge is None else (to_rank(charge),)), *to_host(topology, own))
    steps: list[Step] = []
    for k in range(rounds + 1):
        if k:
            received = Record(from_rank(others[k - 1]), Stream(others[k - 1], own))
            sources = [whole, received] if host < topology.hosts[others[k - 1]] else [received, whole]
        lanes = last if k == rounds else (to_rank(others[k]),)
        stream = Stream(own) if k == rounds else Stream(own, others[k])
        steps.append(
            Step(
                StepOp.REDUCE,
                call.nbytes,
                block=whole,
                sources=tuple(sources),
                lanes=lanes,
                stream=stream if lanes else None,
                after=(k - 1,) if k else (),
                scale=k == 0,
                finish=k == rounds,
            )
        )
    return steps


GENERATORS: dict[Collective, Generator] = {Collective.ALL_REDUCE: all_reduce}
