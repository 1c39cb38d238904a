"""What networks and hosts do to a group: right data, or one clear error on every rank in time."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, SecureCollError
from tests.engine.digests import every_result
from tests.groups import SMALL, Group, Outcome, group, left_behind, run
from tests.hosts.lab import PACKETS, Lab, enter, hosts

F32 = np.float32


def _until_it_ends(comm: Communicator, folder: str, idle: int = -1) -> tuple[str, str, float]:
    """Adds until something fails; rank ``idle`` stays away for a while."""
    x = np.ones(100_000, F32)
    comm.all_reduce(x)
    Path(folder, f"began{comm.rank}").touch()
    if comm.rank == idle:
        time.sleep(1.5)
    try:
        while True:
            x[:] = 1
            comm.all_reduce(x, timeout=20)
            assert (x == comm.size).all()
    except SecureCollError as e:
        return type(e).__name__, str(e), time.time()


def _wait_for_all(ranks: Group, folder: Path, seconds: float = 0.3) -> None:
    ranks.wait_joined()
    while not all((folder / f"began{rank}").exists() for rank in range(len(ranks.pids))):
        time.sleep(0.01)
    time.sleep(seconds)


def _lost(outcome: Outcome, rank: int, since: float, within: float) -> None:
    kind, text, when = outcome.value
    assert kind == "PeerLostError" and f"rank {rank}" in text, text
    assert when - since < within


@pytest.mark.parametrize(("direction", "idle"), [("out", -1), ("into", 0)], ids=["out-sending", "into-waiting"])
def test_a_cable_that_is_cut_in_one_direction(tmp_path: Path, direction: str, idle: int) -> None:
    """What one host sends still arrives, and what comes back does not: both ranks end, and each names the other."""
    with hosts(2) as made:
        made.describe(tmp_path, (0, 1))
        with group(2, tmp_path, _until_it_ends, str(tmp_path), idle, prepare=enter) as ranks:
            _wait_for_all(ranks, tmp_path)
            made.lose(1, **{direction: 100})
            cut = time.time()
            outcomes = ranks.finish()
    for rank, outcome in enumerate(outcomes):
        _lost(outcome, 1 - rank, cut, 4.5)


def _many_calls(comm: Communicator, seconds: float) -> int:
    x = np.arange(1000, dtype=F32)
    deadline = time.monotonic() + seconds
    stop = np.zeros(1, np.int32)
    calls = 0
    while not stop[0]:
        y = x * (comm.rank + 1)
        comm.all_reduce(y)
        assert (y == 3 * x).all()
        calls += 1
        stop[0] = time.monotonic() > deadline and comm.rank == 0
        comm.broadcast(stop)
    every_result(comm)
    return calls


def _one_computes(comm: Communicator, seconds: float) -> int:
    if comm.rank == 1:
        time.sleep(seconds)
    x = np.ones(10, F32)
    comm.all_reduce(x)
    assert (x == 2).all()
    return 1


def _through_loss(folder: Path, seconds: float, pairs: int) -> list[str]:
    """Pairs of ranks beside each other on a link that drops a tenth of all packets both ways. What went wrong."""
    with hosts(2, (4,), *PACKETS) as made, ExitStack() as stack:
        made.lose(1, out=10, into=10)
        running = []
        for i in range(pairs):
            own = folder / f"{i}"
            own.mkdir()
            made.describe(own, (0, 1))
            body = (_many_calls, _one_computes)[i % 2]
            running.append(stack.enter_context(group(2, own, body, seconds, shape=SMALL, timeout=50, prepare=enter)))
        ends = [ranks.finish() for ranks in running]
    failures = []
    for pair in ends:
        errors = [outcome.error for outcome in pair]
        assert errors == [None, None] or all(isinstance(e, SecureCollError) for e in errors), errors
        failures += [str(errors[0])] if errors[0] else []
    return failures


def test_a_tenth_of_all_packets_is_lost(tmp_path: Path) -> None:
    """Results are right, or every rank of a pair raises. Silence after lost packets is hardly ever taken for a host
    that is gone, whether a rank sends all the time or waits for one that computes."""
    failures = _through_loss(tmp_path, 4.0, 4)
    assert len(failures) <= 1, failures


@pytest.mark.slow
def test_a_tenth_of_all_packets_is_lost_for_long(tmp_path: Path) -> None:
    failures = _through_loss(tmp_path, 40.0, 16)
    print(f"{len(failures)} of 16 pairs failed", *failures, sep="\n")
    assert len(failures) <= 1


def test_a_host_that_loses_power_and_starts_again(tmp_path: Path) -> None:
    """Half-open: the new host knows nothing of the connection, and says so as soon as it is asked."""
    with hosts(2) as made:
        made.describe(tmp_path, (0, 1))
        with group(2, tmp_path, _until_it_ends, str(tmp_path), 1, prepare=enter) as ranks:
            _wait_for_all(ranks, tmp_path, 0.5)  # rank 0 waits, and rank 1 has nothing under way
            made.crash(1)
            ranks.kill(1)
            time.sleep(0.5)
            made.plug(1)
            up = time.time()
            outcomes = ranks.finish()
    _lost(outcomes[0], 1, up, 1.3)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_of_another_host_is_killed_or_stopped(tmp_path: Path, signum: int) -> None:
    """Everyone ends: in two seconds, and names it; or at the deadline."""
    with hosts(2) as made:
        made.describe(tmp_path, (0, 0, 1, 1))
        with group(4, tmp_path, _until_stopped, str(tmp_path), prepare=enter) as ranks:
            _wait_for_all(ranks, tmp_path)
            ranks.kill(3, signum)
            killed = time.time()
            if signum == signal.SIGSTOP:
                assert all(ranks._pipes[rank].poll(20) for rank in range(3))
                ranks.kill(3)
            outcomes = ranks.finish()
    for outcome in outcomes[:3]:
        kind, text, when = outcome.value
        if signum == signal.SIGKILL:
            assert kind == "PeerLostError" and "rank 3" in text and when - killed < 2, text
        else:
            # Who waits for a rank that waits for the stopped one cannot tell them apart: so any rank may be named.
            assert kind == "CollectiveTimeout" and 2.0 < when - killed < 4, text
    assert not left_behind()


def _until_stopped(comm: Communicator, folder: str) -> tuple[str, str, float]:
    x = np.ones(1 << 18, F32)
    comm.all_reduce(x)
    Path(folder, f"began{comm.rank}").touch()
    try:
        while True:
            comm.all_reduce(x, timeout=2.5)
            x[:] = 1
    except SecureCollError as e:
        return type(e).__name__, str(e), time.time()


def _broadcast_late(comm: Communicator) -> bool:
    x = np.arange(8_000_000, dtype=F32) if comm.rank == 0 else np.zeros(8_000_000, F32)
    if comm.rank == 1:
        time.sleep(3.0)
    comm.broadcast(x, 0)
    comm.close()
    return bool((x == np.arange(8_000_000, dtype=F32)).all())


def test_a_peer_that_sleeps_before_full_buffers(tmp_path: Path) -> None:
    """For longer than a host is given that is silent: its kernel still answers."""
    with hosts(2, (4,)) as made:
        made.describe(tmp_path, (0, 1))
        assert run(2, tmp_path, _broadcast_late, prepare=enter) == [True, True]


def _no_shared_memory(rank: int, folder: Path) -> None:
    """Rank 1 has no /dev/shm: a /dev with what Python opens, and nothing else."""
    enter(rank, folder)
    if rank != 1:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    dev = folder / "dev"
    dev.mkdir()
    for name in ("null", "urandom"):
        (dev / name).touch()
        if libc.mount(f"/dev/{name}".encode(), bytes(dev / name), None, 0x1000, None):
            raise OSError(ctypes.get_errno(), "cannot bind")
    if libc.mount(bytes(dev), b"/dev", None, 0x5000, None):  # with what is mounted below
        raise OSError(ctypes.get_errno(), "cannot bind /dev")
    assert not Path("/dev/shm").exists()


def _with_memory(comm: Communicator) -> tuple[str, bool]:
    return every_result(comm), bool(comm.shared_bytes)


def test_a_rank_without_dev_shm(tmp_path: Path) -> None:
    """It is a host of its own; the others of its host share memory as ever."""
    with hosts(2, (4,)) as made:
        made.describe(tmp_path, (0, 0, 0, 1))
        found = run(4, tmp_path, _with_memory, shape=SMALL, prepare=_no_shared_memory)
    assert [shared for _, shared in found] == [True, False, True, False]
    assert len({digest for digest, _ in found}) == 4  # ranks differ in what they gather


def _addresses(made: Lab, number: int, family: int) -> None:
    """Leaves a host those of one family."""
    words = ["ip", "-n", made.host(number), "-6" if family == 4 else "-4", "address", "flush", "dev", "eth0"]
    subprocess.run(words, check=True)


def test_f12_a_host_of_both_families_among_hosts_of_one(tmp_path: Path) -> None:
    with hosts(2) as made:
        _addresses(made, 1, 6)
        made.describe(tmp_path, (0, 1))
        run(2, tmp_path, every_result, shape=SMALL, prepare=enter)


def test_f12_hosts_without_a_common_family(tmp_path: Path) -> None:
    with hosts(2) as made:
        _addresses(made, 0, 4)
        _addresses(made, 1, 6)
        made.describe(tmp_path, (0, 1))
        with group(2, tmp_path, every_result, timeout=30, prepare=enter) as ranks:
            outcomes = ranks.finish()
    for outcome in outcomes:
        assert isinstance(outcome.error, securecoll.HandshakeError)
        assert "10.77.0.1" in str(outcome.error) and "[fd77::2]" in str(outcome.error), outcome.error
        assert outcome.seconds < 15


def _without_a_name(rank: int, folder: Path) -> None:
    """The host's own name resolves to nothing."""
    enter(rank, folder)
    libc = ctypes.CDLL(None, use_errno=True)
    name = f"node{rank}.invalid".encode()
    if libc.unshare(0x4000000) or libc.sethostname(name, len(name)):
        raise OSError(ctypes.get_errno(), "cannot take a name")
    assert socket.gethostname() == name.decode()
    with pytest.raises(OSError):
        socket.getaddrinfo(socket.gethostname(), None)


def test_f11_a_host_name_that_does_not_resolve_does_not_matter(tmp_path: Path) -> None:
    with hosts(2, (4,)) as made:
        made.describe(tmp_path, (0, 1))
        run(2, tmp_path, every_result, shape=SMALL, prepare=_without_a_name)


def _to_nowhere(rank: int, folder: Path) -> None:
    """Rank 1's host has lost its way to the others while it started."""
    enter(rank, folder)
    os.environ["SECURECOLL_IFNAME"] = "lo" if rank else "eth0"


def test_f11_an_interface_that_does_not_lead_to_the_others(tmp_path: Path) -> None:
    """Who cannot be reached where is named at the deadline."""
    with hosts(2, (4,)) as made:
        made.describe(tmp_path, (0, 1))
        with group(2, tmp_path, every_result, timeout=2, prepare=_to_nowhere) as ranks:
            outcomes = ranks.finish()
    zero, one = (outcome.error for outcome in outcomes)
    assert isinstance(zero, securecoll.HandshakeError) and "rank 1" in str(zero), zero
    assert isinstance(one, securecoll.HandshakeError) and "10.77.0.1" in str(one), one
    assert all(outcome.seconds < 4 for outcome in outcomes)
