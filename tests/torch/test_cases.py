"""What users of other backends reported as wrong, each with its report, where no other test covers it.

The numbers name the cases; the same ones stand in the names of tests in other files.
"""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from securecoll.shape import Shape
from tests.groups import SMALL
from tests.torch.ranks import on_ranks


@on_ranks(2)
def test_c26_coalesced_calls_equal_the_same_calls_one_by_one(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/104168"""

    def tensors() -> list[torch.Tensor]:
        return [torch.arange(float(n)) * (rank + 1) for n in (1, 7, 30_000)]

    coalesced, single = tensors(), tensors()
    for call in (lambda t: dist.reduce(t, 1), dist.all_reduce):
        with dist._coalescing_manager():
            for t in coalesced:
                call(t)
        for t in single:
            call(t)
        for a, b in zip(coalesced, single, strict=True):
            assert torch.equal(a, b)


def rotate_through_a_small_ring(rank: int, size: int, rounds: int) -> None:
    """Every value says which round, rank and place it comes from. Ranks dawdle, so that some overtake others."""
    seed = 20281
    sizes, naps = random.Random(seed), random.Random(seed + 1 + rank)
    with mock.patch.object(Shape, "of", return_value=SMALL):
        group = dist.new_group(list(range(size)))
    ring = SMALL.slot_bytes * SMALL.depth

    def content(step: int, source: int, target: int, count: int) -> torch.Tensor:
        return (torch.arange(count) + 7 * source + 31 * target + 101 * step).to(torch.uint8)

    for step in range(rounds):
        count = sizes.choice([1, sizes.randrange(1, SMALL.slot_bytes), sizes.randrange(1, 3 * ring)])
        time.sleep(naps.random() * 0.003)
        kind = step % 3
        where = f"seed {seed}, rank {rank}, round {step}, {count} bytes"
        if kind == 0:
            out = torch.zeros(size * count, dtype=torch.uint8)
            send = torch.cat([content(step, rank, target, count) for target in range(size)])
            dist.all_to_all_single(out, send, group=group)
            assert torch.equal(out, torch.cat([content(step, r, rank, count) for r in range(size)])), where
        elif kind == 1:
            outs = [torch.zeros(count, dtype=torch.uint8) for _ in range(size)]
            dist.all_gather(outs, content(step, rank, 0, count), group=group)
            for r in range(size):
                assert torch.equal(outs[r], content(step, r, 0, count)), where
        else:
            root = step % size
            x = content(step, rank, 0, count)
            dist.broadcast(x, root, group=group)
            assert torch.equal(x, content(step, root, 0, count)), where
    dist.destroy_process_group(group)


@on_ranks(4)
def test_c28_fast_ranks_never_overwrite_what_slow_ranks_still_read(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/137171"""
    rotate_through_a_small_ring(rank, size, 150)


@pytest.mark.slow
@on_ranks(4)
def test_c28_fast_ranks_never_overwrite_in_many_rounds(rank: int, size: int) -> None:
    """The same for longer."""
    rotate_through_a_small_ring(rank, size, 1000)


def everything_alone(group: dist.ProcessGroup, me: int) -> None:
    """Every collective of a group with one member gives back what went in."""
    x = torch.arange(4.0)
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        dist.all_reduce(x, op, group=group)
        dist.reduce(x, me, op, group=group)
    dist.all_reduce_coalesced([x, x.clone()], group=group)
    dist.broadcast(x, me, group=group)
    outs = [torch.zeros(4) for _ in range(8)]
    dist.all_gather([outs[0]], x, group=group)
    dist.all_gather_into_tensor(outs[1], x, group=group)
    dist.reduce_scatter(outs[2], [x], group=group)
    dist.reduce_scatter_tensor(outs[3], x, group=group)
    dist.gather(x, [outs[4]], dst=me, group=group)
    dist.scatter(outs[5], [x], src=me, group=group)
    dist.all_to_all_single(outs[6], x, [4], [4], group=group)
    dist.all_to_all([outs[7]], [x], group=group)
    with dist._coalescing_manager(group):
        dist.all_gather_into_tensor(outs[1], x, group=group)
    with dist._coalescing_manager(group):
        dist.reduce_scatter_tensor(outs[3], x, group=group)
    for out in [x, *outs]:
        assert torch.equal(out, torch.arange(4.0))
    found: list[object] = [None]
    dist.all_gather_object(found, "mine", group=group)
    assert found == ["mine"]
    dist.barrier(group)


@on_ranks(1, 2)
def test_c31_groups_of_one(rank: int, size: int) -> None:
    """https://github.com/pytorch/gloo/issues/154"""
    groups = [dist.new_group([r]) for r in range(size)]
    everything_alone(groups[rank], rank)
    if size == 1:
        assert dist.group.WORLD is not None
        everything_alone(dist.group.WORLD, 0)


@on_ranks(2)
def test_c34_every_spelling_of_the_backend(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/92344: without a GPU, and without looking for one."""
    folder = Path(os.environ["SECURECOLL_KEY_FILE"]).parent
    dist.destroy_process_group()
    for i, spelling in enumerate(("cpu:securecoll", "cpu:securecoll,cuda:securecoll", "securecoll")):
        store = dist.FileStore(str(folder / f"c34-{i}"), size)  # gloo cannot meet twice in one
        dist.init_process_group(spelling, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        if spelling == "securecoll":
            assert dist.get_backend() == "securecoll"
        world = dist.group.WORLD
        assert world is not None and world._get_backend(torch.device("cpu")).name() == "securecoll"
        dist.barrier()
        found: list[object] = [None] * size
        dist.all_gather_object(found, rank)
        assert found == list(range(size))
        with pytest.raises(ValueError, match="only implemented for GLOO"):
            dist.monitored_barrier()
        mesh = DeviceMesh("cpu", range(size))
        x = torch.ones(3)
        dist.all_reduce(x, group=mesh.get_group())
        dist.all_reduce(x, group=dist.new_group(backend="gloo"))
        assert (x == size * size).all()
        assert not torch.cuda.is_initialized()
        if spelling != "securecoll":
            dist.destroy_process_group()
