"""The checker: proves the plans of all ranks together before any of them ships.

What is proven, each in its own section below:

* *Form*: every step has the fields of its operation, stays inside its buffers, never writes INPUT, and uses lanes and
  streams that are its rank's to use.
* *Lanes*: writer and readers of each lane agree, record for record, on order, stream, record number and length; every
  record is read by all its readers. Those of a lane to all are the other ranks of the writer's host, and no others.
* *Nonces*: no (stream, record) is sealed twice.
* *Progress*: with lanes of ``depth`` slots the plans run to their end. By the contract of :mod:`securecoll.plan.ir`
  all conditions of a chunk name chunks that must be done, so the schedule is one directed graph: the plans can
  deadlock exactly when it has a cycle, whatever order the engine runs chunks in.
* *Races*: any two accesses to the same bytes of which one writes are ordered by that graph without the edges that come
  from full lanes (a deeper lane must not undo a proof), with INPUT and OUTPUT distinct and with both the same memory.
* *Witnesses*: whoever moves nothing, or deals with peers one by one, hears of all whom the call concerns.
* *Values*: run over symbolic memory, with INPUT and OUTPUT distinct and with both the same memory, the plans compute
  the collective. A value names each contribution, where it was scaled and rounded, and the order of every addition, so
  "the same bits on every rank" is equality. All records hold the same values in both runs, so any mixture of ranks
  that run in place and ranks that do not is proven too.
* *Traffic*: each rank seals, opens and carries to other hosts the bytes that :mod:`securecoll.plan.traffic` documents,
  and ``Plan.blocks`` is what the busiest stream costs.

Values are kept per interval, not per byte, so the cost grows with the number of chunks, not with bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from securecoll.codes import Collective
from securecoll.plan.call import ALIGNMENT, REDUCTIONS, Call
from securecoll.plan.ir import INPUT, OUTPUT, Block, Plan, Record, Step, StepOp, Stream, cipher_blocks, records
from securecoll.plan.schedule import PlanError, Schedule, describe
from securecoll.plan.traffic import traffic

__all__ = ["PlanError", "Proof", "check"]

_RECORDS = 1 << 24
_PAIRWISE = frozenset({Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL})


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proven of a set of plans; one entry per rank where there are several."""

    collective: Collective
    algorithm: str
    size: int
    depth: int
    """Slots that each lane was given."""
    chunks: int
    """Chunks that all ranks run together."""
    sealed: tuple[int, ...]
    """Payload bytes that each rank seals."""
    opened: tuple[int, ...]
    """Payload bytes that each rank opens."""
    carried: tuple[int, ...]
    """Payload bytes that each rank writes to lanes between hosts."""
    records_sealed: tuple[int, ...]
    records_opened: tuple[int, ...]
    blocks: int
    """Cipher blocks of the busiest stream."""


def check(plans: Sequence[Plan], depth: int) -> Proof:
    """Prove the plans of all ranks, in rank order, for lanes of ``depth`` slots.

    Raises:
        PlanError: with one sentence on the first fault found.
    """
    if depth < 1:
        raise PlanError(f"a lane needs at least one slot, not {depth}")
    calls = _calls(plans)
    for plan, call in zip(plans, calls, strict=True):
        _Form(plan, call).check()
    _nonces(plans)
    schedule = Schedule(plans, calls[0].topology, depth)
    order = schedule.order()
    _witnessed(schedule, calls, order)
    _Races(schedule, calls, order).check()
    trees = _Trees(len(plans))
    distinct = _Execution(schedule, calls, trees, in_place=False)
    distinct.run(order)
    in_place = _Execution(schedule, calls, trees, in_place=True)
    in_place.run(order)
    for event in order:
        if distinct.sent.get(event) != in_place.sent.get(event):
            raise PlanError(f"{schedule.name(event)} seals something else when its rank runs in place")
    _Result(calls, trees, distinct, "with distinct buffers").check()
    _Result(calls, trees, in_place, "in place").check()
    proof = _traffic(plans, calls, depth, schedule.size)
    _budget(plans, calls)
    return proof


