"""The topology: which ranks share a host.

Ranks of one host reach each other through shared memory, others through a socket. Whatever the launcher's placement
(block by block, round robin, uneven hosts), plans see hosts as a ring in the order of their numbers, and a *column*
for each rank: the ranks, one on each host, that collect and pass on what that rank owns.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Topology:
    """The host of each rank.

    Hosts are numbered as they are first seen in rank order, so that equal placements are equal topologies; all ranks
    of a group must have the same one.
    """

    hosts: tuple[int, ...] = field(repr=False)
    """The host of each rank."""
    groups: tuple[tuple[int, ...], ...] = field(init=False, compare=False)
    """The ranks of each host, in rank order."""
    places: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Of each rank, its place among the ranks of its host."""
    order: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """All ranks, host by host: a ring in this order enters and leaves each host once."""
    positions: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """Of each rank, its position in ``order``."""
    crowding: int = field(init=False, compare=False, repr=False)
    """The most ranks of one host whose columns share a rank of another host: 1 where hosts are equal."""
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are not in first-seen order.

        Raises:
            ValueError: says which rank's host has a wrong number.
        """
        if not self.hosts:
            raise ValueError("a topology has at least one rank")
        groups: list[list[int]] = []
        places = []
        for rank, host in enumerate(self.hosts):
            if not 0 <= host <= len(groups):
                raise ValueError(
                    f"hosts are numbered as they are first seen: rank {rank} may be on a host up to {len(groups)}, "
                    f"not {host}"
                )
            if host == len(groups):
                groups.append([])
            places.append(len(groups[host]))
            groups[host].append(rank)
        order = tuple(rank for group in groups for rank in group)
        positions = [0] * len(order)
        for position, rank in enumerate(order):
            positions[rank] = position
        object.__setattr__(self, "groups", tuple(map(tuple, groups)))
        object.__setattr__(self, "places", tuple(places))
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "positions", tuple(positions))
        lengths = [len(group) for group in groups]
        object.__setattr__(self, "crowding", -(-max(lengths) // min(lengths)))
        object.__setattr__(self, "_hash", hash(self.hosts))

    def __hash__(self) -> int:
        # Kept, since caches of plans ask for it at every call and groups have thousands of ranks.
        return self._hash

    @classmethod
    def single(cls, size: int) -> Topology:
        """``size`` ranks on one host."""
        return _single(size)

    @classmethod
    def even(cls, hosts: int, each: int) -> Topology:
        """``hosts`` hosts with ``each`` ranks, block by block."""
        return cls(tuple(rank // each for rank in range(hosts * each)))

    @classmethod
    def of(cls, names: Iterable[Hashable]) -> Topology:
        """The topology of ranks whose hosts have these names, which are compared and nothing else."""
        numbers: dict[Hashable, int] = {}
        return cls(tuple(numbers.setdefault(name, len(numbers)) for name in names))

    def __len__(self) -> int:
        """Ranks."""
        return len(self.hosts)

    @property
    def is_single(self) -> bool:
        """Whether all ranks share one host."""
        return len(self.groups) == 1

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks of a rank's host, itself among them."""
        return self.groups[self.hosts[rank]]

    def others(self, rank: int) -> tuple[int, ...]:
        """The other ranks of a rank's host: those that its lane to all reaches, from the one after it around."""
        group, place = self.group(rank), self.places[rank]
        return group[place + 1 :] + group[:place]

    def crosses(self, writer: int, reader: int) -> bool:
        """Whether a lane between two ranks is a socket."""
        return self.hosts[writer] != self.hosts[reader]

    def relay(self, owner: int, host: int) -> int:
        """The rank of a host that is in the column of ``owner``: the one at its place, or, on a host with fewer ranks,
        at that place modulo them."""
        group = self.groups[host]
        return group[self.places[owner] % len(group)]

    def owned(self, rank: int, host: int) -> tuple[int, ...]:
        """The ranks of a host in whose columns ``rank`` is."""
        if host == self.hosts[rank]:
            return (rank,)
        return self.groups[host][self.places[rank] :: len(self.group(rank))]

    def backward(self, rank: int) -> list[int]:
        """Hosts from the one before this rank's back around to its own: the order in which owners' sums pass it."""
        count, own = len(self.groups), self.hosts[rank]
        return [(own - distance) % count for distance in range(1, count + 1)]

    def outward(self, root: int) -> tuple[int, ...]:
        """All ranks from the root on: its own host's first, then host by host, so that no host is entered twice."""
        hosts = (self.groups[self.beside(root, distance)] for distance in range(1, len(self.groups)))
        return (root, *self.others(root), *(rank for group in hosts for rank in group))

    def inward(self, root: int) -> tuple[int, ...]:
        """All ranks up to the root: host by host, its own last, so that no host is left twice."""
        hosts = (self.groups[self.beside(root, distance)] for distance in range(1, len(self.groups)))
        return (*(rank for group in hosts for rank in group), *self.others(root), root)

    def beside(self, rank: int, distance: int) -> int:
        """The host ``distance`` further along the ring of hosts than a rank's own."""
        return (self.hosts[rank] + distance) % len(self.groups)


@lru_cache(maxsize=256)
def _single(size: int) -> Topology:
    return Topology((0,) * size)
