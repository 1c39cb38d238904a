"""The rendezvous store dies, before, while and after ranks join through it; and it lies."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from securecoll.errors import AuthenticationError, HandshakeError
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


class _Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def _join_with_an_impostor(
    rank: int, key: str, store: tuple[int, int], mark: str, given: dict[str, str], pipe: Any
) -> None:
    """Rank 0's store has a message of rank 1 before rank 1 has written any."""
    from securecoll import rendezvous

    configure({**given, "SECURECOLL_KEY_FILE": key})
    real = rendezvous.StoreExchange.exchange

    def exchange(self: Any, round: int, *rest: Any) -> list[bytes]:
        if (rank, round) == (0, 1):
            blob = pickle.dumps(_Payload(Path(mark)))
            self._store.set(f"{self._prefix}/{self._attempt + 1}/1/1", len(blob).to_bytes(4, "big") + blob)
        elif round == 1:
            time.sleep(0.3)
        return real(self, round, *rest)

    rendezvous.StoreExchange.exchange = exchange  # type: ignore[method-assign]
    client = dist.TCPStore("127.0.0.1", store[1], is_master=False, wait_for_workers=False)
    try:
        dist.init_process_group("securecoll", store=client, rank=rank, world_size=2, timeout=timedelta(seconds=20))
        dist.broadcast_object_list([None])
        pipe.send("joined")
    except Exception as e:
        values = b"".join(client.get(name) for name in client.list_keys())
        secret = Path(key).read_bytes()
        forms = (secret, secret.hex().encode(), base64.b64encode(secret))
        pipe.send((e, len(values), any(form in values for form in forms)))


def test_e3_whoever_writes_to_the_store_first_is_not_taken_for_a_member(
    store: tuple[int, int], tmp_path: Path, transport: str
) -> None:
    """Nothing that it wrote is unpickled; both members raise; and the store has nothing of the key."""
    pipes = []
    for rank in range(2):
        ours, theirs = _context.Pipe()
        arguments = (rank, str(key_for(tmp_path)), store, str(tmp_path / "mark"), settings(), theirs)
        _context.Process(target=_join_with_an_impostor, args=arguments).start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.poll(40)
        error, stored, shown = pipe.recv()
        assert isinstance(error, HandshakeError | AuthenticationError) and "rank" in str(error), error
        assert stored > 100 and not shown
    assert not (tmp_path / "mark").exists()
    pickle.loads(pickle.dumps(_Payload(tmp_path / "mark")))
    assert (tmp_path / "mark").exists()  # as it would have been