# Form


def _calls(plans: Sequence[Plan]) -> list[Call]:
    """The calls, which must be the same call seen from each rank."""
    if not plans:
        raise PlanError("there are no plans")
    calls = []
    for rank, plan in enumerate(plans):
        if plan.call is None:
            raise PlanError(f"rank {rank}'s plan does not say what it is for")
        if (plan.rank, plan.size) != (rank, len(plans)):
            raise PlanError(f"plan {rank} of {len(plans)} is for rank {plan.rank} of {plan.size}")
        if (plan.call.rank, plan.call.size, plan.call.collective) != (rank, len(plans), plan.collective):
            raise PlanError(f"rank {rank}'s plan is for another call than it says")
        calls.append(plan.call)
    first, common = calls[0], plans[0]
    for rank, (plan, call) in enumerate(zip(plans, calls, strict=True)):
        for name in ("collective", "algorithm", "chunk", "wave", "identity", "blocks"):
            mine, theirs = getattr(plan, name), getattr(common, name)
            if mine != theirs:
                raise PlanError(f"{name} is {mine!r} on rank {rank} but {theirs!r} on rank 0")
        if call.topology != first.topology:
            raise PlanError(f"rank {rank} places ranks on other hosts than rank 0")
        for name in ("nbytes", "itemsize", "root", "counts"):
            mine, theirs = getattr(call, name), getattr(first, name)
            if mine != theirs and not (name == "nbytes" and call.collective is Collective.ALL_TO_ALL):
                raise PlanError(f"the call's {name} is {mine} on rank {rank} but {theirs} on rank 0")
    if first.collective is Collective.ALL_TO_ALL:
        sends, receives = [call.sends for call in calls], [call.receives for call in calls]
        for writer, spans in enumerate(sends):
            for reader, (_, length) in enumerate(spans):
                if receives[reader][writer][1] != length:
                    raise PlanError(
                        f"rank {writer} sends {length} bytes to rank {reader}, "
                        f"which expects {receives[reader][writer][1]}"
                    )
    if common.chunk < ALIGNMENT or common.chunk % ALIGNMENT:
        raise PlanError(f"the chunk must be a positive multiple of {ALIGNMENT} bytes, not {common.chunk}")
    if common.wave < 1:
        raise PlanError(f"the wave must be at least 1, not {common.wave}")
    return calls


