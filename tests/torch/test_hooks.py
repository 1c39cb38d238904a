"""DDP's communication hooks, bit for bit as over gloo, and the optimizer that shards its state.

A hook issues collectives from callbacks on futures, and some wait there for more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from securecoll.errors import MismatchError
from tests.torch.ranks import on_ranks
from tests.torch.training import close, model, step, trained_alone

Install = Callable[[DistributedDataParallel, dist.ProcessGroup], None]


def trained_with(install: Install, group: dist.ProcessGroup, rank: int) -> list[torch.Tensor]:
    """Parameters after a few steps with a hook, on batches that differ by rank."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32))
    replica = DistributedDataParallel(net, process_group=group)
    install(replica, group)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(100 + rank)
    for _ in range(5):
        optimizer.zero_grad()
        replica(torch.randn(8, 32, generator=batches)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def same_as_gloo(install: Install, rank: int) -> None:
    assert dist.group.WORLD is not None
    sealed = trained_with(install, dist.group.WORLD, rank)
    plain = trained_with(install, dist.new_group(backend="gloo"), rank)
    for a, b in zip(sealed, plain, strict=True):
        assert torch.equal(a, b), (a - b).abs().max()


@on_ranks(2)
def test_compression_to_half_precision_gives_the_bits_of_gloo(rank: int, size: int) -> None:
    same_as_gloo(lambda replica, group: replica.register_comm_hook(group, default_hooks.fp16_compress_hook), rank)


def install_power_sgd(replica: DistributedDataParallel, group: dist.ProcessGroup) -> None:
    state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
    replica.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


@on_ranks(2)
def test_power_sgd_gives_the_bits_of_gloo(rank: int, size: int) -> None:
    """Its callbacks start collectives and wait for their futures."""
    same_as_gloo(install_power_sgd, rank)


@on_ranks(2)
def test_a_callback_may_wait_for_the_future_of_a_collective_that_it_starts(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    threads = []

    def more(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        threads.append(threading.get_ident())
        y = future.value()[0] + 1
        for where in (dist.group.WORLD, group):
            (y,) = dist.all_reduce(y, group=where, async_op=True).get_future().wait()
        return y

    for first in (dist.group.WORLD, group, dist.new_group([0, 1])):
        if rank == 1:
            time.sleep(0.3)  # so that rank 0's future is not done when the callback is added
        future = dist.all_reduce(torch.ones(4), group=first, async_op=True).get_future()
        assert (future.then(more).wait() == 4 * (size + 1)).all()
        dist.barrier()
    assert len(threads) == 3
    if rank == 0:
        assert threading.get_ident() not in threads


@on_ranks(2)
def test_a_collective_that_a_callback_starts_raises_there(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    dist.barrier()

    def more(future: torch.futures.Future[list[torch.Tensor]]) -> object:
        with pytest.raises(MismatchError):
            dist.all_reduce(torch.ones(10 + rank), group=group, async_op=True).wait()
        return "seen"

    assert dist.all_reduce(torch.ones(4), group=group, async_op=True).get_future().then(more).wait() == "seen"
    dist.barrier()


@on_ranks(2)
def test_a_sharded_optimizer_equals_one_process(rank: int, size: int) -> None:
    for options in ({}, {"parameters_as_bucket_view": True}):
        replica = DistributedDataParallel(model())
        optimizer = ZeroRedundancyOptimizer(replica.parameters(), torch.optim.SGD, lr=0.5, momentum=0.9, **options)
        for _ in range(3):
            optimizer.zero_grad()
            step(replica, rank, size)
            optimizer.step()
        close([p.detach() for p in replica.parameters()], trained_alone(size, 3))
        optimizer.consolidate_state_dict(to=1)
        if rank == 1:
            assert [sorted(s) for s in optimizer.state_dict()["state"].values()] == [["momentum_buffer"]] * 4


@on_ranks(2)
def test_a_sharded_optimizer_steps_within_the_hook_of_ddp(rank: int, size: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook

    replica = DistributedDataParallel(model())
    optimizer = ZeroRedundancyOptimizer(
        replica.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.5, momentum=0.9
    )
    hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, replica, optimizer)
    replica.register_comm_hook(None, hook)
    warm_up = 2  # steps before the optimizer knows DDP's buckets; they change nothing
    for _ in range(warm_up + 3):
        replica.zero_grad()
        step(replica, rank, size)
    close([p.detach() for p in replica.parameters()], trained_alone(size, 3))
