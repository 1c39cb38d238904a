"""A host that owns the shared memory gets an error out of every rank: never data, never a wrong sum, never a hang.

Two ranks; the test process is the host and changes what lies in their segments, between the moment a record is posted
and the moment its reader looks at it. After each attack: every rank raised before its deadline, the receiver says why,
outputs are zero, and the communicator refuses every later call.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from securecoll import AuthenticationError, Communicator, PeerLostError, SecureCollError, _engine
from securecoll.suites import Suite
from tests.groups import GROUP_SECONDS, SMALL, HostView, group, left_behind

each_suite = pytest.mark.parametrize(
    "suite", [suite for suite in Suite if _engine.aead_names(suite)], ids=lambda suite: suite.title
)

COUNT = 3000  # 12000 bytes: three records of a lane of four slots
RECORDS = 3
TAG = 16


def _victims(comm: Communicator, warm: int, gate: str) -> tuple[str, bool, str, bool]:
    """Rank 0 posts its records and waits; rank 1 looks at them once the host is done."""
    for _ in range(warm):
        x = np.full(COUNT, comm.rank + 1.0, np.float32)
        comm.all_reduce(x, algorithm="one_shot")
        assert (x == 3.0).all()
    out = np.full(COUNT, 7.0, np.float32)
    _take_places(comm, gate)
    try:
        comm.all_reduce(np.full(COUNT, comm.rank + 1.0, np.float32), out, algorithm="one_shot")
        first = "returned"
    except SecureCollError as e:
        first = f"{type(e).__name__}: {e}"
    later = _barrier(comm)
    return first, not out.any(), later, bool((out == 3.0).all())


def _barrier(comm: Communicator) -> str:
    """How a later call ends."""
    try:
        comm.barrier()
    except SecureCollError as e:
        return type(e).__name__
    return "returned"


def _take_places(comm: Communicator, gate: str) -> None:
    """Rank 0 goes on once rank 1 looks at nothing any more; rank 1 once the host is done."""
    if comm.rank == 1:
        Path(gate + "-reached").touch()
        _pass(gate)
    else:
        _pass(gate + "-reached")


def _pass(gate: str) -> None:
    deadline = time.monotonic() + 30
    while not Path(gate).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _attack(
    folder: Path,
    attack: Callable[[HostView, HostView, int], None],
    kernels: str | None = None,
    warm: int = 2,
    suite: Suite = Suite.AES_256_GCM,
) -> list[tuple[str, bool, str, bool]]:
    gate = folder / "gate"
    with group(2, folder, _victims, warm, str(gate), shape=SMALL, kernels=kernels, suite=suite.title) as ranks:
        ranks.wait_joined()
        views = [HostView(ranks.pids[r], r, 2, SMALL) for r in range(2)]
        position = warm * RECORDS
        views[0].wait_head(2, position + RECORDS)
        attack(views[0], views[1], position)
        gate.touch()
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert outcome.seconds < GROUP_SECONDS
    assert not left_behind()
    return [outcome.value for outcome in outcomes]


def _assert_refused(results: list[tuple[str, bool, str, bool]]) -> None:
    """The reader, rank 1, names the cause and keeps no data. Rank 0 learns of it: in this call, or in the next one
    when rank 1's records, which are right, had all reached it."""
    (first_0, zeroed_0, later_0, right_0), (first_1, zeroed_1, later_1, _) = results
    assert first_1.startswith("AuthenticationError") and zeroed_1, first_1
    assert "from rank 0" in first_1 or "with rank 0" in first_1
    assert "all_reduce(float32[3000], sum)" in first_1
    assert (first_0.startswith("AuthenticationError") and zeroed_0) or (first_0 == "returned" and right_0), first_0
    assert later_0 == later_1 == "AuthenticationError"


def test_untouched_control(tmp_path: Path) -> None:
    """Without an attack the same procedure gives the right sum: so the attacks below are what makes it fail."""
    for first, _, later, right in _attack(tmp_path, lambda *_: None):
        assert (first, later, right) == ("returned", "returned", True)


