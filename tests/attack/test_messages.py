"""A host that owns the shared memory against messages between two ranks: an error on both, never data, never a hang.

Rank 0 sends, rank 1 receives, and the test process is the host. What it changes lies on the lane for messages, where
envelopes and short payloads go, or on the lane for bulk.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator, SecureCollError, _engine
from securecoll.suites import Suite
from tests.groups import GROUP_SECONDS, SMALL, HostView, Outcome, group, left_behind

SHORT = 10_000  # three records of payload behind the envelope: a lane of four slots is full
ENVELOPE = 32
TAG = 16


def _wait_for(gate: str) -> None:
    deadline = time.monotonic() + 30
    while not Path(gate).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _pattern(size: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(1, 256, size, np.uint8)


def _victims(comm: Communicator, size: int, warm: int, gate: str) -> tuple[str, bool, str]:
    peer = 1 - comm.rank
    out = np.full(size, 7, np.uint8)
    first = "returned"
    try:
        for i in range(warm):
            if comm.rank == 0:
                comm.send(_pattern(size, i), peer)
            else:
                comm.recv(out, peer)
        comm.barrier()
        out[:] = 7
        if comm.rank == 0:
            comm.send(_pattern(size, 50), peer, async_op=True)
            _wait_for(gate)
        else:
            _wait_for(gate)
            comm.recv(out, peer)
    except SecureCollError as e:
        first = f"{type(e).__name__}: {e}"
    try:
        comm.barrier()
        later = "returned"
    except SecureCollError as e:
        later = type(e).__name__
    right = bool((out == _pattern(size, 50)).all())
    return first, not right and not out.any(), later if not right else f"{later}, right"


def _attack(folder: Path, size: int, attack: Callable[[HostView, HostView], None], warm: int = 1) -> list[Outcome]:
    gate = folder / "gate"
    with group(2, folder, _victims, size, warm, str(gate), shape=SMALL) as ranks:
        ranks.wait_joined()
        sender, receiver = (HostView(ranks.pids[r], r, 2, SMALL) for r in range(2))
        sender.wait_head(sender.messages(1), (1 + 3) * (1 + warm))
        attack(sender, receiver)
        gate.touch()
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert outcome.seconds < GROUP_SECONDS
    assert not left_behind()
    return outcomes


def _assert_refused(outcomes: list[Outcome]) -> None:
    first, zeroed, later = outcomes[1].value
    assert first.startswith("AuthenticationError") and "rank 0" in first, first
    assert zeroed and later == "AuthenticationError"
    assert outcomes[0].value[2] == "AuthenticationError"


def test_untouched_control(tmp_path: Path) -> None:
    """Without an attack the same procedure delivers the message."""
    sender, receiver = _attack(tmp_path, SHORT, lambda *_: None)
    assert sender.value[0] == receiver.value[0] == "returned"
    assert receiver.value[2] == "returned, right"


# The second message: its envelope is record 4 of the lane, and its payload records 5 to 7.
@pytest.mark.parametrize(
    ("record", "byte"),
    [(4, 0), (4, 8), (4, 16), (4, 17), (4, ENVELOPE), (5, 0), (6, 4095), (7, 100), (7, 10_000 - 8192 + 5)],
    ids=["tag", "bytes", "dtype", "kind", "envelope's tag", "first", "middle", "last", "last's tag"],
)
def test_flipped_bit_in_an_envelope_or_a_payload(tmp_path: Path, record: int, byte: int) -> None:
    def attack(sender: HostView, _: HostView) -> None:
        sender.flip(sender.slot_at(sender.messages(1), record) + byte, bit=byte % 8)

    _assert_refused(_attack(tmp_path, SHORT, attack))


def test_swapped_payload_records(tmp_path: Path) -> None:
    def attack(sender: HostView, _: HostView) -> None:
        m = sender.memory
        a, b = (sender.slot_at(sender.messages(1), record) for record in (5, 6))
        n = 4096 + TAG
        m[a : a + n], m[b : b + n] = m[b : b + n], m[a : a + n]

    _assert_refused(_attack(tmp_path, SHORT, attack))


def test_a_message_of_before_does_not_come_again(tmp_path: Path) -> None:
    """Rank 0's whole first message, put where its second one lies."""
    stolen: list[bytes] = []
    gate = tmp_path / "gate"
    with group(2, tmp_path, _replayed, str(gate), shape=SMALL) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        lane = view.messages(1)
        view.wait_head(lane, 4)
        for record in range(4):
            at = view.slot_at(lane, record)
            stolen.append(bytes(view.memory[at : at + 4096 + TAG]))
        Path(f"{gate}-1").touch()
        # Only when rank 1 looks at nothing any more is the second one sent.
        view.wait_head(lane, 8)
        for record in range(4):
            at = view.slot_at(lane, record)
            view.memory[at : at + 4096 + TAG] = stolen[record]
        Path(f"{gate}-2").touch()
        outcomes = ranks.finish()
    assert outcomes[1].value == ("AuthenticationError", True)


