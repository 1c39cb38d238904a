"""The shape of a communicator: what all its members must share beside the calls they make."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from struct import pack

from securecoll import plan as plans
from securecoll.plan import tuner


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of lanes and limits of keys. Members of different shapes refuse each other in the handshake."""

    slot_bytes: int
    """Payload bytes of a slot, and so the most that one record carries: a multiple of 64."""
    depth: int
    """Slots of a lane."""
    wave: int
    """Chunks in a wave, see :mod:`securecoll.plan.ir`."""
    budget_blocks: int = 1 << 32
    """Cipher blocks of 16 bytes that one stream may seal under one key: at most 2**32. All keys step to the next epoch
    before a stream would exceed it."""

    def __post_init__(self) -> None:
        if not 0 < self.budget_blocks <= 1 << 32:
            raise ValueError("a key may seal at most 2**32 blocks")
        if self.slot_bytes < 64 or self.slot_bytes % 64:
            raise ValueError("slots take a positive multiple of 64 bytes")
        if not 0 < self.wave < self.depth:
            raise ValueError("a lane must be deeper than a wave, which has at least one chunk: else rings deadlock")

    @classmethod
    def of(cls, ranks: int) -> Shape:
        """The shape of a group with ``ranks`` ranks on its fullest host. None has larger slots than that of 1."""
        return cls(tuner.default_chunk(ranks), tuner.DEPTH, tuner.WAVE)

    @property
    def hash(self) -> bytes:
        """32 bytes for the transcript: this shape, and the version of the generators that plan for it."""
        fields = pack(">IIIIQ", plans.VERSION, self.slot_bytes, self.depth, self.wave, self.budget_blocks)
        return hashlib.sha256(b"SCOLL/1 shape\0" + fields).digest()


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))
