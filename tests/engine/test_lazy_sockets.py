"""Sockets that are made when they are needed, and news that reaches ranks without one."""

from __future__ import annotations

import logging.handlers
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, PeerLostError, SecureCollError, _engine
from tests.engine import relay as relays
from tests.engine.digests import every_result
from tests.groups import SMALL, Outcome, group, left_behind, run

SIZE = 6
FAR = (2, 4)
"""Two ranks of six that are no neighbours."""


def test_neighbours_agree_and_hold_together_without_any_one_rank() -> None:
    for size in range(2, 200):
        beside = {rank: set(_engine.neighbours(rank, size)) for rank in range(size)}
        assert all(rank in beside[peer] for rank in beside for peer in beside[rank])
        assert all(rank not in beside[rank] and len(beside[rank]) <= 5 for rank in beside)
        for lost in (None, *range(size)) if size < 40 else (None, 0, 1, size // 2, size - 1):
            rest = set(range(size)) - {lost}
            found, look = set(), [min(rest)]
            while look:
                rank = look.pop()
                found.add(rank)
                look += (beside[rank] & rest) - found
            assert found == rest


def _reach(comm: Communicator, gate: str) -> list[tuple[int, ...]]:
    """Whom this rank reaches: at first, and after messages between two that had no socket."""
    seen = [comm.connected_ranks]
    Path(f"{gate}-{comm.rank}").touch()
    _wait_for_all(Path(gate))
    for there in FAR:
        if comm.rank in FAR and comm.rank != there:
            ours, theirs = np.full(3, float(comm.rank)), np.zeros(3)
            work = comm.send(ours, there, async_op=True)
            comm.recv(theirs, there)
            work.wait()
            assert (theirs == there).all()
    seen.append(comm.connected_ranks)
    return seen


def test_sockets_are_made_when_they_are_needed(tmp_path: Path) -> None:
    results = run(SIZE, tmp_path, _reach, str(tmp_path / "gate"), shape=SMALL, prepare=relays.sockets_only)
    for rank, (first, last) in enumerate(results):
        assert first == tuple(_engine.neighbours(rank, SIZE))
        assert set(first) <= set(last)
        for there in FAR:
            if rank in FAR and rank != there:
                assert there not in first and there in last
    assert not left_behind()


def _same_host(rank: int, folder: Path) -> None:
    relays.sockets_only(rank, folder)
    relays.same_host()


def test_every_collective_gives_the_same_bits_as_in_shared_memory(tmp_path: Path) -> None:
    results = {}
    for name, prepare in (("shm", None), ("tcp", _same_host)):
        folder = tmp_path / name
        folder.mkdir()
        results[name] = run(
            SIZE, folder, every_result, shape=SMALL, **({} if prepare is None else {"prepare": prepare})
        )
    assert results["tcp"] == results["shm"]


def _all_pairs_at_once(comm: Communicator, patience: float) -> None:
    """Everyone turns to everyone, the higher rank of a pair when the lower one's patience with it ends."""
    others = [peer for peer in range(comm.size) if peer != comm.rank]
    mine = np.arange(20.0) + 100 * comm.rank
    theirs = {peer: np.zeros(20) for peer in others}
    works = []

    def turn_to(peers: list[int]) -> None:
        works.extend(comm.recv(theirs[peer], peer, async_op=True) for peer in peers)
        works.extend(comm.send(mine, peer, async_op=True) for peer in peers)

    time.sleep(0.2 - time.time() % 0.2)
    turn_to([peer for peer in others if peer > comm.rank])
    time.sleep(patience)
    turn_to([peer for peer in others if peer < comm.rank])
    for work in works:
        work.wait()
    assert all((theirs[peer] == np.arange(20.0) + 100 * peer).all() for peer in others)
    assert comm.connected_ranks == tuple(others)


_MILLISECONDS = (0, *np.arange(18, 22.1, 0.5))


def _groups_of_pairs(comm: Communicator, folder: str) -> int:
    for i, milliseconds in enumerate(_MILLISECONDS):
        path = Path(folder, f"group{i}")
        path.mkdir(exist_ok=True)
        exchange = securecoll.DirectoryExchange(path, rank=comm.rank, size=comm.size)
        with Communicator.create(exchange, Path(folder, "key"), timeout=20, shape=SMALL) as mine:
            _all_pairs_at_once(mine, milliseconds / 1e3)
            mine.barrier()
        exchange.close()
    return len(_MILLISECONDS)


def test_ranks_that_connect_to_each_other_at_once_have_one_socket(tmp_path: Path) -> None:
    assert run(8, tmp_path, _groups_of_pairs, str(tmp_path), shape=SMALL, prepare=relays.sockets_only) == [10] * 8


def _to_a_sleeping_rank(comm: Communicator) -> float:
    low, high = FAR
    began = time.monotonic()
    if comm.rank == low:  # the lower one, which would rather be called
        comm.send(np.full(5, 7.0), high)
    if comm.rank == high:
        time.sleep(0.5)
        got = np.zeros(5)
        assert comm.recv(got) == low
        assert (got == 7).all()
    return time.monotonic() - began


def test_a_message_to_a_rank_that_expects_it_from_anyone(tmp_path: Path) -> None:
    took = run(SIZE, tmp_path, _to_a_sleeping_rank, shape=SMALL, prepare=relays.sockets_only)
    assert took[FAR[1]] < 2


def _listeners() -> list[socket.socket]:
    """Of this process, as copies."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            found.append(copy)
        else:
            copy.close()
    return found


def _wait_for_the_dead(comm: Communicator, gate: str, survives: bool) -> str:
    """``survives``: what the rank listened on stays open when it dies, and nobody answers there."""
    low, high = FAR
    if comm.rank == high:
        if survives:
            heirs = _listeners()
            assert heirs
            subprocess.Popen(["sleep", "6"], pass_fds=[heir.fileno() for heir in heirs])
        Path(f"{gate}-{comm.rank}").touch()
        time.sleep(30)
    Path(f"{gate}-{comm.rank}").touch()
    while not Path(gate).exists():
        time.sleep(0.01)
    with pytest.raises(PeerLostError) as raised:
        comm.recv(np.zeros(4), high if comm.rank == low else None, timeout=8)
    return str(raised.value)


def _wait_for_all(gate: Path) -> None:
    while not all(Path(f"{gate}-{rank}").exists() for rank in range(SIZE)):
        time.sleep(0.01)


def _kill(ranks: object, gate: Path, rank: int, signum: int = signal.SIGKILL) -> None:
    _wait_for_all(gate)
    ranks.kill(rank, signum)  # type: ignore[attr-defined]


def _named_in_time(outcomes: list[Outcome], lost: int) -> None:
    for rank, outcome in enumerate(outcomes):
        if rank == lost:
            continue
        assert outcome.error is None, outcome.error
        assert f"rank {lost} " in outcome.value or f"(rank {lost})" in outcome.value, outcome.value
        assert outcome.seconds < 5


@pytest.mark.parametrize("survives", [False, True], ids=["nobody listens", "nobody answers"])
def test_f2_a_rank_killed_before_anyone_connected_to_it_is_named(tmp_path: Path, survives: bool) -> None:
    """By the refusal where it listened; and where there is none, by its neighbours, who saw it die."""
    gate = tmp_path / "gate"
    options = {"shape": SMALL, "prepare": relays.sockets_only}
    with group(SIZE, tmp_path, _wait_for_the_dead, str(gate), survives, **options) as ranks:
        _kill(ranks, gate, FAR[1])
        gate.touch()
        _named_in_time(ranks.finish(), FAR[1])
    assert not left_behind()


def _hear_of_it(comm: Communicator) -> str:
    if comm.rank == 0:
        time.sleep(0.3)
        comm.abort("the loss is not a number")
    with pytest.raises(SecureCollError) as raised:
        comm.recv(np.zeros(4), timeout=8)
    return str(raised.value)


def test_an_abort_reaches_everyone_and_names_its_origin(tmp_path: Path) -> None:
    """Ranks that have no way to rank 0 are told by others, and told who it was."""
    outcomes = run(12, tmp_path, _hear_of_it, shape=SMALL, prepare=relays.sockets_only)
    assert "aborted: the loss is not a number" in outcomes[0]
    far = [rank for rank in range(1, 12) if 0 not in _engine.neighbours(rank, 12)]
    assert len(far) > 5
    for rank in range(1, 12):
        assert re.match(rf"rank {rank}: rank 0 reports an abort", outcomes[rank]), outcomes[rank]


def _ports_of(pid: int) -> list[int]:
    """On which a process listens."""
    links = [os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]


def _late_pair(comm: Communicator, gate: str) -> list[str]:
    """What is said when all is over."""
    Path(f"{gate}-{comm.rank}").touch()
    while not Path(gate).exists():
        time.sleep(0.01)
    low, high = FAR
    got = np.zeros(4)
    if comm.rank == high:
        comm.send(np.full(4, 3.0), low, timeout=8)
    if comm.rank == low:
        comm.recv(got, high, timeout=8)
        assert (got == 3).all()
    said = logging.handlers.BufferingHandler(100)
    logging.getLogger("securecoll").addHandler(said)
    comm.close()
    return [record.getMessage() for record in said.buffer]


def test_strangers_at_the_door_do_not_keep_a_later_socket_from_being_made(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with group(SIZE, tmp_path, _late_pair, str(gate), shape=SMALL, prepare=relays.sockets_only) as ranks:
        _wait_for_all(gate)
        strangers = []
        for port in (port for rank in FAR for port in _ports_of(ranks.pids[rank])):
            for i in range(100):
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                if i % 3 == 0:
                    strangers[-1].sendall(b"GET / HTTP/1.1\r\nHost: " + b"x" * 100 + b"\r\n\r\n")
        assert len(strangers) >= 200
        gate.touch()
        outcomes = ranks.finish()
        for stranger in strangers:
            stranger.close()
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None, outcome.error
        if rank not in FAR:
            assert outcome.value == []
            continue
        (line,) = outcome.value
        assert re.match(rf"rank {rank}: \d+ connections proved nothing and were closed; 127\.0\.0\.1:\d+ ", line)
    assert not left_behind()


def _unreachable(comm: Communicator, gate: str) -> str:
    low, high = FAR
    Path(f"{gate}-{comm.rank}").touch()
    if comm.rank == high:
        time.sleep(30)
    while not Path(gate).exists():
        time.sleep(0.01)
    if comm.rank != low:
        return ""
    with pytest.raises(securecoll.CollectiveTimeout) as raised:
        comm.recv(np.zeros(4), high, timeout=2)
    return str(raised.value)


def test_f2_a_stopped_rank_that_nobody_connected_to_ends_at_the_deadline(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with group(SIZE, tmp_path, _unreachable, str(gate), shape=SMALL, prepare=relays.sockets_only) as ranks:
        _kill(ranks, gate, FAR[1], signal.SIGSTOP)
        gate.touch()
        time.sleep(3)
        ranks.kill(FAR[1])
        text = ranks.finish()[FAR[0]].value
    assert "timeout of 2 s" in text and f"no connection to rank {FAR[1]}: " in text


def _records_of_a_long_message(comm: Communicator) -> int:
    data = np.zeros(640 << 10, np.uint8)
    if comm.rank == 0:
        comm.send(data, 1)
    if comm.rank == 1:
        comm.recv(data, 0)
    return comm.stats().records_sealed


@pytest.mark.parametrize(("prepare", "slot_bytes"), [(relays.sockets_only, 64 << 10), (None, 32 << 10)])
def test_slots_are_sized_for_the_fullest_host(tmp_path: Path, prepare: Any, slot_bytes: int) -> None:
    """Twelve hosts of one rank have the slots of one rank, and one host of twelve has those of twelve."""
    options = {} if prepare is None else {"prepare": prepare}
    sealed = run(12, tmp_path, _records_of_a_long_message, **options)
    assert sealed[0] == 1 + (640 << 10) // slot_bytes  # and its envelope
