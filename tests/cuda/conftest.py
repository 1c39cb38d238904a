"""The kernels, built for the emulator once per session and kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cuda.card import KERNELS, PROBES, Card
from tests.emulator.emulator import Order, build

Cards = Callable[..., Card]

# What is built of what: compiling takes longer than most tests.
SOURCES = {
    ("plain", "tensor"): [PROBES / "probes.cu", PROBES / "commit_probe.cu", KERNELS / "reduce.cu"],
    ("plain", "portable"): [PROBES / "portable.cu", PROBES / "portable_commit.cu"],
    ("race", "tensor"): [KERNELS / "key.cu", KERNELS / "seal.cu", KERNELS / "commit.cu"],
    ("race", "portable"): [PROBES / "portable.cu"],
}


@pytest.fixture
def make_card() -> Iterator[Cards]:
    """Makes an emulated card: ``mode`` is ``"plain"`` or ``"race"``, ``hash`` which GHASH, ``order`` the threads'."""
    made: list[Card] = []

    def make(mode: str = "plain", hash: str = "tensor", order: Order = Order.IN_TURN, seed: int = 1) -> Card:
        card = Card(build(SOURCES[mode, hash], mode), order, seed)
        made.append(card)
        return card

    yield make
    for card in made:
        card.emulator.close()
