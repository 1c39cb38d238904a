"""Hierarchical: reduce within each host, pass sums around a ring of hosts, spread them within each host.

What a rank owns is summed by its column (one rank on each host, see :class:`~securecoll.plan.topology.Topology`).
The ranks of a host seal their contributions for its rank in the column, which adds them to the partial sum that came
from the host before and seals that for the next; the owner completes the sum. So each byte of a buffer enters and
leaves a host once for the sums and once for the results, however many ranks share it: a link between two hosts
carries ``2 * nbytes * (hosts - 1) / hosts`` for an all_reduce, where a flat ring of ranks carries
``2 * nbytes * (size - 1) / size``. All columns work side by side, so every rank of a host does its share.

Results travel as ciphertext that the owner sealed once: around the column, and from each rank of it to all of its
host. An all_reduce seals ``nbytes`` on every rank, whatever the topology. On one host it is the direct algorithm; with
one rank a host it is the ring. Hosts may have different numbers of ranks: then ranks of smaller hosts stand in several
columns, and do more. As slices of several owners then share lanes, waves must be shorter for the ring to keep running;
:func:`securecoll.plan.plan` sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from securecoll.codes import Collective
from securecoll.plan.call import Call, Span, slices
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
    records,
    to_rank,
)
from securecoll.plan.topology import Topology


def all_reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Sums to their owners, which seal them once for everyone."""
    own, topology, spans = call.rank, call.topology, slices(call.nbytes, call.size)
    sums = _Sums(call, spans, chunk)
    steps = sums.steps()
    if spans[own][1]:
        steps.append(sums.complete(Block(OUTPUT, *spans[own]), Stream(own), _onward(topology, own, own)))
    steps += _spread(call, spans)
    return steps, max(_busiest_link(topology, spans, chunk), cipher_blocks(spans[0][1], chunk))