class _Form:
    """One rank's plan by itself."""

    def __init__(self, plan: Plan, call: Call) -> None:
        self.plan = plan
        self.call = call
        self.limits = (call.input_bytes, call.output_bytes)

    def check(self) -> None:
        for index, step in enumerate(self.plan.steps):
            fault = self._fault(index, step)
            if fault:
                raise PlanError(f"rank {self.plan.rank} step {index} ({step.op.name}) {fault}")

    def _fault(self, index: int, step: Step) -> str | None:
        blocks = [source for source in step.sources if isinstance(source, Block)]
        taken = [source for source in step.sources if isinstance(source, Record)]
        return (
            self._shape(step, blocks, taken)
            or self._memory(step, blocks)
            or self._after(index, step)
            or self._lanes(step, taken)
            or self._streams(step, taken)
        )

    @staticmethod
    def _shape(step: Step, blocks: list[Block], taken: list[Record]) -> str | None:
        op, empty = step.op, step.length == 0
        if step.length < 0:
            return f"has the length {step.length}"
        if op is StepOp.SEAL and (step.sources or (step.block is None) != empty):
            return "must seal its block and nothing else"
        if op in (StepOp.OPEN, StepOp.FORWARD) and (len(taken), len(blocks)) != (1, 0):
            return "must have one record as its source"
        if op is StepOp.OPEN and (step.block is None) != empty:
            return "must open into a block"
        if op is StepOp.REDUCE and (not step.sources or empty):
            return "must have something to reduce"
        if op is StepOp.REDUCE and step.block is None and step.stream is None:
            return "reduces into nothing"
        if op is StepOp.COPY and ((len(blocks), len(taken)) != (1, 0) or step.block is None or empty):
            return "must copy one block to another"
        if op is StepOp.FORWARD and (not step.lanes or (step.block is not None and empty)):
            return "must pass its record on"
        seals = op is StepOp.SEAL or (op is StepOp.REDUCE and step.stream is not None)
        if seals and (step.stream is None or not step.lanes):
            return "must seal on a stream into a lane"
        if not seals and step.stream is not None:
            return "has a stream but seals nothing"
        if not seals and step.lanes and op is not StepOp.FORWARD:
            return "has lanes but writes nothing to them"
        if step.scale and op not in (StepOp.SEAL, StepOp.REDUCE):
            return "scales, which only SEAL and REDUCE do"
        if step.finish and op is not StepOp.REDUCE:
            return "finishes, which only REDUCE does"
        return None

    def _memory(self, step: Step, blocks: list[Block]) -> str | None:
        for block in (step.block, *blocks):
            if block is None:
                continue
            if block.length != step.length:
                return f"has a block of {block.length} bytes but covers {step.length}"
            if block.buffer not in (INPUT, OUTPUT):
                return f"names buffer {block.buffer}"
            if block.offset < 0 or block.offset + block.length > self.limits[block.buffer]:
                return (
                    f"uses bytes [{block.offset}, {block.offset + block.length}) of a buffer that has "
                    f"{self.limits[block.buffer]}"
                )
            if block.offset % self.call.itemsize or block.length % self.call.itemsize:
                return f"cuts elements of {self.call.itemsize} bytes"
        if step.op is not StepOp.SEAL and step.block is not None and step.block.buffer == INPUT:
            return "writes to the input"
        return None

    def _after(self, index: int, step: Step) -> str | None:
        for earlier in step.after:
            if not 0 <= earlier < len(self.plan.steps) or earlier == index:
                return f"waits for step {earlier}, which is not another step"
        return None

    def _lanes(self, step: Step, taken: list[Record]) -> str | None:
        rank, size, topology = self.plan.rank, self.plan.size, self.call.topology
        alone = len(topology.group(rank)) == 1
        for lane in step.lanes:
            if not 0 <= lane <= size or lane == rank or (lane == size and alone):
                return f"writes to lane {lane}, which it does not have"
        for source in taken:
            peer = source.lane % size
            afar = source.lane >= size and topology.crosses(peer, rank)
            if not 0 <= source.lane < 2 * size or peer == rank or afar:
                return f"reads from lane {source.lane}, which it does not have"
        if len(set(step.lanes)) < len(step.lanes) or len({source.lane for source in taken}) < len(taken):
            return "uses a lane twice"
        return None

    def _streams(self, step: Step, taken: list[Record]) -> str | None:
        rank, size = self.plan.rank, self.plan.size
        if step.stream is not None:
            if step.stream.writer != rank:
                return f"seals on a stream of rank {step.stream.writer}"
            if step.stream.reader == rank or not -1 <= step.stream.reader < size:
                return f"seals for rank {step.stream.reader}, which is no other rank"
            if step.record < 0 or step.record + records(step.length, self.plan.chunk) > _RECORDS:
                return f"seals records up to {step.record + records(step.length, self.plan.chunk)} of {_RECORDS}"
        for source in taken:
            opens = step.op is not StepOp.FORWARD or step.block is not None
            if opens and source.stream.reader not in (-1, rank):
                return f"opens a record that is for rank {source.stream.reader}"
            if opens and source.stream.writer == rank:
                return "opens a record of its own"
        return None


def _nonces(plans: Sequence[Plan]) -> None:
    """No record number twice on a stream."""
    sealed: dict[Stream, list[tuple[int, int, int, int]]] = {}
    for plan in plans:
        for index, step in enumerate(plan.steps):
            if step.stream is not None:
                span = (step.record, step.record + records(step.length, plan.chunk), plan.rank, index)
                sealed.setdefault(step.stream, []).append(span)
    for stream, spans in sealed.items():
        spans.sort()
        for (_, stop, _, first), (start, _, rank, second) in pairwise(spans):
            if start < stop:
                raise PlanError(
                    f"rank {rank} steps {first} and {second} both seal record {start} of the {describe(stream)}"
                )


