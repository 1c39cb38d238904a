"""What plans cost in time.

:func:`simulate` gives the schedule of a set of plans times: the schedule that the engine runs and the checker proves.
:mod:`securecoll.plan.estimate` has the closed forms that the tuner compares candidates with; the tests hold the two to
each other.

Model: each rank has one worker, which runs chunks that may run in the order (wave, step, chunk). A record that one
rank wrote is visible to another of its host ``hop_seconds`` later. Where ranks outnumber the cores of their host, all
their work slows down in proportion.

A record for another host costs both ends the work of a socket, and then takes the host's link, which its ranks share:
records leave one after the other in the order in which they were written, those that come from several hosts arrive
one after the other, and the network adds its hop. Links carry both directions at once, and the network between them
has room for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

from securecoll.plan.ir import Plan, Record, Step, StepOp
from securecoll.plan.schedule import Schedule
from securecoll.plan.topology import Topology

TAG = 16
"""Bytes that a record has beside its payload."""


@dataclass(frozen=True, slots=True)
class Network:
    """What lies between hosts, in bytes and seconds. The defaults: Ethernet at 25 Gbit/s."""

    link: float = 3.1e9
    """Bytes per second, each way, between a host and all others, for all its ranks together."""
    socket: float = 4.0e9
    """Bytes per second that one core moves into or out of a socket."""
    record_seconds: float = 2.0e-6
    """Fixed cost of a record on a socket, at either end."""
    hop_seconds: float = 20.0e-6
    """From a record sent to its reader noticing it, beside its time on the link."""

    def cost(self, payload: float) -> float:
        """Seconds on a link."""
        return (payload + TAG) / self.link


@dataclass(frozen=True, slots=True)
class Rates:
    """What one core does, in bytes and seconds, and how many there are."""

    seal: float
    """Bytes per second, private memory to a slot."""
    open: float
    """Bytes per second, a slot to private memory, verified."""
    reduce: float
    """Bytes per second that one contribution adds to a reduction."""
    copy: float
    """Bytes per second; also of passing ciphertext on, and of each copy of what goes to several lanes."""
    record_seconds: float
    """Fixed cost of sealing, opening or passing on a record."""
    hop_seconds: float
    """From a record written to its reader noticing it."""
    cores: int
    """Cores that the ranks of a host share."""
    network: Network = Network()


@dataclass(frozen=True, slots=True)
class Interval:
    """When a chunk ran."""

    rank: int
    step: int
    chunk: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated run."""

    seconds: float
    busy: tuple[float, ...]
    """Seconds that each rank's worker was not waiting."""
    intervals: tuple[Interval, ...]
    """In the order of the schedule's events."""
    records: tuple[tuple[int, int], ...]
    """(from, to), indices into ``intervals``: which chunk wrote what another read."""


def simulate(plans: Sequence[Plan], rates: Rates, depth: int) -> Timeline:
    """Run the plans of all ranks, in rank order, with lanes of ``depth`` slots.

    Raises:
        PlanError: when they do not fit together or deadlock.
    """
    call = plans[0].call
    topology = Topology.single(len(plans)) if call is None else call.topology
    schedule = Schedule(plans, topology, depth)
    schedule.order()
    return _Run(schedule, rates).run()


