"""The call that a plan serves: what one rank asked for, and where the parts lie in its buffers.

Everything here but ``rank``, ``send`` and ``recv`` is the same on all ranks, so that they all plan alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from securecoll.codes import Collective
from securecoll.plan.topology import Topology

ALIGNMENT = 64
"""Slices of a buffer start at multiples of this many bytes: a cache line, and a multiple of every element size."""

REDUCTIONS = frozenset({Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE})
ROOTED = frozenset({Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER})
PARTED = frozenset({Collective.REDUCE_SCATTER, Collective.ALL_GATHER, Collective.GATHER, Collective.SCATTER})
"""Collectives in which one buffer holds a part for each rank; these alone may be uneven through ``counts``."""

Span = tuple[int, int]
"""(offset, length) in bytes."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one rank asked for. Sizes are in bytes.

    ``nbytes``: all_reduce, broadcast and reduce: of the buffer. reduce_scatter and scatter: of each rank's output.
    all_gather and gather: of each rank's input. all_to_all: to each peer. barrier: 0.

    ``counts``: each rank's part where parts are uneven, equal on all ranks; ``nbytes`` is 0 then.
    ``send``, ``recv``: an uneven all_to_all, this rank's bytes to and from each peer; ``nbytes`` is 0 then.
    ``topology``: the host of each rank.
    """

    collective: Collective
    rank: int
    size: int
    topology: Topology
    nbytes: int
    itemsize: int = 1
    root: int = 0
    counts: tuple[int, ...] | None = None
    send: tuple[int, ...] | None = field(default=None)
    recv: tuple[int, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        """Refuse what no plan can serve.

        Raises:
            ValueError: says which argument is wrong, what was expected and what was given.
        """
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(f"rank must be in [0, size) and size at least 1, not rank {self.rank} of {self.size}")
        if len(self.topology) != self.size:
            raise ValueError(f"the topology must have one host per rank, {self.size}, not {len(self.topology)}")
        if not 0 <= self.root < self.size:
            raise ValueError(f"root must be a rank in [0, {self.size}), not {self.root}")
        if self.itemsize < 1 or ALIGNMENT % self.itemsize:
            raise ValueError(f"itemsize must divide {ALIGNMENT}, not {self.itemsize}")
        if self.nbytes < 0 or self.nbytes % self.itemsize:
            raise ValueError(f"nbytes must hold whole elements of {self.itemsize} bytes, not {self.nbytes}")
        if self.counts is not None and self.collective not in PARTED:
            raise ValueError(f"{self.collective.name.lower()} takes no counts")
        if (self.send is None) != (self.recv is None):
            raise ValueError("an uneven all_to_all needs both send and recv")
        if self.send is not None and self.collective is not Collective.ALL_TO_ALL:
            raise ValueError(f"{self.collective.name.lower()} takes no send and recv")
        for name, sizes in (("counts", self.counts), ("send", self.send), ("recv", self.recv)):
            if sizes is None:
                continue
            if len(sizes) != self.size:
                raise ValueError(f"{name} must have one entry per rank, {self.size}, not {len(sizes)}")
            if min(sizes) < 0 or any(s % self.itemsize for s in sizes):
                raise ValueError(f"{name} must hold whole elements of {self.itemsize} bytes, not {sizes}")
            if self.nbytes:
                raise ValueError(f"nbytes must be 0 where {name} is given, not {self.nbytes}")
        if self.send is not None and self.recv is not None and self.send[self.rank] != self.recv[self.rank]:
            raise ValueError(
                f"this rank sends itself {self.send[self.rank]} bytes but would receive {self.recv[self.rank]}"
            )
        if self.collective is Collective.BARRIER and self.nbytes:
            raise ValueError(f"a barrier carries nothing, not {self.nbytes} bytes")

    @property
    def parts(self) -> tuple[Span, ...]:
        """Each rank's part of the buffer that holds all of them (reduce_scatter, all_gather, gather, scatter)."""
        return _even(self.nbytes, self.size) if self.counts is None else _pack(self.counts)

    @property
    def sends(self) -> tuple[Span, ...]:
        """all_to_all: what each peer gets of this rank's input."""
        return _even(self.nbytes, self.size) if self.send is None else _pack(self.send)

    @property
    def receives(self) -> tuple[Span, ...]:
        """all_to_all: where what each peer sends lies in this rank's output."""
        return _even(self.nbytes, self.size) if self.recv is None else _pack(self.recv)

    @property
    def total(self) -> int:
        """Bytes of the largest buffer that the group's description implies; 0 means that there is nothing to move.

        For an uneven all_to_all, where no rank knows the group's sizes, this rank's alone.
        """
        if self.collective in PARTED:
            return sum(self.counts) if self.counts is not None else self.nbytes * self.size
        if self.collective is Collective.ALL_TO_ALL:
            return sum(length for _, length in self.sends + self.receives)
        return self.nbytes

    @property
    def input_bytes(self) -> int:
        """Bytes of this rank's ``INPUT``; 0 where it has none."""
        kind, own = self.collective, self.rank
        if kind in (Collective.ALL_GATHER, Collective.GATHER):
            return self.nbytes if self.counts is None else self.counts[own]
        if kind is Collective.ALL_TO_ALL:
            return sum(length for _, length in self.sends)
        if kind in (Collective.BROADCAST, Collective.SCATTER) and own != self.root:
            return 0
        return self.total

    @property
    def output_bytes(self) -> int:
        """Bytes of this rank's ``OUTPUT``; 0 where it has none."""
        kind, own = self.collective, self.rank
        if kind in (Collective.REDUCE_SCATTER, Collective.SCATTER):
            return self.nbytes if self.counts is None else self.counts[own]
        if kind is Collective.ALL_TO_ALL:
            return sum(length for _, length in self.receives)
        if kind in (Collective.REDUCE, Collective.GATHER) and own != self.root:
            return 0
        return self.total


@lru_cache(maxsize=256)
def slices(nbytes: int, size: int) -> tuple[Span, ...]:
    """A buffer cut into one slice per rank, as even as multiples of ``ALIGNMENT`` allow.

    The first slices are the larger ones, the last that is not empty may be ragged, and any after it are empty.
    """
    units = -(-nbytes // ALIGNMENT)
    base, extra = divmod(units, size)
    spans = []
    start = 0
    for rank in range(size):
        stop = min(start + (base + (rank < extra)) * ALIGNMENT, nbytes)
        spans.append((start, stop - start))
        start = stop
    return tuple(spans)


@lru_cache(maxsize=256)
def _even(nbytes: int, size: int) -> tuple[Span, ...]:
    return tuple((rank * nbytes, nbytes) for rank in range(size))


@lru_cache(maxsize=256)
def _pack(lengths: tuple[int, ...]) -> tuple[Span, ...]:
    spans = []
    start = 0
    for length in lengths:
        spans.append((start, length))
        start += length
    return tuple(spans)