def reduce_scatter(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Sums to their owners, where they stay."""
    spans = call.parts
    length = spans[call.rank][1]
    sums = _Sums(call, spans, chunk)
    steps = sums.steps()
    if length:
        steps.append(sums.complete(Block(OUTPUT, 0, length)))
    return steps, _busiest_link(call.topology, spans, chunk)


def all_gather(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Every part is sealed once by its owner, for everyone."""
    own, spans, steps = call.rank, call.parts, []
    length = spans[own][1]
    if length:
        mine, lanes = Block(INPUT, 0, length), _onward(call.topology, own, own)
        steps = [
            Step(StepOp.SEAL, length, block=mine, lanes=lanes, stream=Stream(own)),
            Step(StepOp.COPY, length, block=Block(OUTPUT, *spans[own]), sources=(mine,)),
        ]
    steps += _spread(call, spans)
    return steps, cipher_blocks(max(length for _, length in spans), chunk)


def broadcast(call: Call, chunk: int) -> tuple[list[Step], int]:
    """A chain of hosts: chunks follow each other, so its length adds latency but takes no bandwidth."""
    own, root, topology, whole = call.rank, call.root, call.topology, Block(OUTPUT, 0, call.nbytes)
    blocks = cipher_blocks(call.nbytes, chunk)
    if own == root:
        mine = Block(INPUT, 0, call.nbytes)
        lanes = _onward(topology, root, root)
        return [
            Step(StepOp.SEAL, call.nbytes, block=mine, lanes=lanes, stream=Stream(root)),
            Step(StepOp.COPY, call.nbytes, block=whole, sources=(mine,)),
        ], blocks
    return [_take(topology, root, own, whole)], blocks


def reduce(call: Call, chunk: int) -> tuple[list[Step], int]:
    """As reduce_scatter to the ranks of the root's host, which seal their sums for the root.

    A link to the root carries the root's slice first and then the writer's sum.
    """
    own, root, topology = call.rank, call.root, call.topology
    owners = topology.group(root)
    spans = [(0, 0)] * call.size
    for owner, span in zip(owners, slices(call.nbytes, len(owners)), strict=True):
        spans[owner] = span
    sums = _Sums(call, spans, chunk)
    steps = sums.steps()
    first_sum = records(spans[root][1], chunk) if spans[root][1] else 0
    if spans[own][1] and own == root:
        steps.append(sums.complete(Block(OUTPUT, *spans[own])))
    elif spans[own][1]:
        steps.append(sums.complete(None, Stream(own, root), (to_rank(root),), first_sum))
    if own == root:
        for owner in topology.others(root):
            if spans[owner][1]:
                source = Record(from_rank(owner), Stream(owner, root), first_sum)
                steps.append(Step(StepOp.OPEN, spans[owner][1], block=Block(OUTPUT, *spans[owner]), sources=(source,)))
    to_root = 0
    if len(owners) > 1:
        to_root = _cost(spans[root][1], chunk) + max(_cost(spans[p][1], chunk) for p in topology.others(root))
    return steps, max(to_root, _busiest_link(topology, tuple(spans), chunk))


def barrier(call: Call, chunk: int) -> tuple[list[Step], int]:
    """Empty records: to the first rank of each host, between these in ceil(log2 hosts) rounds, and back to all.

    In round k a host tells the one ``2 ** k`` further on what it has heard so far, so that after the last round each
    has heard of all. (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.)
    """
    own, topology, blocks = call.rank, call.topology, cipher_blocks(0, chunk)
    host, group = topology.hosts[own], topology.group(own)
    leader = group[0]
    if own != leader:
        return [
            Step(StepOp.SEAL, 0, lanes=(to_rank(leader),), stream=Stream(own, leader)),
            Step(StepOp.OPEN, 0, sources=(Record(from_all(call.size, leader), Stream(leader)),)),
        ], blocks
    steps = [Step(StepOp.OPEN, 0, sources=(Record(from_rank(p), Stream(p, own)),)) for p in group[1:]]
    heard = tuple(range(len(steps)))
    hosts, distance = len(topology.groups), 1
    while distance < hosts:
        reader, writer = (topology.groups[(host + d) % hosts][0] for d in (distance, -distance))
        tell = Step(StepOp.SEAL, 0, lanes=(to_rank(reader),), stream=Stream(own, reader), after=heard)
        hear = Step(StepOp.OPEN, 0, sources=(Record(from_rank(writer), Stream(writer, own)),))
        steps += [tell, hear]
        heard += (len(steps) - 1,)
        distance *= 2
    if len(group) > 1:
        steps.append(Step(StepOp.SEAL, 0, lanes=to_host(topology, own), stream=Stream(own), after=heard))
    return steps, blocks


class _Sums:
    """One rank's part in summing slices for their owners."""

    def __init__(self, call: Call, spans: Sequence[Span], chunk: int) -> None:
        self.call = call
        self.spans = spans
        self.chunk = chunk
        self.near = self._numbered(call.rank, lambda owner: True)
        """By owner, the first record of its slice on the link from each other rank of the host to this one."""
        self.far: dict[int, tuple[int, int]] = {}
        """By owner, the rank of the host before that sends its partial sum, and the first record on that link."""
        topology, own = call.topology, call.rank
        before = topology.beside(own, -1)
        if before == topology.hosts[own]:
            return
        for writer in {topology.relay(owner, before) for owner in self.near}:
            numbers = self._numbered(writer, lambda owner: topology.relay(owner, topology.hosts[own]) == own)
            for owner, record in numbers.items():
                if topology.hosts[owner] != before:
                    self.far[owner] = writer, record

    def _numbered(self, rank: int, travels: Callable[[int], bool]) -> dict[int, int]:
        """By owner, the first record that its slice has on a link, where slices that travel it are in the order in
        which they pass ``rank``."""
        topology, numbers, record = self.call.topology, {}, 0
        for host in topology.backward(rank):
            for owner in topology.owned(rank, host):
                if self.spans[owner][1] and travels(owner):
                    numbers[owner] = record
                    record += records(self.spans[owner][1], self.chunk)
        return numbers

    def steps(self) -> list[Step]:
        """Contributions for the ranks of this host, and partial sums for the next one: all but this rank's slice."""
        own, topology = self.call.rank, self.call.topology
        steps: list[Step] = []
        sealed: dict[int, int] = {}
        for host in topology.backward(own):
            # Whoever is to receive it, what is needed for sums that still have to go around comes first.
            for peer in topology.others(own):
                steps += [self._contribute(owner, peer, sealed) for owner in self._filled(peer, host)]
            if host != topology.hosts[own]:
                steps += [self._pass_on(owner, sealed) for owner in self._filled(own, host)]
        return steps

    def complete(
        self, block: Block | None, stream: Stream | None = None, lanes: tuple[int, ...] = (), record: int = 0
    ) -> Step:
        """The last additions to this rank's own slice."""
        own = self.call.rank
        return Step(
            StepOp.REDUCE,
            self.spans[own][1],
            block=block,
            sources=self._sources(own),
            lanes=lanes,
            stream=stream,
            record=record,
            scale=True,
            finish=True,
        )

    def _filled(self, rank: int, host: int) -> list[int]:
        """Owners on a host whose slices ``rank`` collects and which hold something."""
        return [owner for owner in self.call.topology.owned(rank, host) if self.spans[owner][1]]

    def _contribute(self, owner: int, reader: int, sealed: dict[int, int]) -> Step:
        """This rank's own contribution to a slice. ``sealed`` counts records on the link to each reader."""
        span = self.spans[owner]
        record = sealed.get(reader, 0)
        sealed[reader] = record + records(span[1], self.chunk)
        return Step(
            StepOp.SEAL,
            span[1],
            block=Block(INPUT, *span),
            lanes=(to_rank(reader),),
            stream=Stream(self.call.rank, reader),
            record=record,
            scale=True,
        )

    def _pass_on(self, owner: int, sealed: dict[int, int]) -> Step:
        """A sum that is not complete yet, for the next host."""
        own, topology = self.call.rank, self.call.topology
        reader, sources = topology.relay(owner, topology.beside(own, 1)), self._sources(owner)
        if len(sources) == 1:
            return self._contribute(owner, reader, sealed)
        record = sealed.get(reader, 0)
        sealed[reader] = record + records(self.spans[owner][1], self.chunk)
        return Step(
            StepOp.REDUCE,
            self.spans[owner][1],
            sources=sources,
            lanes=(to_rank(reader),),
            stream=Stream(own, reader),
            record=record,
            scale=True,
        )

    def _sources(self, owner: int) -> tuple[Block | Record, ...]:
        """What this rank adds up of a slice: its host's contributions in rank order, which are there first, and what
        came from the host before."""
        own = self.call.rank
        sources: list[Block | Record] = [
            Block(INPUT, *self.spans[owner]) if p == own else Record(from_rank(p), Stream(p, own), self.near[owner])
            for p in self.call.topology.group(own)
        ]
        if owner in self.far:
            writer, record = self.far[owner]
            sources.append(Record(from_rank(writer), Stream(writer, own), record))
        return tuple(sources)


def _onward(topology: Topology, owner: int, rank: int) -> tuple[int, ...]:
    """Where a rank of the owner's column writes what the owner sealed for everyone: to its host and to the next."""
    host = topology.beside(rank, 1)
    onward = () if host == topology.hosts[owner] else (to_rank(topology.relay(owner, host)),)
    return (*to_host(topology, rank), *onward)


def _take(topology: Topology, owner: int, rank: int, block: Block) -> Step:
    """Opens what another rank sealed for everyone; whoever is in its column passes it on."""
    relay = topology.relay(owner, topology.hosts[rank])
    if relay != rank:
        return opened(block, Record(from_all(len(topology), relay), Stream(owner)), ())
    writer = topology.relay(owner, topology.beside(rank, -1))
    return opened(block, Record(from_rank(writer), Stream(owner)), _onward(topology, owner, rank))


def _spread(call: Call, spans: Sequence[Span]) -> list[Step]:
    """Others' complete slices, in the order in which they come around: this host's first."""
    own, topology = call.rank, call.topology
    *far, near = topology.backward(own)
    return [
        _take(topology, owner, own, Block(OUTPUT, *spans[owner]))
        for host in (near, *far)
        for relay in (*topology.others(own), own)
        for owner in topology.owned(relay, host)
        if spans[owner][1] and owner != own
    ]


def _cost(length: int, chunk: int) -> int:
    return cipher_blocks(length, chunk) if length else 0


@lru_cache(maxsize=64)
def _busiest_link(topology: Topology, spans: tuple[Span, ...], chunk: int) -> int:
    """Cipher blocks of the busiest link stream on which contributions or partial sums travel.

    Which ranks of a host collect a slice depends on its owner's place only, so places are added up, not slices.
    """
    places = max(map(len, topology.groups))
    costs = [[_cost(spans[owner][1], chunk) for owner in group] for group in topology.groups]
    whole = [sum(row[place] for row in costs if place < len(row)) for place in range(places)]
    most = 0
    for host, group in enumerate(topology.groups):
        following = topology.groups[(host + 1) % len(topology.groups)]
        near: dict[int, int] = {}
        far: dict[tuple[int, int], int] = {}
        for place in range(places):
            collector = place % len(group)
            near[collector] = near.get(collector, 0) + whole[place]
            own = costs[host][place] if place < len(group) else 0
            link = collector, place % len(following)
            far[link] = far.get(link, 0) + whole[place] - own
        if len(group) > 1:
            most = max(most, *near.values())
        if len(topology.groups) > 1:
            most = max(most, *far.values())
    return most


GENERATORS: dict[Collective, Generator] = {
    Collective.ALL_REDUCE: all_reduce,
    Collective.REDUCE_SCATTER: reduce_scatter,
    Collective.ALL_GATHER: all_gather,
    Collective.BROADCAST: broadcast,
    Collective.REDUCE: reduce,
    Collective.BARRIER: barrier,
}
