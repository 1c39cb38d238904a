"""Groups across hosts: network namespaces with memory of their own."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from securecoll import Communicator, SecureCollError
from tests.engine.digests import every_result
from tests.groups import SMALL, group, run
from tests.hosts.lab import enter, hosts, placed
from tests.test_communicator import every_collective


def _everything(comm: Communicator) -> tuple[int, int, str]:
    checks = every_collective(comm, (1, 1025, 9000))
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for count in (3, 200_000):
        theirs = np.zeros(count)
        work = comm.send(np.full(count, float(comm.rank)), after, async_op=True)
        comm.recv(theirs, before)
        work.wait()
        assert (theirs == before).all()
    return comm.shared_bytes, checks, every_result(comm)


@pytest.mark.parametrize(
    ("placement", "families"),
    [((0, 1), (4, 6)), ((0, 1, 2), (4,)), ((0, 0, 1, 1), (6,)), ((0, 1, 0, 2), (4, 6))],
    ids=["two", "three-IPv4", "two-of-two-IPv6", "three-of-four-ranks"],
)
def test_every_collective_across_hosts(tmp_path: Path, placement: tuple[int, ...], families: tuple[int, ...]) -> None:
    """What NumPy says; the same bits as on one machine under the same plans; and shared memory among the ranks of a
    host, and nobody else."""
    (tmp_path / "one-machine").mkdir()
    size = len(placement)
    with hosts(max(placement) + 1, families) as made:
        made.describe(tmp_path, placement)
        made.describe(tmp_path / "one-machine", placement)
        found = run(size, tmp_path, _everything, shape=SMALL, prepare=enter)
    expected = run(size, tmp_path / "one-machine", every_result, shape=SMALL, prepare=placed)
    assert [digest for *_, digest in found] == expected
    for rank, (shared, checks, _) in enumerate(found):
        assert checks > 100
        assert bool(shared) == (placement.count(placement[rank]) > 1)


def _until_it_ends(comm: Communicator, gate: str, busy: bool) -> tuple[str, str, float]:
    x = np.ones(100_000, np.float32)
    comm.all_reduce(x)
    Path(gate).touch()
    if not busy and comm.rank == 0:
        time.sleep(1.0)  # the others wait in a call, with nothing of theirs under way
    try:
        while True:
            comm.all_reduce(x, timeout=20)
            x[:] = 1
    except SecureCollError as e:
        return type(e).__name__, str(e), time.time()


@pytest.mark.parametrize("busy", [True, False], ids=["sending", "waiting"])
def test_a_host_that_vanishes_is_noticed_and_named(tmp_path: Path, busy: bool) -> None:
    """Its cable is pulled: no socket closes, nothing is refused."""
    with hosts(2) as made:
        made.describe(tmp_path, (0, 1))
        gate = tmp_path / "gate"
        with group(2, tmp_path, _until_it_ends, str(gate), busy, prepare=enter) as ranks:
            ranks.wait_joined()
            while not gate.exists():
                time.sleep(0.01)
            time.sleep(0.3)
            made.cut(1)
            cut = time.time()
            outcomes = ranks.finish()
    for rank, outcome in enumerate(outcomes):
        kind, text, when = outcome.value
        assert kind == "PeerLostError" and f"rank {1 - rank}" in text, text
        # Not before two seconds of silence; looked at every 100 ms; then 100 ms to hear what the peer has to say.
        assert when - cut < 3.2 + (0.0 if busy else 1.0)
