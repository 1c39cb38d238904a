"""The cost of the cipher alone."""

from __future__ import annotations

import pytest
from harness.floor import AEGIS, AeadRates, Sampler, floor_seconds

from securecoll import _engine

RATES = AeadRates("any", seal_gbs=10.0, open_gbs=5.0)
GB = 10**9


def test_the_busiest_rank_decides_while_every_rank_has_a_core() -> None:
    assert floor_seconds(RATES, [GB, 0], [0, GB], available=2) == pytest.approx(0.2)
    assert floor_seconds(RATES, [GB, GB], [GB, GB], available=2) == pytest.approx(0.3)
    assert floor_seconds(RATES, [GB, GB], [GB, GB], available=64) == pytest.approx(0.3)


def test_ranks_beyond_the_cores_share_them() -> None:
    assert floor_seconds(RATES, [GB] * 4, [GB] * 4, available=2) == pytest.approx(0.6)
    assert floor_seconds(RATES, [GB, 0, 0, 0], [0, 0, 0, 0], available=2) == pytest.approx(0.1)


def test_both_engines_are_measured_turn_by_turn() -> None:
    sampler = Sampler(seconds=0.002)
    for _ in range(3):
        sampler.sample()
    medians = sampler.medians()
    assert set(medians) == {
        f"{whose}{verb}_gbs" for whose in ("", "kernel_", "cryptography_") for verb in ("seal", "open")
    }
    # No CPU seals slower than 10 MB/s or faster than 100 GB/s on a core.
    assert all(0.01 < rate < 100 for rate in medians.values())
    assert sampler.rates() == AeadRates(sampler.kernels, medians["kernel_seal_gbs"], medians["kernel_open_gbs"])


@pytest.mark.skipif(not _engine.aead_names(4), reason="this CPU has no AES instructions")
def test_suite_4_is_measured_alone() -> None:
    sampler = Sampler(seconds=0.002, suite=AEGIS)
    sampler.sample()
    assert sampler.kernels == _engine.aead_name(4)
    assert set(sampler.medians()) == {f"{whose}{verb}_gbs" for whose in ("", "kernel_") for verb in ("seal", "open")}
    assert all(0.01 < rate < 1000 for rate in sampler.medians().values())
    assert AeadRates.measure(AEGIS).kernels == sampler.kernels
