"""Peers: whom a rank talks to over sockets in the plans that the tuner picks by default.

Each socket costs memory and descriptors, so the default plans of the collectives that involve everyone meet O(log N)
ranks of other hosts, however large the group: in each column that the rank stands in, those at distances of powers of
two along the ring of hosts. That covers the ring and trees of hosts, the exchanges and the barrier. Where hosts
are uneven, the neighbours in the ring of ranks come to them. Only in groups so small that all ranks elsewhere are no
more than that may algorithms be picked by which everyone meets everyone.

gather, scatter and all_to_all seal for each peer by itself and so meet whom they deal with, in any group; and a pinned
algorithm meets whom it meets.
"""

from __future__ import annotations

from securecoll.plan.ir import Plan, Record
from securecoll.plan.topology import Topology

DEEPER = 4
"""The factor by which lanes over sockets are deeper than those in shared memory."""


def is_small(topology: Topology) -> bool:
    """Whether everyone may meet everyone: no rank has more than 2 ceil(log2 N) ranks on other hosts."""
    size = len(topology)
    return size - min(map(len, topology.groups)) <= 2 * (size - 1).bit_length()


def peers(topology: Topology, rank: int) -> tuple[int, ...]:
    """The ranks of other hosts that ``rank`` exchanges records with in default plans, in rank order."""
    if is_small(topology):
        return tuple(p for p in range(len(topology)) if topology.crosses(rank, p))
    hosts, own = len(topology.groups), topology.hosts[rank]
    found: set[int] = set()
    if topology.crowding > 1:
        position = topology.positions[rank]
        beside = (topology.order[position - 1], topology.order[(position + 1) % len(topology)])
        found.update(p for p in beside if topology.crosses(rank, p))
    owners = _representatives(topology, rank)
    for bit in range((hosts - 1).bit_length()):
        for there in {topology.beside(rank, 1 << bit), topology.beside(rank, -(1 << bit))} - {own}:
            found.update(topology.relay(owner, there) for owner in owners)
    return tuple(sorted(found))


def _representatives(topology: Topology, rank: int) -> tuple[int, ...]:
    """An owner for each place whose columns ``rank`` stands in: a column depends on the owner's place only."""
    group = max(topology.groups, key=len)
    return group[topology.places[rank] :: len(topology.group(rank))]


def overlay(topology: Topology, rank: int) -> tuple[int, ...]:
    """The ranks of other hosts that ``rank`` meets when a group is made, whatever it will run: its neighbours in the
    ring of ranks and in a binary tree, over which failures are told. At most five, in rank order."""
    size = len(topology)
    near = {(rank - 1) % size, (rank + 1) % size, (rank - 1) // 2, 2 * rank + 1, 2 * rank + 2} - {rank}
    return tuple(sorted(p for p in near if 0 <= p < size and topology.crosses(rank, p)))


def sockets(topology: Topology, rank: int) -> tuple[int, ...]:
    """The ranks of other hosts that ``rank`` has a socket with once it has run default plans of every kind."""
    return tuple(sorted({*overlay(topology, rank), *peers(topology, rank)}))


def met(plan: Plan) -> frozenset[int]:
    """The ranks of other hosts that a plan has lanes to or from."""
    if plan.call is None:
        return frozenset()
    topology, size = plan.call.topology, plan.size
    lanes = {lane for step in plan.steps for lane in step.lanes}
    lanes |= {source.lane for step in plan.steps for source in step.sources if isinstance(source, Record)}
    return frozenset(lane for lane in lanes if lane < size and topology.crosses(plan.rank, lane))


def socket_bytes(sockets: int, slot_bytes: int, depth: int) -> int:
    """The most memory that the slots of ``sockets`` peers take, each with a lane in and a lane out. ``depth`` is that
    of lanes in shared memory."""
    return sockets * 2 * DEEPER * depth * (slot_bytes + 16)
