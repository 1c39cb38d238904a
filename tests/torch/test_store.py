"""The rendezvous store dies, before, while and after ranks join through it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from securecoll.errors import HandshakeError
from tests.groups import configure, left_behind, settings
from tests.torch.ranks import _context, key_for

AFTER = 9
"""In place of the handshake's round in which the store dies: once all have joined."""


def _serve(pipe: Any) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    time.sleep(60)


@pytest.fixture
def store() -> Iterator[tuple[int, int]]:
    """Its process, and its port."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_serve, args=(theirs,))
    process.start()
    assert ours.poll(30)
    yield process.pid, ours.recv()
    process.kill()
    process.join()


def _join(rank: int, key: str, store: tuple[int, int], dies_in: int, given: dict[str, str], pipe: Any) -> None:
    import torch

    from securecoll import rendezvous

    configure({**given, "SECURECOLL_KEY_FILE": key})
    server, port = store
    real = rendezvous.StoreExchange.exchange

    def exchange(self: Any, round: int, *rest: Any) -> list[bytes]:
        if (rank, round) == (1, dies_in):
            time.sleep(0.2)  # the others are waiting
            os.kill(server, signal.SIGKILL)
        return real(self, round, *rest)

    rendezvous.StoreExchange.exchange = exchange  # type: ignore[method-assign]
    client = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    began = time.monotonic()
    try:
        dist.init_process_group("securecoll", store=client, rank=rank, world_size=3, timeout=timedelta(seconds=20))
        dist.barrier()  # everyone has joined
        if dies_in == AFTER and rank == 1:
            os.kill(server, signal.SIGKILL)
        x = torch.ones(50_000)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.destroy_process_group()
        pipe.send((float(x[0]), time.monotonic() - began))
    except Exception as e:
        pipe.send((e, time.monotonic() - began))


@pytest.mark.parametrize("dies_in", [1, 2, 4, AFTER], ids=["before", "during", "in the last round", "after"])
def test_a_store_that_is_killed(dies_in: int, store: tuple[int, int], tmp_path: Path, transport: str) -> None:
    """Every rank raises at once, or nobody notices."""
    pipes, processes = [], []
    for rank in range(3):
        ours, theirs = _context.Pipe()
        arguments = (rank, str(key_for(tmp_path)), store, dies_in, settings(), theirs)
        processes.append(_context.Process(target=_join, args=arguments))
        processes[-1].start()
        pipes.append(ours)
    ends = [pipe.recv() if pipe.poll(40) else ("hangs", 0) for pipe in pipes]
    for process in processes:
        process.join(10)
        assert process.exitcode == 0
    for end, seconds in ends:
        if dies_in == AFTER:
            assert end == 9.0
        else:
            assert isinstance(end, HandshakeError), end
        assert seconds < 5
    assert not left_behind()
