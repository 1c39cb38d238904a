"""What the host can read while ranks work: no payload byte, and no key."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import numpy as np

from securecoll import Communicator
from securecoll.shape import Shape
from tests.groups import SMALL, Group, HostView, group

CANARY = b"the host must not read this line"


def shows(memory: bytes, secret: bytes) -> bool:
    """Whether any 8-byte window of ``secret`` is in ``memory``."""
    return any(secret[i : i + 8] in memory for i in range(len(secret) - 7))


def works(comm: Communicator, seconds: float, messages: bool = True) -> int:
    """Every collective, and messages of both kinds, move a known line again and again; returns how often."""
    n = comm.size
    line = np.frombuffer(CANARY * 400, np.uint8)
    rounds = 0
    deadline = time.monotonic() + seconds
    stop = np.zeros(1, np.int32)
    while True:
        out = np.empty(line.size * n, np.uint8)
        comm.all_gather(line, out)
        assert bytes(out[-line.size :]) == CANARY * 400
        comm.broadcast(line.copy(), root=rounds % n)
        comm.all_to_all(out, np.empty_like(out))
        comm.gather(line, out if comm.rank == 0 else None)
        comm.scatter(out if comm.rank == 0 else None, np.empty(line.size, np.uint8))
        comm.all_reduce(np.where(comm.rank == 0, line, 0).astype(np.uint8))  # the sum is the line
        comm.reduce_scatter(np.tile(np.where(comm.rank == 0, line, 0).astype(np.uint8), n), np.empty_like(line))
        for message in (line, np.tile(line, 8)) if messages else ():
            work = comm.send(message, (comm.rank + 1) % n, tag=2, async_op=True)
            got = np.empty_like(message)
            comm.recv(got, (comm.rank - 1) % n, tag=2)
            assert bytes(got[-line.size :]) == CANARY * 400
            work.wait()
        rounds += 1
        stop[0] = time.monotonic() > deadline
        comm.broadcast(stop)
        if stop[0]:
            return rounds


def watch(ranks: Group, shape: Shape, *secrets: bytes) -> None:
    """Plays the host while two ranks work: looks for secrets in their segments, which must not be empty. Then makes
    sure that it would have found them."""
    seen, memory = 0, b""
    views = [HostView(ranks.pids[r], r, 2, shape) for r in range(2)]
    while not ranks._pipes[0].poll():
        for view in views:
            assert view.memory is not None
            memory = view.memory[:]
            seen += len(memory) - memory.count(0)
            assert not any(shows(memory, secret) for secret in secrets)
    assert seen > 100_000, "the segments were empty: nothing was looked at"
    # The same memory with one fragment of a secret in it.
    planted = memory[:5000] + secrets[0][11:19] + memory[5008:]
    assert shows(planted, secrets[0])


def test_e2_no_payload_and_no_key_in_what_the_host_can_read(tmp_path: Path) -> None:
    """Segments of both ranks, sampled while every collective moves a known line; and all that the exchange held."""
    with group(2, tmp_path, works, 1.5, shape=SMALL) as ranks:
        ranks.wait_joined()
        key = (tmp_path / "key").read_bytes()
        exchanged = b"".join(path.read_bytes() for path in (tmp_path / "exchange").rglob("*") if path.is_file())
        watch(ranks, SMALL, CANARY, key)
        outcomes = ranks.finish()
    assert all(outcome.error is None and outcome.value > 3 for outcome in outcomes)
    assert exchanged, "the exchange was empty: nothing was looked at"
    for form in (key, key.hex().encode(), key.hex().upper().encode(), base64.b64encode(key)):
        assert not shows(exchanged, form)
