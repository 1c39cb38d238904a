"""Fully sharded training equals one process, by either of torch's implementations."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)

from tests.torch.ranks import on_ranks
from tests.torch.training import batch, close, expected, gradients, model, step, trained_alone

CLIP = 0.1
"""Less than the norm of the gradients of every step here, so that clipping acts."""


def shard(dtype: torch.dtype = torch.float64, **options: object) -> nn.Sequential:
    """The model, its first layer a group of its own."""
    sharded = model(dtype)
    fully_shard(sharded[0], **options)
    fully_shard(sharded, **options)
    return sharded


def whole(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [t.full_tensor() for t in tensors]  # type: ignore[attr-defined]


@on_ranks(2, 4)
def test_c36_gradients_of_fully_shard_equal_those_of_one_process(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/162338"""
    mesh = init_device_mesh("cpu", (size,))
    for keep in (True, False):
        sharded = shard(mesh=mesh, reshard_after_forward=not keep)
        close(whole(step(sharded, rank, size)), expected(size))


@on_ranks(2)
def test_training_with_clipped_gradients_equals_one_process(rank: int, size: int) -> None:
    sharded = shard(mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(sharded.parameters(), lr=0.5, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        step(sharded, rank, size)
        norm = nn.utils.clip_grad_norm_(sharded.parameters(), CLIP)
        assert norm.full_tensor() > CLIP
        optimizer.step()
    close(whole([p.detach() for p in sharded.parameters()]), trained_alone(size, 3, CLIP))


@on_ranks(2)
def test_accumulating_gradients_before_they_are_reduced(rank: int, size: int) -> None:
    sharded = shard(mesh=init_device_mesh("cpu", (size,)))
    sharded.set_requires_gradient_sync(False)
    step(sharded, rank, size)
    sharded.set_requires_gradient_sync(True)
    close(whole(step(sharded, rank, size)), [2 * g for g in expected(size)])


@on_ranks(2)
def test_a_divide_factor_of_ones_own_is_applied_once(rank: int, size: int) -> None:
    """It comes as PREMUL_SUM."""
    sharded = shard(mesh=init_device_mesh("cpu", (size,)))
    for group in (sharded, sharded[0]):
        group.set_gradient_divide_factor(8.0)
    close(whole(step(sharded, rank, size)), [size * g / 8 for g in expected(size)])


@on_ranks(2)
def test_parameters_in_bfloat16_with_gradients_reduced_in_float32(rank: int, size: int) -> None:
    results = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, "cpu")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        sharded = shard(torch.float32, mesh=mesh, mp_policy=policy)
        torch.manual_seed(rank)
        sharded(torch.randn(6, 4)).square().mean().backward()
        results.append(whole(gradients(sharded)))
    for ours, gloos in zip(*results, strict=True):
        assert ours.dtype == torch.float32 and ours.any() and torch.equal(ours, gloos)


@on_ranks(4)
def test_shards_in_pairs_that_are_replicas_of_each_other(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    close(whole(step(shard(mesh=mesh), rank, size)), expected(size))


@on_ranks(2)
def test_the_first_implementation_equals_one_process(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/pull/103170. In float32, the only dtype whose norm it can clip."""
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        sharded = FullyShardedDataParallel(
            model(torch.float32), device_id=torch.device("cpu"), sharding_strategy=strategy
        )
        optimizer = torch.optim.SGD(sharded.parameters(), lr=0.5, momentum=0.9)
        x, y = (t.float().chunk(size)[rank] for t in batch(size))
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.mse_loss(sharded(x), y).backward()
            assert sharded.clip_grad_norm_(CLIP) > CLIP
            optimizer.step()
        with FullyShardedDataParallel.summon_full_params(sharded):
            found = [p.detach().double() for p in sharded.parameters()]
            torch.testing.assert_close(found, trained_alone(size, 3, CLIP), rtol=1e-5, atol=1e-6)