@pytest.mark.parametrize("kernels", list(_engine.aead_names()))
@pytest.mark.parametrize(
    ("record", "byte"),
    [(0, 0), (0, 4095), (1, 2048), (2, 100), (2, 12000 - 8192 - 1), (0, 4096), (0, 4111), (2, 12000 - 8192 + 3)],
    ids=["first", "last", "second", "third", "third-last", "tag-first", "tag-last", "third-tag"],
)
def test_flipped_bit_in_any_slot(tmp_path: Path, kernels: str, record: int, byte: int) -> None:
    def attack(sender: HostView, _: HostView, position: int) -> None:
        sender.flip(sender.slot_at(2, position + record) + byte, bit=byte % 8)

    _assert_refused(_attack(tmp_path, attack, kernels))


@pytest.mark.parametrize("kernels", _engine.aead_names(Suite.AEGIS_256X4))
@pytest.mark.parametrize(
    ("record", "byte"), [(0, 0), (1, 2048), (2, 12000 - 8192 - 1), (0, 4111)], ids=["first", "second", "last", "tag"]
)
def test_flipped_bit_in_any_slot_of_suite_4(tmp_path: Path, kernels: str, record: int, byte: int) -> None:
    def attack(sender: HostView, _: HostView, position: int) -> None:
        sender.flip(sender.slot_at(2, position + record) + byte, bit=byte % 8)

    _assert_refused(_attack(tmp_path, attack, kernels, suite=Suite.AEGIS_256X4))


@each_suite
def test_swapped_records(tmp_path: Path, suite: Suite) -> None:
    def attack(sender: HostView, _: HostView, position: int) -> None:
        m = sender.memory
        a, b = sender.slot_at(2, position), sender.slot_at(2, position + 1)
        n = 4096 + TAG
        m[a : a + n], m[b : b + n] = m[b : b + n], m[a : a + n]

    _assert_refused(_attack(tmp_path, attack, suite=suite))


@each_suite
def test_replayed_record(tmp_path: Path, suite: Suite) -> None:
    """The whole record that stood in the lane one collective ago, of the same length and plaintext."""
    stale: dict[int, bytes] = {}

    def attack(sender: HostView, _: HostView, position: int) -> None:
        # Of six records in four slots, the second collective's first two are overwritten by the third's: its third
        # stands where the next would go.
        old = sender.slot_at(2, position - 1)
        stale[0] = bytes(sender.memory[old : old + 12000 - 8192 + TAG])
        new = sender.slot_at(2, position + 2)
        sender.memory[new : new + len(stale[0])] = stale[0]

    # A lane of four slots and three records a collective: position - 1 is still there while position .. + 2 are fresh.
    _assert_refused(_attack(tmp_path, attack, suite=suite))
    assert any(stale[0])


def test_f7_records_of_an_earlier_attempt(tmp_path: Path) -> None:
    """The same ranks with the same key, data and calls, in an earlier session: nothing of it verifies."""
    old: list[bytes] = []

    def keep(sender: HostView, _: HostView, position: int) -> None:
        for record in range(RECORDS):
            at = sender.slot_at(2, position + record)
            old.append(bytes(sender.memory[at : at + 4096 + TAG]))

    def replay(sender: HostView, _: HostView, position: int) -> None:
        for record, slot in enumerate(old):
            at = sender.slot_at(2, position + record)
            sender.memory[at : at + len(slot)] = slot

    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    for first, _, _, right in _attack(tmp_path / "first", keep):
        assert (first, right) == ("returned", True)
    shutil.copy(tmp_path / "first" / "key", tmp_path / "second" / "key")
    _assert_refused(_attack(tmp_path / "second", replay))


def test_reflected_record(tmp_path: Path) -> None:
    """A rank's own record, sent back to it as its peer's."""

    def attack(sender: HostView, receiver: HostView, position: int) -> None:
        # What rank 1 sealed in the last collective, at the same place, is what it gets for rank 0's.
        old = receiver.slot_at(2, position - 1)
        n = 12000 - 8192 + TAG
        new = sender.slot_at(2, position + 2)
        sender.memory[new : new + n] = receiver.memory[old : old + n]

    _assert_refused(_attack(tmp_path, attack))


