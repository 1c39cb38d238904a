"""The schedule of a set of plans: their chunks, and what each chunk must wait for.

This is the execution contract of :mod:`securecoll.plan.ir` as a graph. Its nodes, *events*, are the chunks of all
steps of all ranks, numbered; its edges are the conditions under which a chunk may run, each of which is that another
chunk is done. The checker proves things of this graph and the cost model gives it times, so both look at the schedule
that the engine runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from securecoll.plan.ir import Plan, Record, Stream, records
from securecoll.plan.topology import Topology


class PlanError(ValueError):
    """The plans are wrong; the message says where and why."""


@dataclass(frozen=True, slots=True)
class _Traveller:
    """A step as one of its lanes sees it: ``count`` events from ``first``, which carry ``length`` bytes in all."""

    first: int
    count: int
    stream: Stream
    record: int
    length: int


@dataclass(slots=True)
class _Lane:
    """The chunks ("events") that write and read one lane, each in the lane's order."""

    writes: list[int]
    reads: list[list[int]] = field(default_factory=list)
    """Of each reader."""


class Schedule:
    """All chunks of all plans, and what each must wait for."""

    def __init__(self, plans: Sequence[Plan], topology: Topology, depth: int) -> None:
        """Match the lanes of well-formed plans, in rank order, and link all chunks.

        Raises:
            PlanError: when a writer and a reader of a lane do not agree.
        """
        self.plans = plans
        self.topology = topology
        self.depth = depth
        self.chunk = plans[0].chunk
        self.wave = plans[0].wave
        self.owner: list[tuple[int, int, int]] = []
        """Of each event: rank, step, chunk."""
        self.length: list[int] = []
        """Of each event: the bytes it covers."""
        self.first: list[list[int]] = []
        """The first event of [rank][step]."""
        for plan in plans:
            starts = []
            for index, step in enumerate(plan.steps):
                starts.append(len(self.owner))
                for k in range(records(step.length, self.chunk)):
                    self.owner.append((plan.rank, index, k))
                    self.length.append(min(self.chunk, step.length - k * self.chunk))
            self.first.append(starts)
        self.size = len(self.owner)
        self.origin: list[dict[int, int]] = [{} for _ in range(self.size)]
        """Of an event that reads: by lane, the event that wrote the record."""
        self.before: list[list[int]] = [[] for _ in range(self.size)]
        """Of each event: the events that must be done first, whatever the depth of lanes."""
        self.room: list[list[int]] = [[] for _ in range(self.size)]
        """Of each event: the events that must be done to free the slots it writes."""
        self._constrain(depth)

    def name(self, event: int) -> str:
        rank, index, chunk = self.owner[event]
        return f"rank {rank} step {index} ({self.plans[rank].steps[index].op.name}) chunk {chunk}"

    def awaited(self, event: int) -> list[int]:
        """The events that a chunk waits for by its step's ``after``."""
        rank, index, chunk = self.owner[event]
        steps = self.plans[rank].steps
        return [
            self.first[rank][earlier] + min(chunk, records(steps[earlier].length, self.chunk) - 1)
            for earlier in steps[index].after
        ]

    def _lanes(self) -> list[_Lane]:
        """The lanes, with writers and readers matched record for record."""
        size = len(self.plans)
        writing: dict[tuple[int, int], list[_Traveller]] = {}
        reading: dict[tuple[int, int], dict[int, list[_Traveller]]] = {}
        for plan in self.plans:
            rank = plan.rank
            for index, step in enumerate(plan.steps):
                first, count = self.first[rank][index], records(step.length, self.chunk)
                for source in step.sources:
                    if isinstance(source, Record):
                        key = (source.lane, rank) if source.lane < size else (source.lane - size, -1)
                        taken = _Traveller(first, count, source.stream, source.record, step.length)
                        reading.setdefault(key, {}).setdefault(rank, []).append(taken)
                if not step.lanes:
                    continue
                stream, record = step.stream, step.record
                if stream is None:
                    passed = step.sources[0]
                    assert isinstance(passed, Record)  # the form was checked: what writes and seals nothing forwards
                    stream, record = passed.stream, passed.record
                sent = _Traveller(first, count, stream, record, step.length)
                for lane in step.lanes:
                    writing.setdefault((rank, lane if lane < size else -1), []).append(sent)
        lanes = []
        for writer, target in sorted(writing.keys() | reading.keys()):
            sends = writing.get((writer, target), [])
            readers = reading.get((writer, target), {})
            matched = _Lane(self._in_lane_order(sends))
            for reader in [target] if target >= 0 else self.topology.others(writer):
                takes = readers.get(reader, [])
                order = self._in_lane_order(takes)
                matched.reads.append(order)
                if not _alike(sends, takes):
                    self._compare(writer, target, reader, sends, takes)
                number = writer if target >= 0 else size + writer
                for write, read in zip(matched.writes, order, strict=True):
                    self.origin[read][number] = write
            lanes.append(matched)
        return lanes

    def _in_lane_order(self, travellers: list[_Traveller]) -> list[int]:
        """Events ordered by wave, step and chunk."""
        if len(travellers) == 1:
            return list(range(travellers[0].first, travellers[0].first + travellers[0].count))
        order: list[int] = []
        longest = max((t.count for t in travellers), default=0)
        for start in range(0, longest, self.wave):
            for t in travellers:
                order += range(t.first + start, t.first + min(start + self.wave, t.count))
        return order

    def _compare(
        self, writer: int, target: int, reader: int, sends: list[_Traveller], takes: list[_Traveller]
    ) -> None:
        """Steps that differ may still be the same records: compare these, in the lane's order."""
        lane = f"the lane from rank {writer} to " + (f"rank {target}" if target >= 0 else "all")
        sent, taken = self._on_lane(sends), self._on_lane(takes)
        for position, (there, here) in enumerate(zip(sent, taken, strict=False)):
            if there[1:] != here[1:]:
                raise PlanError(
                    f"record {position} on {lane} is {_record(*there[1:])} to {self.name(there[0])} "
                    f"but {_record(*here[1:])} to {self.name(here[0])}"
                )
        if len(sent) != len(taken):
            raise PlanError(f"{lane} gets {len(sent)} records but rank {reader} reads {len(taken)}")

    def _on_lane(self, travellers: list[_Traveller]) -> list[tuple[int, Stream, int, int]]:
        described = {
            t.first + k: (t.first + k, t.stream, t.record + k, self.length[t.first + k])
            for t in travellers
            for k in range(t.count)
        }
        return [described[event] for event in self._in_lane_order(travellers)]

    def _constrain(self, depth: int) -> None:
        lanes = self._lanes()
        for event, (_, _, chunk) in enumerate(self.owner):
            needs = self.before[event]
            if chunk:
                needs.append(event - 1)
            needs += self.awaited(event)
            needs += self.origin[event].values()
        for lane in lanes:
            for order in (lane.writes, *lane.reads):
                for previous, event in pairwise(order):
                    if previous + 1 != event or not self.owner[event][2]:
                        self.before[event].append(previous)
            for reads in lane.reads:
                for event, reader in zip(lane.writes[depth:], reads, strict=False):
                    self.room[event].append(reader)

    def order(self) -> list[int]:
        """One order in which all events run.

        Raises:
            PlanError: names a cycle when the plans deadlock.
        """
        waiting = [len(a) + len(b) for a, b in zip(self.before, self.room, strict=True)]
        wakes: list[list[int]] = [[] for _ in range(self.size)]
        for needs in (self.before, self.room):
            for event, earlier in enumerate(needs):
                for need in earlier:
                    wakes[need].append(event)
        ready = deque(event for event in range(self.size) if not waiting[event])
        order: list[int] = []
        while ready:
            event = ready.popleft()
            order.append(event)
            for later in wakes[event]:
                waiting[later] -= 1
                if not waiting[later]:
                    ready.append(later)
        if len(order) < self.size:
            self._deadlock(waiting)
        return order

    def _deadlock(self, waiting: list[int]) -> None:
        event = next(event for event in range(self.size) if waiting[event])
        seen: dict[int, int] = {}
        path: list[int] = []
        while event not in seen:
            seen[event] = len(path)
            path.append(event)
            event = next(need for need in self.before[event] + self.room[event] if waiting[need])
        cycle = path[seen[event] :]
        full = any(cycle[(i + 1) % len(cycle)] in self.room[e] for i, e in enumerate(cycle))
        chain = ", which waits for ".join(self.name(e) for e in [*cycle[:6], *([] if len(cycle) > 6 else cycle[:1])])
        reason = f"lanes of {self.depth} slots are too shallow" if full else "whatever the depth of lanes"
        raise PlanError(f"deadlock, {reason}: {chain}{' and so on' if len(cycle) > 6 else ''}")


def _alike(sends: list[_Traveller], takes: list[_Traveller]) -> bool:
    """Whether both ends have the same steps, so that all records agree."""
    return len(sends) == len(takes) and all(
        (a.stream, a.record, a.length) == (b.stream, b.record, b.length) for a, b in zip(sends, takes, strict=True)
    )


def _record(stream: Stream, number: int, length: int) -> str:
    return f"{length} bytes as record {number} of the {describe(stream)}"


def describe(stream: Stream) -> str:
    """A stream in words."""
    if stream.reader < 0:
        return f"sender stream of rank {stream.writer}"
    return f"link stream from rank {stream.writer} to rank {stream.reader}"
