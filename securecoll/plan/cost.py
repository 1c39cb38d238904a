"""What plans cost in time.

:func:`simulate` gives the schedule of a set of plans times: the schedule that the engine runs and the checker proves.
:func:`estimate` is the closed form that the tuner compares candidates with; the tests hold the two to each other.

Model: each rank has one worker, which runs chunks that may run in the order (wave, step, chunk). A record that one
rank wrote is visible to another ``hop_seconds`` later. Where ranks outnumber cores, all work slows down in proportion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from securecoll.codes import Collective
from securecoll.plan.call import ALIGNMENT
from securecoll.plan.ir import Plan, Record, Step, StepOp, records
from securecoll.plan.schedule import Schedule
from securecoll.plan.topology import Topology


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
    """Bytes per second; also of passing ciphertext on."""
    record_seconds: float
    """Fixed cost of sealing, opening or passing on a record."""
    hop_seconds: float
    """From a record written to its reader noticing it."""
    cores: int
    """Cores that the ranks share."""


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
    slowdown = max(1.0, len(plans) / rates.cores)
    owner = schedule.owner
    waiting = [len(a) + len(b) for a, b in zip(schedule.before, schedule.room, strict=True)]
    wakes: list[list[int]] = [[] for _ in range(schedule.size)]
    for needs in (schedule.before, schedule.room):
        for event, earlier in enumerate(needs):
            for need in earlier:
                wakes[need].append(event)
    may_run = [0.0] * schedule.size
    start, stop = [0.0] * schedule.size, [0.0] * schedule.size
    queues: list[list[tuple[int, int, int, int]]] = [[] for _ in plans]
    busy: list[int | None] = [None] * len(plans)
    worked = [0.0] * len(plans)
    # (time, whether it is an end, event): at one time ends come last, so that a worker picks among all that may run.
    agenda: list[tuple[float, bool, int]] = [
        (0.0, False, event) for event in range(schedule.size) if not waiting[event]
    ]
    while agenda:
        now = agenda[0][0]
        touched = set()
        while agenda and agenda[0][0] == now:
            _, ended, event = heappop(agenda)
            rank, index, chunk = owner[event]
            touched.add(rank)
            if not ended:
                heappush(queues[rank], (chunk // schedule.wave, index, chunk, event))
                continue
            busy[rank] = None
            for later in wakes[event]:
                seen = now if owner[later][0] == rank else now + rates.hop_seconds
                may_run[later] = max(may_run[later], seen)
                waiting[later] -= 1
                if not waiting[later]:
                    heappush(agenda, (may_run[later], False, later))
        for rank in touched:
            if busy[rank] is None and queues[rank]:
                *_, event = heappop(queues[rank])
                seconds = slowdown * _seconds(plans[rank].steps[owner[event][1]], schedule.length[event], rates)
                busy[rank] = event
                worked[rank] += seconds
                start[event], stop[event] = now, now + seconds
                heappush(agenda, (now + seconds, True, event))
    return Timeline(
        max(stop, default=0.0),
        tuple(worked),
        tuple(Interval(*owner[event], start[event], stop[event]) for event in range(schedule.size)),
        tuple((write, read) for read in range(schedule.size) for write in schedule.origin[read].values()),
    )


def _seconds(step: Step, length: int, rates: Rates) -> float:
    """What one chunk of a step costs."""
    if step.op is StepOp.COPY:
        return length / rates.copy
    taken = sum(isinstance(source, Record) for source in step.sources)
    opens = taken if step.op is not StepOp.FORWARD or step.block is not None else 0
    seconds = opens * (rates.record_seconds + length / rates.open)
    if step.op is StepOp.REDUCE:
        seconds += len(step.sources) * length / rates.reduce
    if step.stream is not None:
        seconds += rates.record_seconds + length / rates.seal
    if step.op is StepOp.FORWARD:
        seconds += len(step.lanes) * (rates.record_seconds + length / rates.copy)
    return seconds


def estimate(
    collective: Collective, algorithm: str, size: int, nbytes: int, chunk: int, wave: int, rates: Rates
) -> float:
    """Seconds for even parts, in closed form.

    With ``k`` chunks of ``s`` bytes a slice or part, and all times multiplied by the slowdown of too few cores, it is

    * the work of the busiest rank: each record's fixed cost, and bytes over rates (see ``_seconds``);
    * plus, where ranks work in parallel, one hop for each dependent step, less what the other chunks of a wave hide
      of it: ``ceil(k / wave) * max(0, hop - (min(k, wave) - 1) * t)`` where t is a chunk's part of the work;
    * plus, where they work in turn (a chain, or one root), a hop and a chunk's work for each turn before the last.

    ``nbytes`` is as for :func:`securecoll.plan.plan`.

    Raises:
        ValueError: when the collective has no such algorithm.
    """
    if size == 1:
        return nbytes / rates.copy
    slow = max(1.0, size / rates.cores)
    whole = collective in (Collective.ALL_REDUCE, Collective.REDUCE) and algorithm == "direct"
    whole = whole or (collective is Collective.ALL_REDUCE and algorithm == "ring")
    length = -(-nbytes // size) if whole else nbytes
    k = records(length, chunk)
    fixed = k * rates.record_seconds
    seal, open_ = fixed + length / rates.seal, fixed + length / rates.open
    add, copy = length / rates.reduce, length / rates.copy
    peers, hop = size - 1, rates.hop_seconds
    owners = min(size, -(-nbytes // ALIGNMENT))
    direct = owners * seal + (peers + owners - 1) * open_ + size * add
    match collective, algorithm:
        case Collective.BARRIER, _:
            return slow * (peers + 1) * rates.record_seconds + hop
        case Collective.ALL_REDUCE, "one_shot":
            return slow * (seal + peers * open_ + (size + 1) * add) + hop
        case ((Collective.ALL_REDUCE | Collective.REDUCE), "direct"):
            return slow * direct + 2 * hop
        case Collective.ALL_REDUCE, "ring":
            hops = peers * (seal + open_ + 2 * add) + seal + (peers - 1) * (open_ + copy + fixed) + open_
            return slow * hops + _stalls(2 * peers, slow * hops / (2 * peers), k, wave, hop)
        case Collective.REDUCE_SCATTER, "one_shot":
            return slow * (peers * (seal + open_) + size * add) + hop
        case Collective.REDUCE_SCATTER, "ring":
            hops = peers * (seal + open_ + 2 * add)
            return slow * hops + _stalls(peers, slow * hops / peers, k, wave, hop)
        case Collective.ALL_GATHER, "one_shot":
            return slow * (seal + copy + peers * open_) + hop
        case Collective.ALL_GATHER, "ring":
            hops = seal + copy + (peers - 1) * (open_ + copy + fixed) + open_
            return slow * hops + _stalls(peers, slow * hops / peers, k, wave, hop)
        case Collective.BROADCAST, "one_shot":
            return slow * _turns(k, (seal + copy, 1), (open_, 1)) + hop
        case Collective.BROADCAST, "ring":
            return slow * _turns(k, (seal + copy, 1), (open_ + copy + fixed, peers - 1), (open_, 1)) + peers * hop
        case Collective.REDUCE, "one_shot":
            return slow * _turns(k, (seal, 1), (peers * open_ + size * add, 1)) + hop
        case Collective.REDUCE, "ring":
            return slow * _turns(k, (seal, 1), (open_ + 2 * add + seal, peers - 1), (open_ + 2 * add, 1)) + peers * hop
        case Collective.GATHER, "one_shot":
            return slow * _turns(k, (seal, 1), (copy + peers * open_, 1)) + hop
        case Collective.SCATTER, "one_shot":
            return slow * _turns(k, (copy + peers * seal, 1), (open_, 1)) + hop
        case Collective.ALL_TO_ALL, "one_shot":
            return slow * (peers * (seal + open_) + copy) + hop
    raise ValueError(f"{collective.name.lower()} has no algorithm {algorithm!r}")


def _stalls(steps: int, step_seconds: float, k: int, wave: int, hop: float) -> float:
    """What hops cost that a wave's other chunks do not hide."""
    together = min(k, wave)
    hidden = (together - 1) * step_seconds / k
    return steps * -(-k // wave) * max(0.0, hop - hidden)


def _turns(k: int, *stages: tuple[float, int]) -> float:
    """A pipeline of (seconds for all chunks, ranks that do so in turn): the slowest one, and a chunk of each other."""
    slowest = max(seconds for seconds, ranks in stages if ranks)
    return slowest + (sum(seconds * ranks for seconds, ranks in stages) - slowest) / k