def test_truncated_record(tmp_path: Path) -> None:
    """A shorter record with its tag pulled forward: lengths come from the plan, so it does not verify."""

    def attack(sender: HostView, _: HostView, position: int) -> None:
        at = sender.slot_at(2, position)
        tag = bytes(sender.memory[at + 4096 : at + 4096 + TAG])
        sender.memory[at + 4080 : at + 4080 + TAG] = tag

    _assert_refused(_attack(tmp_path, attack))


def test_zeroed_slot(tmp_path: Path) -> None:
    def attack(sender: HostView, _: HostView, position: int) -> None:
        at = sender.slot_at(2, position)
        sender.memory[at : at + 4096 + TAG] = bytes(4096 + TAG)

    _assert_refused(_attack(tmp_path, attack))


@pytest.mark.parametrize("by", [-1, -4, 5, 2**40, 2**63], ids=["back-1", "back-4", "ahead-5", "far", "half"])
def test_head_that_no_honest_sender_writes(tmp_path: Path, by: int) -> None:
    """``by`` is relative to what the reader has already read."""

    def attack(sender: HostView, _: HostView, position: int) -> None:
        sender.set_head(2, position + by)

    results = _attack(tmp_path, attack)
    _assert_refused(results)
    assert "moved as no honest peer" in results[1][0]


def test_head_ahead_of_the_records(tmp_path: Path) -> None:
    """A head that claims a record which was not sent makes the reader look at an old slot: which does not verify."""

    def attack(sender: HostView, _: HostView, position: int) -> None:
        # All three records were announced; pull the first slot's content away as if it had not been written yet.
        old = sender.slot_at(2, position - 1)
        new = sender.slot_at(2, position)
        sender.memory[new : new + 4096 + TAG] = sender.memory[old : old + 4096 + TAG]

    _assert_refused(_attack(tmp_path, attack))


@pytest.mark.parametrize("by", [-1, -6, 1, 2**63], ids=["back-1", "back-6", "ahead-1", "half"])
def test_tail_that_no_honest_reader_writes(tmp_path: Path, by: int) -> None:
    """``by`` is relative to what the writer has sent or, going back, to what it saw the reader take."""

    def attack(_: HostView, receiver: HostView, position: int) -> None:
        receiver.set_tail(2, position + (SMALL.depth if by > 0 else 0) + by)

    outcomes = _tail_attack(tmp_path, attack)
    (first_0, zeroed_0, later_0, _), (first_1, zeroed_1, later_1, right_1) = outcomes
    assert first_0.startswith("AuthenticationError") and "the lane shared with rank" in first_0, first_0
    assert later_0 == later_1 == "AuthenticationError"
    assert zeroed_0
    assert (first_1.startswith("AuthenticationError") and zeroed_1) or (first_1 == "returned" and right_1)


def test_slots_that_are_claimed_to_be_read(tmp_path: Path) -> None:
    """A tail within what was sent makes the writer overwrite unread slots: what the reader finds does not verify."""

    def attack(_: HostView, receiver: HostView, position: int) -> None:
        receiver.set_tail(2, position + SMALL.depth)

    for first, kept_out, later, _ in _tail_attack(tmp_path, attack):
        assert first.startswith("AuthenticationError") and kept_out, first
        assert later == "AuthenticationError"


def _tail_victims(comm: Communicator, gate: str) -> tuple[str, bool, str, bool]:
    """Rank 0 fills its lane and waits for room while the host writes the reader's tail."""
    for _ in range(2):
        comm.all_reduce(np.ones(COUNT, np.float32), algorithm="one_shot")
    big = np.ones(COUNT * 8, np.float32)
    _take_places(comm, gate)
    try:
        comm.all_reduce(big, algorithm="one_shot")
        first = "returned"
    except SecureCollError as e:
        first = f"{type(e).__name__}: {e}"
    later = _barrier(comm)
    # Zeroed, or as it was: a peer's failure is found before a call begins.
    kept_out = not big.any() or bool((big == 1).all())
    return first, kept_out, later, bool((big == 2).all())


