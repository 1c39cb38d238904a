"""Delivery: how what one rank sealed once, on its sender stream, reaches all others as the same ciphertext.

Inside its host a record takes the lane to all. To each other host one copy goes to a relay, the rank there in the
owner's column, which passes it on to all of its host and opens it from the same read. So ciphertext crosses to a host
once, is never sealed again, and different owners' records take different relays.
"""

from __future__ import annotations

from securecoll.plan.ir import Block, Record, Step, StepOp, Stream, from_all, from_rank, to_all, to_rank
from securecoll.plan.topology import Topology


def to_host(topology: Topology, rank: int) -> tuple[int, ...]:
    """The lane to all of a rank's host; none where it is alone there."""
    return (to_all(len(topology)),) if len(topology.group(rank)) > 1 else ()


def to_everyone(topology: Topology, owner: int) -> tuple[int, ...]:
    """The lanes on which ``owner`` writes what all are to have: to its host, and to its relay on each other one."""
    hosts = range(1, len(topology.groups))
    relays = (topology.relay(owner, topology.beside(owner, distance)) for distance in hosts)
    return (*to_host(topology, owner), *map(to_rank, relays))


def from_owner(topology: Topology, owner: int, rank: int) -> int:
    """The lane on which ``rank`` reads what ``owner`` wrote for everyone."""
    relay = topology.relay(owner, topology.hosts[rank])
    return from_rank(owner) if relay == rank else from_all(len(topology), relay)


def take(topology: Topology, owner: int, rank: int, block: Block) -> Step:
    """Opens ``owner``'s block, and passes it on where ``rank`` is its relay."""
    source = Record(from_owner(topology, owner, rank), Stream(owner))
    lanes = to_host(topology, rank) if topology.relay(owner, topology.hosts[rank]) == rank else ()
    return opened(block, source, lanes)


def opened(block: Block, source: Record, lanes: tuple[int, ...]) -> Step:
    """A step that opens a record into a block and, where there are lanes, passes it on."""
    if not lanes:
        return Step(StepOp.OPEN, block.length, block=block, sources=(source,))
    return Step(StepOp.FORWARD, block.length, block=block, sources=(source,), lanes=lanes)


def arrivals(topology: Topology, rank: int) -> list[int]:
    """The other ranks, in the order in which ``rank`` takes what they deliver: its own host's first, then those behind
    it. On each lane this is the order of its writer too, whichever rank of the host writes it."""
    own = topology.hosts[rank]
    owners = list(topology.others(rank))
    for host in topology.backward(rank):
        if host != own:
            for relay in (*topology.others(rank), rank):
                owners += topology.owned(relay, host)
    return owners
