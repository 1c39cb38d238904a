"""What is measured of one model with one size of buckets, and how it follows from what ranks report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from harness.control import Message

PARTS = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long iterations took, in milliseconds: means over ranks, medians over iterations."""

    iteration: float
    parts: dict[str, float]
    cpu: float
    """Time on a core, of all threads of a rank: what an iteration takes away from other work."""

    @classmethod
    def of(cls, ranks: Sequence[Message]) -> Pace:
        """From what each rank measured: seconds of each part of each iteration, and CPU seconds of an iteration."""
        spans = zip(*(rank["spans"] for rank in ranks), strict=True)
        iterations = [[1000 * fmean(part) for part in zip(*of_ranks, strict=True)] for of_ranks in spans]
        parts = map(median, zip(*iterations, strict=True))
        cpu = 1000 * fmean(rank["cpu"] for rank in ranks)
        return cls(median(map(sum, iterations)), dict(zip(PARTS, parts, strict=True)), cpu)


@dataclass(frozen=True, slots=True)
class Turn:
    """Iterations of one contender, one after the other: with DDP, and without communication."""

    together: Pace
    alone: Pace

    @classmethod
    def of(cls, ranks: Sequence[Message]) -> Turn:
        """From what each rank answered."""
        return cls(Pace.of([rank["together"] for rank in ranks]), Pace.of([rank["alone"] for rank in ranks]))


@dataclass(slots=True)
class Cell:
    """One model with one size of buckets, in milliseconds by contender."""

    model: str
    ranks: int
    bucket_mb: int
    bytes: int = 0
    """Of gradients, on each rank."""
    tensors: int = 0
    iteration_ms: dict[str, float] = field(default_factory=dict)
    exposed_ms: dict[str, float] = field(default_factory=dict)
    cpu_ms: dict[str, float] = field(default_factory=dict)
    """CPU time of a rank that an iteration takes more with DDP than without communication."""
    alone_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """Parts of an iteration without communication."""
    together_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """Parts of an iteration with DDP; what is exposed is mostly in ``backward``."""
    turns_ms: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Iterations of each turn, with DDP and without communication."""
    wrong: list[str] = field(default_factory=list)
    """What was wrong with whose gradients."""

    def settle(self, name: str, turns: Sequence[Turn]) -> None:
        """Fills in what a contender's turns come to."""
        self.turns_ms[name] = [(turn.together.iteration, turn.alone.iteration) for turn in turns]
        self.iteration_ms[name] = median(turn.together.iteration for turn in turns)
        self.exposed_ms[name] = median(turn.together.iteration - turn.alone.iteration for turn in turns)
        self.cpu_ms[name] = median(turn.together.cpu - turn.alone.cpu for turn in turns)
        self.together_ms[name] = {part: median(turn.together.parts[part] for turn in turns) for part in PARTS}
        self.alone_ms[name] = {part: median(turn.alone.parts[part] for turn in turns) for part in PARTS}

    def ratio(self, ours: str, theirs: str) -> float | None:
        """The iteration time of the one over the other's."""
        if ours not in self.iteration_ms or theirs not in self.iteration_ms:
            return None
        return self.iteration_ms[ours] / self.iteration_ms[theirs]