def _tail_attack(folder: Path, attack: Callable[[HostView, HostView, int], None]) -> list[tuple[str, bool, str, bool]]:
    gate = folder / "gate"
    with group(2, folder, _tail_victims, str(gate), shape=SMALL) as ranks:
        ranks.wait_joined()
        views = [HostView(ranks.pids[r], r, 2, SMALL) for r in range(2)]
        position = 2 * RECORDS
        views[0].wait_head(2, position + SMALL.depth)  # the lane is full: the writer looks at the tail
        attack(views[0], views[1], position)
        time.sleep(0.3)
        gate.touch()
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert outcome.error is None, outcome.error
        assert outcome.seconds < GROUP_SECONDS
    return [outcome.value for outcome in outcomes]


def _withheld(comm: Communicator) -> str:
    try:
        for _ in range(1000):
            comm.all_reduce(np.ones(COUNT, np.float32), algorithm="one_shot", timeout=1.0)
            time.sleep(0.01)
        return "returned"
    except SecureCollError as e:
        return type(e).__name__


def test_withheld_records_end_at_the_deadline(tmp_path: Path) -> None:
    """A head that is held still shows no record: the reader waits, and its deadline ends the wait."""
    with group(2, tmp_path, _withheld, shape=SMALL) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        view.wait_head(2, 12)
        held = view.head(2)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            view.set_head(2, held)
        outcomes = ranks.finish()
    # Writing the same word back races with the writer, so a rank may also see it move as no honest peer moves it.
    assert {outcome.value for outcome in outcomes} <= {"CollectiveTimeout", "AuthenticationError"}


def _flooded(comm: Communicator) -> tuple[str, bool]:
    x = np.ones(COUNT, np.float32)
    try:
        for _ in range(100000):
            x[:] = 1
            comm.all_reduce(x)
            if not (x == 2).all():
                return "wrong", False
    except SecureCollError as e:
        # Zeroed, or as it was: a peer's failure is found before a call begins.
        return type(e).__name__, not x.any() or bool((x == 1).all())
    return "returned", False


def test_random_flips_never_give_a_wrong_sum(tmp_path: Path) -> None:
    """Random bits of both segments' slots, flipped while ranks run: each run ends in an error, after right sums."""
    seed = int.from_bytes(np.random.default_rng().bytes(4), "big")
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with group(2, folder, _flooded, shape=SMALL) as ranks:
            ranks.wait_joined()
            views = [HostView(ranks.pids[r], r, 2, SMALL) for r in range(2)]
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and not ranks._pipes[0].poll():
                view = views[rng.integers(2)]
                slots = view.bytes - view.slots_at
                for at in rng.integers(slots, size=200):
                    view.flip(view.slots_at + int(at), int(rng.integers(8)))
            outcomes = ranks.finish()
        for outcome in outcomes:
            assert outcome.value == ("AuthenticationError", True), outcome


def _forge_control(comm: Communicator, gate: str) -> str:
    try:
        comm.barrier()
        _pass(gate)
        for _ in range(100):
            comm.barrier()
            time.sleep(0.01)
        return "returned"
    except SecureCollError as e:
        return type(e).__name__


def test_forged_control_record(tmp_path: Path) -> None:
    """A notice made up by the host does not verify; it ends the communicator, as any forged record does."""
    gate = tmp_path / "gate"
    with group(2, tmp_path, _forge_control, str(gate), shape=SMALL) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        view.wait_head(2, 1)
        view.set_head(3 + 1, 1)  # rank 0's control lane to rank 1
        gate.touch()
        outcomes = ranks.finish()
    assert outcomes[1].value == "AuthenticationError"
    assert outcomes[0].value in ("AuthenticationError", "PeerLostError")


def test_the_host_view_mirrors_the_engine() -> None:
    for size in (2, 3, 17):
        view = HostView(0, 0, size, SMALL)
        slots, control = view.messages_at - view.slots_at, view.CONTROL_LANE * (size - 1)
        assert view.control_at + control + slots == _engine.segment_bytes(size, SMALL.slot_bytes, SMALL.depth, size)


def test_errors_are_of_one_tree() -> None:
    assert issubclass(AuthenticationError, SecureCollError)
    assert issubclass(PeerLostError, RuntimeError)