# Witnesses


def _witnessed(schedule: Schedule, calls: Sequence[Call], order: Sequence[int]) -> None:
    """Calls that move nothing still exchange records, so that a call that does not match is noticed, and so that no
    rank returns from a barrier before all have called.

    A record vouches for its writer and, through ``after``, for whomever that had heard of when it sealed it.
    """
    call, size = calls[0], len(calls)
    nothing = call.collective is Collective.BARRIER or (
        not call.total and call.collective is not Collective.ALL_TO_ALL and size > 1
    )
    if size == 1 or not (nothing or call.collective in _PAIRWISE):
        return
    everyone = (1 << size) - 1
    heard_of = _heard_of(schedule, order)
    for rank in range(size):
        if nothing or call.collective is Collective.ALL_TO_ALL:
            expected = everyone
        elif call.collective is Collective.SCATTER:
            expected = 1 << call.root
        else:
            expected = everyone if rank == call.root else 0
        missing = expected & ~(heard_of[rank] | 1 << rank)
        if missing:
            raise PlanError(f"rank {rank} opens no record of rank {(missing & -missing).bit_length() - 1}")


def _heard_of(schedule: Schedule, order: Sequence[int]) -> list[int]:
    """Of each rank, those that it has heard of in the end, one bit each."""
    heard = [0] * schedule.size
    vouched = [0] * schedule.size
    """Of an event that writes a record: for whom that speaks."""
    total = [0] * len(schedule.plans)
    for event in order:
        rank, index, chunk = schedule.owner[event]
        step = schedule.plans[rank].steps[index]
        known = 1 << rank
        if chunk:
            known |= heard[event - 1]
        for earlier in schedule.awaited(event):
            known |= heard[earlier]
        arrived = 0
        for write in schedule.origin[event].values():
            arrived |= vouched[write]
        if step.op is not StepOp.FORWARD or step.block is not None:
            known |= arrived
        heard[event] = known
        vouched[event] = arrived if step.op is StepOp.FORWARD else known
        total[rank] |= known
    return total


# Races


def _bases(call: Call, in_place: bool) -> tuple[int, int]:
    """Where INPUT and OUTPUT start in one address space: apart, or as a call in place lays them out."""
    if not in_place or call.collective is Collective.ALL_TO_ALL or not (call.input_bytes and call.output_bytes):
        return 0, call.input_bytes
    if call.collective in (Collective.ALL_GATHER, Collective.GATHER):
        return call.parts[call.rank][0], 0
    if call.collective in (Collective.REDUCE_SCATTER, Collective.SCATTER):
        return 0, call.parts[call.rank][0]
    return 0, 0


