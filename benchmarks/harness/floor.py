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

GCM, AEGIS = "aes-256-gcm", "aegis-256x4"
"""The suites."""


def cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, slots=True)
class AeadRates:
    """Rates of one core, in 10^9 bytes a second, of the kernel set that the engine chose for a suite on this CPU."""

    kernels: str
    seal_gbs: float
    open_gbs: float

    @classmethod
    def measure(cls, suite: str = GCM) -> AeadRates:
        """Measures this machine, for about a tenth of a second."""
        sampler = Sampler(suite=suite)
        for _ in range(5):
            sampler.sample()
        return sampler.rates()

    @classmethod
    def unmeasured(cls) -> AeadRates:
        """For ranks that leave the measurement to another."""
        return cls("", 0.0, 0.0)


class Sampler:
    """Measures the engine's AEAD kernels for a suite, AES-256-GCM's beside those of the ``cryptography`` package, turn
    by turn.

    All seal and open the same 64 KiB in memory, over and over, and allocate nothing. Both packages are called from
    Python, so that they compare; the engine's kernels are also measured without it, which is what a floor needs. A
    turn counts with its fastest slice: whatever else ran on the core is not the cipher's.
    """

    def __init__(self, seconds: float = 0.01, suite: str = GCM) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        from securecoll import _engine, suites

        self.kernels = _engine.aead_name(suites.named(suite))
        key, nonce, aad = bytes(range(32)), bytes(12), bytes(32)
        plain, sealed = bytearray(NBYTES), bytearray(NBYTES + 16)
        ours, theirs = _engine.Aead(self.kernels, key), AESGCM(key)
        ours.seal_into(nonce, aad, plain, sealed)
        self._calls: dict[str, Callable[[], object]] = {
            "seal_gbs": lambda: ours.seal_into(nonce, aad, plain, sealed),
            "cryptography_seal_gbs": lambda: theirs.encrypt_into(nonce, plain, aad, sealed),
            "open_gbs": lambda: ours.open_into(nonce, aad, sealed, plain),
            "cryptography_open_gbs": lambda: theirs.decrypt_into(nonce, sealed, aad, plain),
        }
        if suite != GCM:
            del self._calls["cryptography_seal_gbs"], self._calls["cryptography_open_gbs"]
        self._kernel_rates: Callable[[], tuple[float, float]] = lambda: _engine.aead_rate(
            self.kernels, NBYTES, 2 * seconds
        )
        self._seconds = seconds
        self._samples: dict[str, list[float]] = {}

    def sample(self) -> None:
        """One turn for each."""
        seal, open_ = self._kernel_rates()
        self._samples.setdefault("kernel_seal_gbs", []).append(seal)
        self._samples.setdefault("kernel_open_gbs", []).append(open_)
        for name, call in self._calls.items():
            self._samples.setdefault(name, []).append(self._rate(call))

    def medians(self) -> dict[str, float]:
        """10^9 bytes a second: ``seal_gbs`` and ``open_gbs`` of the engine, called from Python; those of the engine's
        kernels alone, under ``kernel_``; and of AES-256-GCM those of ``cryptography``, under ``cryptography_``."""
        return {name: median(values) for name, values in self._samples.items()}

    def rates(self) -> AeadRates:
        """Those of the kernels alone."""
        medians = self.medians()
        return AeadRates(self.kernels, medians["kernel_seal_gbs"], medians["kernel_open_gbs"])

    def _rate(self, call: Callable[[], object]) -> float:
        best, deadline = float("inf"), time.perf_counter() + self._seconds
        while (start := time.perf_counter()) < deadline:
            for _ in range(16):
                call()
            best = min(best, (time.perf_counter() - start) / 16)
        return NBYTES / best / 1e9


def floor_seconds(
    rates: AeadRates, sealed: Sequence[float], opened: Sequence[float], available: int | None = None
) -> float:
    """The least seconds for a collective in which rank ``i`` seals ``sealed[i]`` and opens ``opened[i]`` bytes.

    ``available``: the cores that the ranks share; default: this host's.
    """
    work = [s / rates.seal_gbs / 1e9 + o / rates.open_gbs / 1e9 for s, o in zip(sealed, opened, strict=True)]
    return max(max(work), sum(work) / (cores() if available is None else available))
