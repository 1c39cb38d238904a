"""A second reading of the execution contract in securecoll/plan/ir.py: plans run over real numbers.

It shares no code with the checker. Chunks run one at a time, picked at random among those that may, with lanes as
queues of bounded depth; a record carries its stream and number, so a reader that expects another one fails.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from securecoll.plan.ir import Block, Plan, Record, Step, StepOp, Stream
from securecoll.plan.topology import Topology

Bytes = npt.NDArray[np.uint8]


@dataclass
class Lane:
    """Records in flight to the readers of one lane."""

    queues: dict[int, deque[tuple[Stream, int, bytes]]] = field(default_factory=dict)


class Group:
    """All ranks of a group, each with its INPUT and OUTPUT, which may share memory."""

    def __init__(
        self,
        plans: Sequence[Plan],
        buffers: Sequence[tuple[Bytes, Bytes]],
        depth: int,
        factors: Sequence[np.float16],
        topology: Topology,
        draw: random.Random,
    ) -> None:
        self.plans, self.buffers, self.depth, self.factors, self.draw = plans, buffers, depth, factors, draw
        self.size = len(plans)
        hosts = topology.hosts
        self.done = [[0] * len(plan.steps) for plan in plans]
        self.lanes: dict[tuple[int, int], Lane] = {}
        for rank in range(self.size):
            for peer in range(self.size):
                self.lanes[rank, peer] = Lane({peer: deque()})
            neighbours = [p for p in range(self.size) if p != rank and hosts[p] == hosts[rank]]
            self.lanes[rank, -1] = Lane({p: deque() for p in neighbours})

    def run(self) -> bool:
        """Run until nothing may; whether everything ran and every record was read."""
        while ready := self._ready():
            self._run_chunk(*self.draw.choice(ready))
        finished = all(
            done == self._chunks(plan, step)
            for plan, row in zip(self.plans, self.done, strict=True)
            for step, done in zip(plan.steps, row, strict=True)
        )
        return finished and not any(queue for lane in self.lanes.values() for queue in lane.queues.values())

    @staticmethod
    def _chunks(plan: Plan, step: Step) -> int:
        return max(1, -(-step.length // plan.chunk))

    def _ready(self) -> list[tuple[int, int]]:
        return [
            (rank, index)
            for rank, plan in enumerate(self.plans)
            for index in range(len(plan.steps))
            if self._may_run(rank, index)
        ]

    def _may_run(self, rank: int, index: int) -> bool:
        plan = self.plans[rank]
        step, chunk = plan.steps[index], self.done[rank][index]
        if chunk == self._chunks(plan, step):
            return False
        for other in step.after:
            if self.done[rank][other] <= min(chunk, self._chunks(plan, plan.steps[other]) - 1):
                return False
        reads, writes = self._uses(rank, step)
        turn = (chunk // plan.wave, index)
        for other, its in enumerate(plan.steps):
            if other == index or self.done[rank][other] == self._chunks(plan, its):
                continue
            if (self.done[rank][other] // plan.wave, other) < turn:
                their_reads, their_writes = self._uses(rank, its)
                if their_reads & reads or their_writes & writes:
                    return False
        if any(not self.lanes[key].queues[rank] for key in reads):
            return False
        return all(len(queue) < self.depth for key in writes for queue in self.lanes[key].queues.values())

    def _uses(self, rank: int, step: Step) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
        """Lanes read and written, as (writer, reader or -1)."""
        lanes = [source.lane for source in step.sources if isinstance(source, Record)]
        reads = {(lane, rank) if lane < self.size else (lane - self.size, -1) for lane in lanes}
        return reads, {(rank, lane if lane < self.size else -1) for lane in step.lanes}

    def _run_chunk(self, rank: int, index: int) -> None:
        plan = self.plans[rank]
        step, chunk = plan.steps[index], self.done[rank][index]
        low, high = chunk * plan.chunk, min((chunk + 1) * plan.chunk, step.length)
        stream, number, values, own = step.stream, step.record + chunk, [], []
        for source in step.sources:
            if isinstance(source, Block):
                values.append(self._memory(rank, source, low, high).copy())
                own.append(True)
                continue
            key = (source.lane, rank) if source.lane < self.size else (source.lane - self.size, -1)
            sent_on, sent_as, payload = self.lanes[key].queues[rank].popleft()
            assert (sent_on, sent_as, len(payload)) == (source.stream, source.record + chunk, high - low)
            if stream is None:
                stream, number = sent_on, sent_as
            values.append(np.frombuffer(payload, np.uint8))
            own.append(False)
        if step.op is StepOp.SEAL:
            values = [np.empty(0, np.uint8) if step.block is None else self._memory(rank, step.block, low, high)]
            own = [True]
        result = values[0]
        if step.op is StepOp.REDUCE or step.scale:
            result = self._reduce(rank, values, own, step)
        for lane in step.lanes:
            for queue in self.lanes[rank, lane if lane < self.size else -1].queues.values():
                assert stream is not None
                queue.append((stream, number, result.tobytes()))
        if step.op is not StepOp.SEAL and step.block is not None:
            self._memory(rank, step.block, low, high)[:] = result
        self.done[rank][index] += 1

    def _memory(self, rank: int, block: Block, low: int, high: int) -> Bytes:
        return self.buffers[rank][block.buffer][block.offset + low : block.offset + high]

    def _reduce(self, rank: int, values: list[Bytes], own: list[bool], step: Step) -> Bytes:
        """float16 as the engine treats it: added in float32, rounded once."""
        total = np.zeros(len(values[0]) // 2, np.float32)
        for value, mine in zip(values, own, strict=True):
            term = value.view(np.float16).astype(np.float32)
            total = total + (term * np.float32(self.factors[rank]) if mine and step.scale else term)
        if step.finish:
            total = total / np.float32(self.size)
        return total.astype(np.float16).view(np.uint8)
