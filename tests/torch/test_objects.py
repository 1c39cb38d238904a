"""Object collectives: pickles of any size, in the world and in subgroups, and who gets what."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.torch.ranks import on_ranks


def thing(rank: int) -> dict[str, object]:
    """An object whose pickle has another size on every rank; rank 0's is small, rank 1's takes many records."""
    return {"rank": rank, "text": "x" * (1 + 300_000 * rank), "tensor": torch.arange(rank + 1)}


def same(found: object, rank: int) -> None:
    assert isinstance(found, dict)
    wanted = thing(rank)
    assert found["rank"] == rank and found["text"] == wanted["text"]
    assert torch.equal(found["tensor"], wanted["tensor"])


@on_ranks(3)
def test_objects_reach_everyone(rank: int, size: int) -> None:
    found: list[object] = [None] * size
    dist.all_gather_object(found, thing(rank))
    for r in range(size):
        same(found[r], r)

    box = [thing(1), "second"] if rank == 1 else [None, None]
    dist.broadcast_object_list(box, src=1)
    same(box[0], 1)
    assert box[1] == "second"

    out: list[object] = [None]
    dist.scatter_object_list(out, [thing(r) for r in range(size)] if rank == 2 else None, src=2)
    same(out[0], rank)


@on_ranks(3)
def test_c33_who_gives_a_list_to_gather_and_who_must_not(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/25463"""
    x = torch.full((2,), float(rank))
    with pytest.raises(RuntimeError, match="list of output tensors must have 3 entries, one for each rank, not 2"):
        dist.gather(x, [torch.zeros(2), torch.zeros(2)], dst=rank)
    with pytest.raises(ValueError, match="must NOT be specified on non-destination ranks"):
        dist.gather(x, [torch.zeros(2)] * size, dst=(rank + 1) % size)
    found: list[object] = [None] * size
    dist.gather_object({"rank": rank}, found if rank == 2 else None, dst=2)
    assert found == ([{"rank": r} for r in range(size)] if rank == 2 else [None] * size)
    dist.barrier()


@on_ranks(3)
def test_c33_objects_are_gathered_in_a_subgroup(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/pull/118359: ``dst`` is a rank of the world, ``group_dst`` of the group."""
    group = dist.new_group([0, 2])
    if rank == 1:
        return
    for place in ({"dst": 2}, {"group_dst": 1}):
        found = ["untouched"] * 2 if rank == 2 else None
        dist.gather_object(rank, found, group=group, **place)
        assert found == ([0, 2] if rank == 2 else None)
    with pytest.raises(ValueError):
        dist.gather_object(rank, [None, None], dst=1, group=group)
    dist.barrier(group)


@on_ranks(3)
def test_c18_ranks_of_the_world_and_ranks_of_the_group(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/74602, https://github.com/pytorch/pytorch/issues/130515"""
    group = dist.new_group([1, 2])
    if rank == 0:
        return
    out: list[object] = [None]
    dist.scatter_object_list(out, ["for 1", "for 2"] if rank == 2 else None, src=2, group=group)
    assert out == [f"for {rank}"]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=1, group=group)
    assert box == ["from 1"]
    found: list[object] = [None, None]
    dist.all_gather_object(found, rank, group=group)
    assert found == [1, 2]


@on_ranks(3)
def test_c18_gradients_of_a_broadcast_return_to_its_source(rank: int, size: int) -> None:
    """https://github.com/meta-pytorch/torchrec/pull/4601"""
    from torch.distributed.nn.functional import broadcast

    x = torch.ones(3, requires_grad=True)
    (broadcast(x, 2) * (rank + 1)).sum().backward()
    assert x.grad is not None and (x.grad == (6 if rank == 2 else 0)).all()
    alone = dist.new_group([0])
    if rank == 0:
        x = torch.ones(3, requires_grad=True)
        broadcast(x, 0, group=alone).sum().backward()
        assert x.grad is not None and (x.grad == 1).all()
