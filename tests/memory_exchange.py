"""An exchange between threads of one process, with a place for an attacker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from securecoll.errors import HandshakeError

Attack = Callable[[int, int, list[bytes]], list[bytes]]
"""(round, receiver, everyone's blobs) -> what the receiver gets."""


class Hub:
    """Where ``size`` ranks meet. ``attack`` sees every delivery and may change it."""

    def __init__(self, size: int, attack: Attack | None = None) -> None:
        self.size = size
        self.attack = attack
        self.changed = threading.Condition()
        self.published: dict[tuple[int, int, int], bytes] = {}

    def exchange(self, rank: int) -> MemoryExchange:
        return MemoryExchange(self, rank)

    def seen(self, round: int, rank: int, attempt: int = 1) -> bytes | None:
        return self.published.get((attempt, round, rank))


class MemoryExchange:
    def __init__(self, hub: Hub, rank: int) -> None:
        self._hub = hub
        self._rank = rank
        self._attempt = 0

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._hub.size

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        hub = self._hub
        if round == 1:
            self._attempt += 1
        keys = [(self._attempt, round, rank) for rank in range(hub.size)]
        with hub.changed:
            if hub.published.setdefault(keys[self._rank], blob) != blob:
                raise AssertionError(f"rank {self._rank} published round {round} twice, with different bytes")
            hub.changed.notify_all()
            if not hub.changed.wait_for(lambda: all(k in hub.published for k in keys), deadline - time.monotonic()):
                raise HandshakeError(f"ranks {[k[2] for k in keys if k not in hub.published]} are missing")
            blobs = [hub.published[k] for k in keys]
        if hub.attack is not None:
            blobs = hub.attack(round, self._rank, blobs)
        if any(len(b) > max_len for b in blobs):
            raise HandshakeError(f"a blob of more than {max_len} bytes")
        return blobs
