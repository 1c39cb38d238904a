"""DistributedDataParallel over the backend equals one process on the concatenated batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securecoll.errors import SecureCollError
from tests.torch.ranks import on_ranks


def model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(6 * size, 4, generator=generator, dtype=torch.float64)
    return x, torch.randn(6 * size, 2, generator=generator, dtype=torch.float64)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def expected(size: int) -> list[torch.Tensor]:
    alone = model()
    x, y = batch(size)
    nn.functional.mse_loss(alone(x), y).backward()
    return gradients(alone)


def step(module: nn.Module, rank: int, size: int) -> list[torch.Tensor]:
    x, y = batch(size)
    part = slice(6 * rank, 6 * rank + 6)
    nn.functional.mse_loss(module(x[part]), y[part]).backward()
    return gradients(module)


@on_ranks(2, 4)
def test_gradients_equal_those_of_one_process(rank: int, size: int) -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
        {"bucket_cap_mb": 0.00001},  # a bucket for each parameter
    ]
    for variant in variants:
        replica = DistributedDataParallel(model(), **variant)
        for _ in range(2):
            replica.zero_grad()
            found = step(replica, rank, size)
            torch.testing.assert_close(found, expected(size), rtol=1e-12, atol=1e-14)


@on_ranks(2)
def test_replicas_start_from_rank_zero(rank: int, size: int) -> None:
    torch.manual_seed(rank)
    replica = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    torch.manual_seed(0)
    first = nn.Linear(4, 3)
    assert torch.equal(replica.module[0].weight, first.weight)


@on_ranks(2)
def test_a_communication_hook_gets_reduced_values(rank: int, size: int) -> None:
    def average(state, bucket):  # torch compares annotations, if there are any, as objects
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0].div_(size))

    replica = DistributedDataParallel(model())
    replica.register_comm_hook(None, average)
    torch.testing.assert_close(step(replica, rank, size), expected(size), rtol=1e-12, atol=1e-14)


@on_ranks(2)
def test_bfloat16_parameters(rank: int, size: int) -> None:
    replica = DistributedDataParallel(model(torch.bfloat16))
    x, y = batch(size)
    part = slice(6 * rank, 6 * rank + 6)
    nn.functional.mse_loss(replica(x[part].bfloat16()), y[part].bfloat16()).backward()
    for grad in gradients(replica):
        copies = [torch.zeros_like(grad) for _ in range(size)]
        dist.all_gather(copies, grad)
        assert torch.equal(copies[0], copies[1]) and grad.isfinite().all()


@on_ranks(2)
def test_uneven_inputs_under_join(rank: int, size: int) -> None:
    replica = DistributedDataParallel(model())
    seen = 0
    with replica.join():
        for _ in range(5 if rank == 0 else 3):
            step(replica, rank, size)
            seen += 1
    assert seen == (5 if rank == 0 else 3)


@on_ranks(2)
def test_a_failure_in_backward_keeps_its_class(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    replica = DistributedDataParallel(model(), process_group=group)
    step(replica, rank, size)
    dist.barrier()
    group.abort()
    with pytest.raises(SecureCollError):
        step(replica, rank, size)
    dist.barrier()


@on_ranks(2)
def test_fully_sharded_training_equals_one_process(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size,))
    sharded = model()
    fully_shard(sharded[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    found = [grad.full_tensor() for grad in step(sharded, rank, size)]  # type: ignore[attr-defined]
    torch.testing.assert_close(found, expected(size), rtol=1e-12, atol=1e-14)
