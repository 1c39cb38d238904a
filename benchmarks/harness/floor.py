"""What the cipher alone costs: the time that no sealed collective can beat with the kernels of this machine.

Every byte that a rank seals or opens passes through its core once, at the rate the AEAD kernels reach on 64 KiB that
stay in cache. A collective needs at least the time of its busiest rank; where ranks outnumber cores, the cores share
the work of all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

NBYTES = 64 << 10
"""Bytes sealed and opened at a time when rates are measured."""


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class AeadRates:
    """Rates of one core, in 10^9 bytes a second, of the kernel set that the engine chose on this CPU."""

    kernels: str
    seal_gbs: float
    open_gbs: float

    @classmethod
    def measure(cls) -> AeadRates:
        """Measures this machine, for about a tenth of a second."""
        sampler = Sampler()
        for _ in range(5):
            sampler.sample()
        return sampler.rates()

    @classmethod
    def unmeasured(cls) -> AeadRates:
        """For ranks that leave the measurement to another."""
        return cls("", 0.0, 0.0)


class Sampler:
    """Measures the engine's AEAD kernels beside those of the ``cryptography`` package, turn by turn.

    Both seal and open the same 64 KiB in memory, over and over; ``cryptography`` through ``encrypt_into`` and
    ``decrypt_into``, which allocate nothing.
    """

    def __init__(self, seconds: float = 0.01) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        from securecoll import _engine

        self._engine = _engine
        self._seconds = seconds
        self.kernels = _engine.aead_names()[0]
        self._cipher = AESGCM(bytes(range(32)))
        self._plain = bytearray(NBYTES)
        self._sealed = bytearray(NBYTES + 16)
        self._cipher.encrypt_into(bytes(12), self._plain, bytes(32), self._sealed)
        self._samples: dict[str, list[float]] = {}

    def sample(self) -> None:
        """One turn for each."""
        seal, open_ = self._engine.aead_rate(self.kernels, NBYTES, self._seconds)
        self._note("seal_gbs", seal)
        self._note("open_gbs", open_)
        nonce, aad, cipher = bytes(12), bytes(32), self._cipher
        self._note("cryptography_seal_gbs", self._rate(cipher.encrypt_into, nonce, self._plain, aad, self._sealed))
        self._note("cryptography_open_gbs", self._rate(cipher.decrypt_into, nonce, self._sealed, aad, self._plain))

    def medians(self) -> dict[str, float]:
        """``seal_gbs`` and ``open_gbs`` of the engine, and the same of ``cryptography``, prefixed so."""
        return {name: median(values) for name, values in self._samples.items()}

    def rates(self) -> AeadRates:
        """Those of the engine."""
        medians = self.medians()
        return AeadRates(self.kernels, medians["seal_gbs"], medians["open_gbs"])

    def _note(self, name: str, rate: float) -> None:
        self._samples.setdefault(name, []).append(rate)

    def _rate(self, function: Callable[..., object], *arguments: object) -> float:
        calls, start = 0, time.perf_counter()
        deadline = start + self._seconds
        while (now := time.perf_counter()) < deadline:
            for _ in range(16):
                function(*arguments)
            calls += 16
        return calls * NBYTES / (now - start) / 1e9


def floor_seconds(
    rates: AeadRates, sealed: Sequence[float], opened: Sequence[float], available: int | None = None
) -> float:
    """The least seconds for a collective in which rank ``i`` seals ``sealed[i]`` and opens ``opened[i]`` bytes.

    ``available``: the cores that the ranks share; default: this host's.
    """
    work = [s / rates.seal_gbs / 1e9 + o / rates.open_gbs / 1e9 for s, o in zip(sealed, opened, strict=True)]
    return max(max(work), sum(work) / (cores() if available is None else available))