class _Races:
    """Conflicting accesses to memory, and whether the schedule orders them."""

    def __init__(self, schedule: Schedule, calls: Sequence[Call], order: list[int]) -> None:
        self.schedule = schedule
        self.calls = calls
        self.order = order
        self.position = [0] * schedule.size
        for position, event in enumerate(order):
            self.position[event] = position

    def check(self) -> None:
        open_pairs: list[tuple[int, int]] = []
        before = self.schedule.before
        for rank, plan in enumerate(self.schedule.plans):
            pairs = self._conflicts(rank, in_place=True)
            # Distinct buffers share fewer bytes, so they add no conflict but a COPY's, which in place does nothing.
            if any(step.op is StepOp.COPY for step in plan.steps):
                pairs |= self._conflicts(rank, in_place=False)
            for first, second in sorted(pairs):
                near = before[second]
                if first not in near and not any(first in before[need] for need in near):
                    open_pairs.append((first, second))
        if open_pairs:
            self._reachable(open_pairs)

    def _conflicts(self, rank: int, in_place: bool) -> set[tuple[int, int]]:
        """Pairs of events of a rank that touch the same bytes, at least one writing, in the order they ran."""
        schedule = self.schedule
        bases = _bases(self.calls[rank], in_place)
        reads: list[tuple[int, int, int]] = []
        writes: list[tuple[int, int, int]] = []
        for index, step in enumerate(schedule.plans[rank].steps):
            if not step.length:
                continue
            read = [source for source in step.sources if isinstance(source, Block)]
            written = step.block
            if step.op is StepOp.SEAL and step.block is not None:
                read, written = [step.block], None
            starts = [bases[block.buffer] + block.offset for block in read]
            target = None if written is None else bases[written.buffer] + written.offset
            if step.op is StepOp.COPY and starts == [target]:
                continue  # the same memory: nothing happens
            for start in starts:
                if target is not None and target != start and abs(target - start) < step.length:
                    raise PlanError(
                        f"rank {rank} step {index} ({step.op.name}) writes over a part of its own source"
                        + (" in place" if in_place else "")
                    )
            first = schedule.first[rank][index]
            for k in range(records(step.length, schedule.chunk)):
                low, high = k * schedule.chunk, min((k + 1) * schedule.chunk, step.length)
                reads += [(start + low, start + high, first + k) for start in starts]
                if target is not None:
                    writes.append((target + low, target + high, first + k))
        reads.sort()
        writes.sort()
        pairs = set()
        for accesses in (reads, writes):
            starts = [access[0] for access in accesses]
            for low, high, event in writes:
                index = bisect_left(starts, high)
                while index and accesses[index - 1][0] > low - schedule.chunk:
                    index -= 1
                    _, stop, other = accesses[index]
                    if stop > low and other != event:
                        pair = (event, other) if self.position[event] < self.position[other] else (other, event)
                        pairs.add(pair)
        return pairs

    def _reachable(self, pairs: list[tuple[int, int]]) -> None:
        """Each pair's first event must reach its second one: one bit per first event, carried down the order."""
        bit = {event: 1 << index for index, event in enumerate({first for first, _ in pairs})}
        wanted: dict[int, list[int]] = {}
        for first, second in pairs:
            wanted.setdefault(second, []).append(first)
        reach = [0] * self.schedule.size
        for event in self.order:
            reached = 0
            for need in self.schedule.before[event]:
                reached |= reach[need]
            for first in wanted.get(event, ()):
                if not reached & bit[first]:
                    raise PlanError(
                        f"{self.schedule.name(first)} and {self.schedule.name(event)} touch the same memory "
                        "and nothing orders them"
                    )
            reach[event] = reached | bit.get(event, 0)


# Values


Piece = tuple[int, int, int]
"""(length, tree, offset): element x of the piece is the tree's expression over the inputs' elements at offset + x."""


