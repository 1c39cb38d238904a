"""The six collectives that are measured: their buffers, their results, and what a bandwidth means for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.pattern import Array, Pattern, count_wrong, fill, spoil


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ``count`` elements: of the whole buffer, or of each rank's part where a buffer has parts."""

    name: str
    send_parts: bool = False
    """The send buffer holds one part per rank, in rank order."""
    recv_parts: bool = False
    """The receive buffer does."""
    reduces: bool = False
    rooted: bool = False
    in_place: bool = True
    out_of_place: bool = True

    def parts(self, ranks: int) -> int:
        """Parts in the larger of the two buffers: the size that is reported is that of this many times ``count``."""
        return ranks if self.send_parts or self.recv_parts else 1

    def bus_factor(self, ranks: int) -> float:
        """busbw over algbw, as in nccl-tests' PERFORMANCE.md: the bytes that the busiest link must carry."""
        if self.parts(ranks) > 1:
            return (ranks - 1) / ranks
        if self is ALL_REDUCE:
            return 2 * (ranks - 1) / ranks
        return 1.0


ALL_REDUCE = Collective("all_reduce", reduces=True)
ALL_GATHER = Collective("all_gather", recv_parts=True)
REDUCE_SCATTER = Collective("reduce_scatter", send_parts=True, reduces=True)
BROADCAST = Collective("broadcast", rooted=True, out_of_place=False)
REDUCE = Collective("reduce", reduces=True, rooted=True)
ALL_TO_ALL = Collective("alltoall", send_parts=True, recv_parts=True, in_place=False)

COLLECTIVES = {c.name: c for c in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL)}
"""By name; nccl-tests' names."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``begin .. begin + count`` of a result: elements ``start ..`` of the pattern that ``block`` begins."""

    begin: int
    count: int
    block: Array
    start: int


@dataclass(frozen=True)
class Case:
    """One collective on one size: one rank's side of it.

    ``count`` is that of :class:`Collective`. Buffers are one-dimensional arrays of ``pattern.element.storage``.
    """

    collective: Collective
    pattern: Pattern
    rank: int
    count: int
    root: int = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.pattern.ranks

    @property
    def send_count(self) -> int:
        """Elements of the send buffer."""
        return self.count * (self.ranks if self.collective.send_parts else 1)

    @property
    def recv_count(self) -> int:
        """Elements of the receive buffer."""
        return self.count * (self.ranks if self.collective.recv_parts else 1)

    @property
    def nbytes(self) -> int:
        """The size that is reported, in bytes."""
        return self.count * self.collective.parts(self.ranks) * self.pattern.element.itemsize

    def pieces(self) -> Iterator[Piece]:
        """What the receive buffer of this rank must hold; nothing where it receives nothing."""
        pattern, count = self.pattern, self.count
        if self.collective is ALL_GATHER:
            for rank in range(self.ranks):
                yield Piece(rank * count, count, pattern.block(rank), 0)
        elif self.collective is ALL_TO_ALL:
            for rank in range(self.ranks):
                yield Piece(rank * count, count, pattern.block(rank), self.rank * count)
        elif self.collective is BROADCAST:
            yield Piece(0, count, pattern.block(self.root), 0)
        elif self.collective is REDUCE_SCATTER:
            yield Piece(0, count, pattern.reduced, self.rank * count)
        elif self.collective is ALL_REDUCE or self.rank == self.root:
            yield Piece(0, count, pattern.reduced, 0)

    def prepare(self, send: Array, recv: Array) -> None:
        """Makes every element of the result wrong, then writes this rank's contribution; buffers as from ``place``."""
        for piece in self.pieces():
            spoil(recv[piece.begin : piece.begin + piece.count], piece.block, piece.start)
        if self.collective is not BROADCAST or self.rank == self.root:
            fill(send, self.pattern.block(self.rank))

    def count_wrong(self, recv: Array) -> int:
        """Elements of the receive buffer that are not what they must be."""
        return sum(
            count_wrong(recv[piece.begin : piece.begin + piece.count], piece.block, piece.start)
            for piece in self.pieces()
        )

    def place(self, in_place: bool, send: Any, recv: Any) -> tuple[Any, Any]:
        """The two buffers of a call in place, as views of ``send`` and ``recv``; unchanged for one out of place."""
        if not in_place:
            return send, recv
        own = slice(self.rank * self.count, (self.rank + 1) * self.count)
        if self.collective is ALL_GATHER:
            return recv[own], recv
        if self.collective is REDUCE_SCATTER:
            return send, send[own]
        return send, send