class _Turn(IntEnum):
    """What the agenda of a run holds; at one time, in this order."""

    MAY_RUN = 0
    ENDED = 1
    LEFT = 2


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A record on its way to another host."""

    host: int
    seconds: float
    """On the link."""
    left: float
    """When the last of it was on the link."""
    readers: list[int]
    """The chunks that read it."""


class _Run:
    """One run of a schedule."""

    def __init__(self, schedule: Schedule, rates: Rates) -> None:
        plans, topology = schedule.plans, schedule.topology
        self.schedule = schedule
        self.rates = rates
        self.slowdown = [max(1.0, len(topology.group(rank)) / rates.cores) for rank in range(len(plans))]
        self.seconds: list[dict[tuple[int, int], float]] = [{} for _ in plans]
        """By rank, what a chunk of a step costs: of few lengths, so kept."""
        self.leaving = [0.0] * len(topology.groups)
        """When the records that a host has written have left."""
        self.arriving = [0.0] * len(topology.groups)
        """When the last of what left for a host has arrived there."""

    def run(self) -> Timeline:
        schedule, owner = self.schedule, self.schedule.owner
        waiting = [len(a) + len(b) for a, b in zip(schedule.before, schedule.room, strict=True)]
        wakes: list[list[int]] = [[] for _ in range(schedule.size)]
        for needs in (schedule.before, schedule.room):
            for event, earlier in enumerate(needs):
                for need in earlier:
                    wakes[need].append(event)
        may_run = [0.0] * schedule.size
        start, stop = [0.0] * schedule.size, [0.0] * schedule.size
        queues: list[list[tuple[int, int, int, int]]] = [[] for _ in schedule.plans]
        busy: list[int | None] = [None] * len(queues)
        worked = [0.0] * len(queues)
        # At one time ends come last, so that a worker picks among all that may run.
        agenda = [(0.0, _Turn.MAY_RUN, event) for event in range(schedule.size) if not waiting[event]]
        transfers: list[_Transfer] = []

        def wake(later: int, seen: float) -> None:
            may_run[later] = max(may_run[later], seen)
            waiting[later] -= 1
            if not waiting[later]:
                heappush(agenda, (may_run[later], _Turn.MAY_RUN, later))

        while agenda:
            now = agenda[0][0]
            touched = set()
            while agenda and agenda[0][0] == now:
                _, turn, event = heappop(agenda)
                if turn is _Turn.LEFT:
                    seen = self._arrive(transfers[event])
                    for later in transfers[event].readers:
                        wake(later, seen)
                    continue
                rank, index, chunk = owner[event]
                touched.add(rank)
                if turn is _Turn.MAY_RUN:
                    heappush(queues[rank], (chunk // schedule.wave, index, chunk, event))
                    continue
                busy[rank] = None
                for left, transfer in self._send(event, now, wakes[event]):
                    heappush(agenda, (left, _Turn.LEFT, len(transfers)))
                    transfers.append(transfer)
                for later in wakes[event]:
                    if not self._carried(event, later):
                        wake(later, self._seen(event, later, now))
            for rank in touched:
                if busy[rank] is None and queues[rank]:
                    *_, event = heappop(queues[rank])
                    seconds = self._work(event)
                    busy[rank] = event
                    worked[rank] += seconds
                    start[event], stop[event] = now, now + seconds
                    heappush(agenda, (now + seconds, _Turn.ENDED, event))
        return Timeline(
            max(stop, default=0.0),
            tuple(worked),
            tuple(Interval(*owner[event], start[event], stop[event]) for event in range(schedule.size)),
            tuple((write, read) for read in range(schedule.size) for write in schedule.origin[read].values()),
        )

    def _work(self, event: int) -> float:
        """Seconds of the worker."""
        rank, index, _ = self.schedule.owner[event]
        length = self.schedule.length[event]
        known = self.seconds[rank].get((index, length))
        if known is None:
            step = self.schedule.plans[rank].steps[index]
            known = self.slowdown[rank] * _seconds(step, rank, length, self.schedule.topology, self.rates)
            self.seconds[rank][index, length] = known
        return known

    def _send(self, event: int, now: float, wakes: list[int]) -> list[tuple[float, _Transfer]]:
        """Puts what a chunk wrote for other hosts on its host's link; when each record has left."""
        rank, index, _ = self.schedule.owner[event]
        topology = self.schedule.topology
        host, seconds = topology.hosts[rank], self.rates.network.cost(self.schedule.length[event])
        sent = []
        for reader in self.schedule.plans[rank].steps[index].lanes:
            if reader == len(topology) or not topology.crosses(rank, reader):
                continue
            self.leaving[host] = max(now, self.leaving[host]) + seconds
            readers = [e for e in wakes if self.schedule.owner[e][0] == reader and self._carried(event, e)]
            sent.append((self.leaving[host], _Transfer(topology.hosts[reader], seconds, self.leaving[host], readers)))
        return sent

    def _arrive(self, transfer: _Transfer) -> float:
        """When the reader of a record that has left may see it."""
        earliest = self.arriving[transfer.host] + transfer.seconds
        self.arriving[transfer.host] = max(transfer.left, earliest)
        return self.arriving[transfer.host] + self.rates.network.hop_seconds

    def _carried(self, event: int, later: int) -> bool:
        """Whether a later chunk reads what this one wrote for another host."""
        schedule = self.schedule
        rank, other = schedule.owner[event][0], schedule.owner[later][0]
        return schedule.topology.crosses(rank, other) and event in schedule.origin[later].values()

    def _seen(self, event: int, later: int, now: float) -> float:
        """When the rank of a later chunk knows that this one is done, if not by a record from another host."""
        rank, other = self.schedule.owner[event][0], self.schedule.owner[later][0]
        if rank == other:
            return now
        across = self.schedule.topology.crosses(rank, other)
        return now + (self.rates.network.hop_seconds if across else self.rates.hop_seconds)


def _seconds(step: Step, rank: int, length: int, topology: Topology, rates: Rates) -> float:
    """What one chunk of a step costs."""
    if step.op is StepOp.COPY:
        return length / rates.copy
    size, network = len(topology), rates.network
    lanes = [source.lane for source in step.sources if isinstance(source, Record)]
    opens = len(lanes) if step.op is not StepOp.FORWARD or step.block is not None else 0
    seconds = opens * (rates.record_seconds + length / rates.open)
    if step.op is StepOp.REDUCE:
        seconds += len(step.sources) * length / rates.reduce
    if step.stream is not None:
        seconds += rates.record_seconds + length / rates.seal
        if len(step.lanes) > 1:
            seconds += len(step.lanes) * length / rates.copy
    if step.op is StepOp.FORWARD:
        seconds += len(step.lanes) * (rates.record_seconds + length / rates.copy)
    sockets = sum(lane < size and topology.crosses(rank, lane) for lane in (*lanes, *step.lanes))
    return seconds + sockets * (network.record_seconds + length / network.socket)