class _Trees:
    """Expressions, each kept once, so that equal ones have equal numbers. Tree r < size is rank r's raw input."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.known: dict[tuple[bool, tuple[tuple[int, int, bool], ...]], int] = {}
        self.mask = [1 << rank for rank in range(size)]
        """Ranks that contribute, one bit each."""
        self.twice = [0] * size
        """Ranks that contribute more than once."""
        self.raw = [1 << rank for rank in range(size)]
        """Ranks that contribute without their factor."""
        self.finished = [False] * size
        self.inside = [False] * size
        """Whether something below the top was finished already."""
        self.skewed = [False] * size
        """Whether elements at different places were combined."""

    def combine(self, finish: bool, children: tuple[tuple[int, int, bool], ...]) -> int:
        """The tree for children (tree, offset relative to the first child's, scaled)."""
        if len(children) == 1 and not finish and not children[0][2]:
            return children[0][0]
        key = (finish, children)
        tree = self.known.get(key)
        if tree is not None:
            return tree
        mask = twice = raw = 0
        inside = skewed = False
        for child, shift, scaled in children:
            twice |= self.twice[child] | (mask & self.mask[child])
            mask |= self.mask[child]
            raw |= 0 if scaled else self.raw[child]
            inside |= self.finished[child] or self.inside[child]
            skewed |= shift != 0 or self.skewed[child]
        tree = self.known[key] = len(self.mask)
        self.mask.append(mask)
        self.twice.append(twice)
        self.raw.append(raw)
        self.finished.append(finish)
        self.inside.append(inside)
        self.skewed.append(skewed)
        return tree

    def fault(self, tree: int) -> str | None:
        """What keeps a tree from being a complete reduction."""
        full = (1 << self.size) - 1
        for ranks, text in (
            (full & ~self.mask[tree], "lacks the contribution of rank {}"),
            (self.twice[tree], "has the contribution of rank {} more than once"),
            (self.raw[tree], "has the contribution of rank {} without its factor"),
        ):
            if ranks:
                return text.format((ranks & -ranks).bit_length() - 1)
        if self.skewed[tree]:
            return "combines elements of different places"
        if self.inside[tree]:
            return "was finished before it was complete"
        if not self.finished[tree]:
            return "was not finished"
        return None


class _Memory:
    """One rank's memory: pieces that do not overlap, by start."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.pieces: list[Piece] = []

    def read(self, start: int, length: int) -> tuple[Piece, ...] | None:
        """What [start, start + length) holds; None when a part of it was never written."""
        index = bisect_right(self.starts, start) - 1
        if index < 0:
            return None
        found: list[Piece] = []
        stop = start + length
        at = start
        while at < stop:
            if index == len(self.starts):
                return None
            low = self.starts[index]
            size, tree, offset = self.pieces[index]
            if low > at or low + size <= at:
                return None
            take = min(low + size, stop) - at
            found.append((take, tree, offset + at - low))
            at += take
            index += 1
        return tuple(found) if len(found) == 1 else _joined(found)

    def write(self, start: int, value: tuple[Piece, ...]) -> None:
        stop = start + sum(piece[0] for piece in value)
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.starts[first] + self.pieces[first][0] <= start:
            first += 1
        last = bisect_left(self.starts, stop)
        starts: list[int] = []
        pieces: list[Piece] = []
        if first < last and self.starts[first] < start:
            _, tree, offset = self.pieces[first]
            starts.append(self.starts[first])
            pieces.append((start - self.starts[first], tree, offset))
        at = start
        for piece in value:
            starts.append(at)
            pieces.append(piece)
            at += piece[0]
        if first < last:
            low = self.starts[last - 1]
            size, tree, offset = self.pieces[last - 1]
            if low + size > stop:
                starts.append(stop)
                pieces.append((low + size - stop, tree, offset + stop - low))
        self.starts[first:last] = starts
        self.pieces[first:last] = pieces


def _joined(pieces: list[Piece]) -> tuple[Piece, ...]:
    """The same value in as few pieces as possible."""
    joined: list[Piece] = []
    for length, tree, offset in pieces:
        if joined:
            size, last, start = joined[-1]
            if last == tree and start + size == offset:
                joined[-1] = (size + length, tree, start)
                continue
        joined.append((length, tree, offset))
    return tuple(joined)


class _Execution:
    """Plans run over symbolic memory."""

    def __init__(self, schedule: Schedule, calls: Sequence[Call], trees: _Trees, in_place: bool) -> None:
        self.schedule = schedule
        self.trees = trees
        self.bases = [_bases(call, in_place) for call in calls]
        self.memory = [_Memory() for _ in calls]
        self.sent: dict[int, tuple[Piece, ...]] = {}
        """What the record holds that an event sealed or passed on."""
        for call, memory, bases in zip(calls, self.memory, self.bases, strict=True):
            if call.input_bytes:
                memory.write(bases[INPUT], ((call.input_bytes, call.rank, 0),))

    def run(self, order: list[int]) -> None:
        schedule = self.schedule
        for event in order:
            rank, index, chunk = schedule.owner[event]
            step, length = schedule.plans[rank].steps[index], schedule.length[event]
            if not length:
                self.sent[event] = ()
                continue
            at = chunk * schedule.chunk
            if step.op is StepOp.SEAL:
                assert step.block is not None  # the form was checked
                value = self._load(event, rank, step.block, at, length)
                if step.scale:
                    value = self._combine(event, length, [value], [True], finish=False)
                self.sent[event] = value
                continue
            values = []
            for source in step.sources:
                if isinstance(source, Block):
                    values.append(self._load(event, rank, source, at, length))
                else:
                    values.append(self.sent[schedule.origin[event][source.lane]])
            value = values[0]
            if step.op is StepOp.REDUCE:
                scaled = [step.scale and isinstance(source, Block) for source in step.sources]
                value = self._combine(event, length, values, scaled, step.finish)
            if step.lanes:
                self.sent[event] = value
            if step.block is not None:
                self.memory[rank].write(self.bases[rank][step.block.buffer] + step.block.offset + at, value)

    def _load(self, event: int, rank: int, block: Block, at: int, length: int) -> tuple[Piece, ...]:
        value = self.memory[rank].read(self.bases[rank][block.buffer] + block.offset + at, length)
        if value is None:
            raise PlanError(f"{self.schedule.name(event)} reads memory that nothing has written")
        return value

    def _combine(
        self, event: int, length: int, values: list[tuple[Piece, ...]], scaled: list[bool], finish: bool
    ) -> tuple[Piece, ...]:
        rank = self.schedule.owner[event][0]
        for value, scales in zip(values, scaled, strict=True):
            if scales and any(tree != rank for _, tree, _ in value):
                raise PlanError(f"{self.schedule.name(event)} scales something else than its rank's own input")
        if all(len(value) == 1 for value in values):
            first = values[0][0][2]
            children = tuple(
                (value[0][1], value[0][2] - first, scales) for value, scales in zip(values, scaled, strict=True)
            )
            return ((length, self.trees.combine(finish, children), first),)
        cuts = sorted({cut for value in values for cut in _ends(value)})
        pieces: list[Piece] = []
        start = 0
        for stop in cuts:
            parts = [_cut(value, start) for value in values]
            first = parts[0][1]
            children = tuple((tree, offset - first, s) for (tree, offset), s in zip(parts, scaled, strict=True))
            pieces.append((stop - start, self.trees.combine(finish, children), first))
            start = stop
        return _joined(pieces)


def _ends(value: tuple[Piece, ...]) -> list[int]:
    ends, at = [], 0
    for piece in value:
        at += piece[0]
        ends.append(at)
    return ends


def _cut(value: tuple[Piece, ...], at: int) -> tuple[int, int]:
    """Tree and offset at a place of a value."""
    low = 0
    for length, tree, offset in value:
        if at < low + length:
            return tree, offset + at - low
        low += length
    raise AssertionError("records on one lane have equal lengths at both ends")


class _Result:
    """What the collective promises, compared with what memory holds at the end."""

    def __init__(self, calls: Sequence[Call], trees: _Trees, execution: _Execution, where: str) -> None:
        self.calls = calls
        self.trees = trees
        self.execution = execution
        self.where = where

    def check(self) -> None:
        held = [self._output(call) for call in self.calls]
        if self.calls[0].collective in REDUCTIONS:
            for call, value in zip(self.calls, held, strict=True):
                self._reduced(call, value)
                if call.collective is Collective.ALL_REDUCE and value != held[0]:
                    raise PlanError(
                        f"{self.where} ranks 0 and {call.rank} reduce in different orders or round differently"
                    )
            return
        expected: tuple[Piece, ...] = ()
        for call, value in zip(self.calls, held, strict=True):
            if not call.rank or call.collective is not Collective.ALL_GATHER:  # there it is the same on all ranks
                expected = _joined([piece for piece in self._expected(call) if piece[0]])
            self._moved(call, value, expected)

    def _output(self, call: Call) -> tuple[Piece, ...]:
        length = call.output_bytes
        if not length:
            return ()
        value = self.execution.memory[call.rank].read(self.execution.bases[call.rank][OUTPUT], length)
        if value is None:
            raise PlanError(f"{self.where} a part of rank {call.rank}'s output is never written")
        return value

    def _reduced(self, call: Call, value: tuple[Piece, ...]) -> None:
        at = 0
        start = call.parts[call.rank][0] if call.collective is Collective.REDUCE_SCATTER else 0
        for length, tree, offset in value:
            fault = self.trees.fault(tree)
            if not fault and offset != start + at:
                fault = f"is the reduction of bytes from {offset}, not from {start + at}"
            if fault:
                raise PlanError(f"{self.where} rank {call.rank}'s output [{at}, {at + length}) {fault}")
            at += length

    def _moved(self, call: Call, value: tuple[Piece, ...], expected: tuple[Piece, ...]) -> None:
        if value == expected:
            return
        at = 0
        for end in sorted({*_ends(value), *_ends(expected)}):
            held, wanted = _cut(value, at), _cut(expected, at)
            if held != wanted:
                what = f"rank {held[0]}'s input at {held[1]}" if held[0] < self.trees.size else "a reduction"
                raise PlanError(
                    f"{self.where} rank {call.rank}'s output [{at}, {end}) is {what}, "
                    f"not rank {wanted[0]}'s input at {wanted[1]}"
                )
            at = end

    def _expected(self, call: Call) -> list[Piece]:
        kind, own, size = call.collective, call.rank, call.size
        if not call.output_bytes:
            return []
        if kind is Collective.BROADCAST:
            return [(call.nbytes, call.root, 0)]
        if kind is Collective.SCATTER:
            offset, length = call.parts[own]
            return [(length, call.root, offset)]
        if kind is Collective.ALL_TO_ALL:
            return [(call.receives[p][1], p, self.calls[p].sends[own][0]) for p in range(size)]
        return [(length, p, 0) for p, (_, length) in enumerate(call.parts)]


# Traffic


def _traffic(plans: Sequence[Plan], calls: Sequence[Call], depth: int, chunks: int) -> Proof:
    sealed, opened, carried, records_sealed, records_opened = [], [], [], [], []
    for plan, call in zip(plans, calls, strict=True):
        seals = [step.length for step in plan.steps if step.stream is not None]
        opens = [
            step.length
            for step in plan.steps
            if step.op is not StepOp.FORWARD or step.block is not None
            for source in step.sources
            if isinstance(source, Record)
        ]
        sealed.append(sum(seals))
        opened.append(sum(opens))
        records_sealed.append(sum(records(length, plan.chunk) for length in seals))
        records_opened.append(sum(records(length, plan.chunk) for length in opens))
        carried.append(
            sum(
                step.length
                for step in plan.steps
                for lane in step.lanes
                if lane < plan.size and call.topology.crosses(plan.rank, lane)
            )
        )
        documented = traffic(call, plan.algorithm)
        if (sealed[-1], opened[-1], carried[-1]) != documented:
            raise PlanError(
                f"rank {plan.rank} seals {sealed[-1]}, opens {opened[-1]} and carries {carried[-1]} bytes, "
                f"but {documented.sealed}, {documented.opened} and {documented.carried} are documented"
            )
    return Proof(
        plans[0].collective,
        plans[0].algorithm,
        len(plans),
        depth,
        chunks,
        tuple(sealed),
        tuple(opened),
        tuple(carried),
        tuple(records_sealed),
        tuple(records_opened),
        plans[0].blocks,
    )


def _budget(plans: Sequence[Plan], calls: Sequence[Call]) -> None:
    """``Plan.blocks`` is what the busiest stream costs; for an all_to_all, at least that."""
    spent: dict[Stream, int] = {}
    for plan in plans:
        for step in plan.steps:
            if step.stream is not None:
                spent[step.stream] = spent.get(step.stream, 0) + cipher_blocks(step.length, plan.chunk)
    most, declared = max(spent.values(), default=0), plans[0].blocks
    if most > declared or (most < declared and calls[0].collective is not Collective.ALL_TO_ALL):
        raise PlanError(f"the busiest stream costs {most} cipher blocks but the plans say {declared}")
