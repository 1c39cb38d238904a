"""A suite is chosen by ``pg_options``, and groups that are made without options have the default group's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from securecoll import _engine
from securecoll.communicator import Communicator
from securecoll.errors import ConfigError, HandshakeError
from securecoll.torch import SecureCollOptions
from tests.torch.ranks import on_ranks
from tests.torch.training import close, expected, model, step

AEGIS, GCM = "aegis-256x4", "aes-256-gcm"

pytestmark = pytest.mark.skipif(not _engine.aead_names(4), reason="this CPU has no AES instructions")


@contextmanager
def default_group(rank: int, size: int, name: str, options: SecureCollOptions | None) -> Iterator[list[str]]:
    """A default group with ``options`` in the place of the one that there is; the suites of all groups made
    meanwhile."""
    made: list[str] = []
    create = Communicator.create.__func__  # type: ignore[attr-defined]

    def recorded(cls: type[Communicator], *args: Any, **given: Any) -> Communicator:
        comm: Communicator = create(cls, *args, **given)
        made.append(comm.suite)
        return comm

    def begin(called: str, pg_options: SecureCollOptions | None) -> None:
        store = dist.FileStore(str(Path(os.environ["SECURECOLL_KEY_FILE"]).with_name(called)), size)
        dist.init_process_group("securecoll", store=store, rank=rank, world_size=size, pg_options=pg_options)

    dist.destroy_process_group()
    Communicator.create = classmethod(recorded)  # type: ignore[method-assign, assignment]
    try:
        begin(name, options)
        yield made
    finally:
        Communicator.create = classmethod(create)  # type: ignore[method-assign, assignment]
        if dist.is_initialized():
            dist.destroy_process_group()
        begin(name + " is over", None)


@on_ranks(2)
def test_a_ddp_step_and_collectives_in_suite_4(rank: int, size: int) -> None:
    with default_group(rank, size, "step", SecureCollOptions(suite=AEGIS)) as made:
        replica = DistributedDataParallel(model())
        close(step(replica, rank, size), expected(size))
        x = torch.full((100_000,), rank + 1.0)
        dist.all_reduce(x)
        assert (x == 3).all()
        parts = [torch.zeros(5) for _ in range(size)]
        dist.all_gather(parts, torch.full((5,), float(rank)))
        assert [part[0].item() for part in parts] == [0, 1]
        y = torch.arange(9.0) if rank == 0 else torch.zeros(9)
        if rank == 0:
            dist.send(y, 1)
        else:
            dist.recv(y, 0)
        assert y.tolist() == list(range(9))
        found: list[object] = [None, None]
        dist.all_gather_object(found, {"rank": rank})
        assert found == [{"rank": 0}, {"rank": 1}]
        assert made == [AEGIS]


@on_ranks(2)
def test_a_group_has_the_default_groups_suite_unless_given_another(rank: int, size: int) -> None:
    with default_group(rank, size, "groups", SecureCollOptions(suite=AEGIS)) as made:
        for options in (None, SecureCollOptions(), SecureCollOptions(suite=GCM), SecureCollOptions(suite=AEGIS)):
            group = dist.new_group([0, 1], pg_options=options)
            x = torch.ones(3000)
            dist.all_reduce(x, group=group)
            assert (x == 2).all()
        assert made == [AEGIS, AEGIS, AEGIS, GCM, AEGIS]


@on_ranks(2)
def test_without_a_word_the_suite_is_aes_256_gcm(rank: int, size: int) -> None:
    with default_group(rank, size, "default", None) as made:
        dist.new_group([0, 1])
        dist.barrier()
        assert made == [GCM, GCM]


@on_ranks(2)
def test_an_unknown_suite_is_refused_on_all_ranks(rank: int, size: int) -> None:
    with pytest.raises(ConfigError, match="no suite 'aegis': give one of aes-256-gcm, aegis-256x4"):
        dist.new_group([0, 1], pg_options=SecureCollOptions(suite="aegis"))


@on_ranks(2)
def test_ranks_whose_options_differ_refuse_each_other(rank: int, size: int) -> None:
    mine, theirs = (GCM, AEGIS) if rank == 0 else (AEGIS, GCM)
    with pytest.raises(HandshakeError, match=f"rank {1 - rank} joined with the suite {theirs}.*with {mine}"):
        dist.new_group([0, 1], pg_options=SecureCollOptions(suite=mine))