def _replayed(comm: Communicator, gate: str) -> tuple[str, bool]:
    if comm.rank == 0:
        try:
            comm.send(_pattern(SHORT, 0), 1)
            _wait_for(f"{gate}-received")
            comm.send(_pattern(SHORT, 1), 1)
            comm.barrier()
        except SecureCollError as e:
            return type(e).__name__, True
        return "returned", False
    out = np.full(SHORT, 7, np.uint8)
    _wait_for(f"{gate}-1")
    comm.recv(out, 0)
    assert (out == _pattern(SHORT, 0)).all()
    Path(f"{gate}-received").touch()
    _wait_for(f"{gate}-2")
    try:
        comm.recv(out, 0)
    except SecureCollError as e:
        return type(e).__name__, not out.any()
    return "returned", False


def test_lane_words_that_run_ahead(tmp_path: Path) -> None:
    def attack(sender: HostView, _: HostView) -> None:
        sender.set_head(sender.messages(1), 4 + 1000)

    _assert_refused(_attack(tmp_path, SHORT, attack))


def test_a_forged_envelope_on_an_idle_lane(tmp_path: Path) -> None:
    """The host rings up a record that rank 0 never sealed."""
    gate = tmp_path / "gate"
    with group(2, tmp_path, _idle, str(gate), shape=SMALL) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        view.wait_head(2, 1)
        view.set_head(view.messages(1), 1)
        gate.touch()
        outcomes = ranks.finish()
    assert outcomes[1].value == "AuthenticationError"
    assert outcomes[0].value == "AuthenticationError"


def _idle(comm: Communicator, gate: str) -> str:
    try:
        comm.barrier()
        _wait_for(gate)
        if comm.rank == 1:
            comm.recv(np.zeros(3), 0)
        comm.barrier()
    except SecureCollError as e:
        return type(e).__name__
    return "returned"


def test_flipped_bit_in_bulk(tmp_path: Path) -> None:
    """A host that flips one byte of the lane for bulk without pause, while a long message goes through it."""
    with group(2, tmp_path, _long, shape=SMALL) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        lane = view.bulk(1)
        deadline = time.monotonic() + 30
        # Before it is written, a slot's bytes are overwritten by its record: so until something of it was read wrong.
        while all(pid_alive(pid) for pid in ranks.pids) and time.monotonic() < deadline:
            for record in range(SMALL.depth):
                view.flip(view.slot_at(lane, record) + 77)
        outcomes = ranks.finish()
    assert outcomes[1].value == ("AuthenticationError", True)
    assert outcomes[0].value == ("AuthenticationError", True)


def pid_alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1]
    except FileNotFoundError:
        return False


def _long(comm: Communicator) -> tuple[str, bool]:
    out = np.full(64 << 20, 7, np.uint8)
    try:
        while True:
            if comm.rank == 0:
                comm.send(out, 1)
            else:
                comm.recv(out, 0)
                if not (out == 7).all():
                    return "wrong data", False
    except SecureCollError as e:
        return type(e).__name__, comm.rank == 0 or not out.any()


@pytest.mark.parametrize(
    ("suite", "kernels"), [(suite.title, name) for suite in Suite for name in _engine.aead_names(suite)]
)
def test_every_set_of_kernels_carries_messages(tmp_path: Path, suite: str, kernels: str) -> None:
    options = {"shape": SMALL, "suite": suite, "kernels": kernels}
    with group(2, tmp_path, _victims, SHORT, 1, str(tmp_path / "gate"), **options) as ranks:
        (tmp_path / "gate").touch()
        outcomes = ranks.finish()
    assert outcomes[1].error is None and outcomes[1].value[2] == "returned, right"
