"""A host that changes what lies in its memory stops the device: no result, no sum that it had a hand in, no hang."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator, SecureCollError
from tests.cuda.arrays import Array
from tests.cuda.groups import devices
from tests.groups import SMALL, HostView, group, left_behind

COUNT = 3000  # 12000 bytes: three records of a lane of four slots
RECORDS = 3
SECONDS = 20.0


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + 30
    while not Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _victims(comm: Communicator, gate: str, algorithm: str) -> dict[str, Any]:
    """All but the last rank post their records; the last looks at them once the host is done. What it gets, and what
    a consumer on its stream gets."""
    size, last = comm.size, comm.rank == comm.size - 1
    value = np.full(COUNT, comm.rank + 1.0, np.float32)
    x = Array(comm.device, value) if comm.device else value
    copy = Array(comm.device, np.full(COUNT, -1, np.float32)) if comm.device else None
    if last:
        Path(gate + "-reached").touch()
        _wait_for(gate)
    else:
        _wait_for(gate + "-reached")
    got: dict[str, Any] = {"raised": "", "consumed": ""}
    try:
        comm.all_reduce(x, algorithm=algorithm)
        if comm.device and copy is not None:
            comm.device.engine.copy(copy.address, x.address, x.nbytes)
    except SecureCollError as e:
        got["raised"] = f"{type(e).__name__}: {e}"
    if copy is not None:
        try:
            got["consumed"] = set(copy.get().tolist())
        except RuntimeError as e:
            got["consumed"] = str(e)
    else:
        got["consumed"] = set(x.tolist())
    try:
        comm.barrier()
        got["later"] = "returned"
    except SecureCollError as e:
        got["later"] = type(e).__name__
    got["right"] = sum(range(1, size + 1))
    return got


def _attack(
    folder: Path, attack: Callable[[list[HostView]], None], size: int = 2, algorithm: str = "one_shot", **how: Any
) -> list[dict[str, Any]]:
    gate = folder / "gate"
    options = {"shape": SMALL, "timeout": SECONDS, "device": devices(**how)}
    with group(size, folder, _victims, str(gate), algorithm, **options) as ranks:
        ranks.wait_joined()
        views = [HostView(ranks.pids[r], r, size, SMALL) for r in range(size)]
        # The last rank is the victim; the one before it has posted for it.
        lane = size if algorithm == "one_shot" else size - 1
        views[size - 2].wait_head(lane, 1)
        attack(views)
        gate.touch()
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert outcome.seconds < SECONDS + 10
    assert not left_behind()
    return [outcome.value for outcome in outcomes]


WAYS = {
    "staged": {"mapped": False},
    "mapped": {"mapped": True},
    "only the receiver on a device": {"only": (1,)},
    "copies block": {"copies_block": True, "options": "mappable=0"},
}


@pytest.mark.parametrize("way", WAYS)
def test_untouched_control(tmp_path: Path, way: str) -> None:
    """Without an attack the same procedure gives the right sum to the consumer, too."""
    for got in _attack(tmp_path, lambda views: None, **WAYS[way]):
        assert (got["raised"], got["consumed"], got["later"]) == ("", {3.0}, "returned")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("byte", [0, 4095, 4096, 4111], ids=["first", "last", "tag-first", "tag-last"])
def test_a_flipped_bit_stops_the_stream_before_any_consumer(tmp_path: Path, byte: int, way: str) -> None:
    def flip(views: list[HostView]) -> None:
        views[0].flip(views[0].slot_at(2, 0) + byte, bit=byte % 8)

    victim = _attack(tmp_path, flip, **WAYS[way])[1]
    # Either the call itself learnt of it, or the gate on the stream did: and then the device says so.
    if victim["raised"]:
        assert victim["raised"].startswith("AuthenticationError") and "from rank 0" in victim["raised"]
        assert victim["consumed"] == {-1.0} or "trap" in victim["consumed"]
    else:
        assert isinstance(victim["consumed"], str) and "trap" in victim["consumed"], victim["consumed"]
    assert victim["later"] == "AuthenticationError"


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
@pytest.mark.parametrize("mapped", [False, True])
def test_no_sum_that_the_host_had_a_hand_in_is_sealed_onward(tmp_path: Path, mapped: bool, algorithm: str) -> None:
    """What the last rank reduces and hands on is refused by it, so no other rank can get a wrong sum."""

    def flip(views: list[HostView]) -> None:
        views[1].flip(views[1].slot_at(2, 0) + 77)

    results = _attack(tmp_path, flip, size=3, algorithm=algorithm, mapped=mapped)
    for got in results:
        if isinstance(got["consumed"], set):
            assert got["consumed"] <= {-1.0, 0.0, float(got["right"])}, got
    assert results[2]["later"] == "AuthenticationError"
    assert all(got["later"] in ("AuthenticationError", "PeerLostError") for got in results)
