"""DistributedDataParallel over the backend equals one process on the concatenated batch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from securecoll.errors import ConfigError, SecureCollError
from tests.torch.ranks import on_ranks
from tests.torch.training import batch, close, expected, gradients, model, step


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
            close(step(replica, rank, size), expected(size))


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
    close(step(replica, rank, size), expected(size))


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
def test_c36_a_branch_that_one_rank_does_not_use(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/38174"""

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.branch = model(), nn.Linear(4, 2, dtype=torch.float64)

        def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
            return self.trunk(x) + self.branch(x) if both else self.trunk(x)

    torch.manual_seed(7)
    alone = Branches()
    replica = DistributedDataParallel(copy.deepcopy(alone), find_unused_parameters=True)
    x, _ = batch(size)
    rows = x.chunk(size)
    replica(rows[rank], rank == 0).sum().backward()
    (sum(alone(rows[r], r == 0).sum() for r in range(size)) / size).backward()  # type: ignore[union-attr]
    close(gradients(replica), gradients(alone))


@on_ranks(2)
def test_c36_join_with_five_and_three_batches(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/38174: a rank that ran out of data answers for zero gradients."""
    counts = [5, 3]
    replica = DistributedDataParallel(model())
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.5)
    with replica.join():
        for _ in range(counts[rank]):
            optimizer.zero_grad()
            step(replica, rank, size)
            optimizer.step()

    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    x, y = (t.chunk(size) for t in batch(size))
    for i in range(max(counts)):
        optimizer.zero_grad()
        for r in range(size):
            if i < counts[r]:
                (nn.functional.mse_loss(alone(x[r]), y[r]) / size).backward()
        optimizer.step()
    close([p.detach() for p in replica.parameters()], [p.detach() for p in alone.parameters()])


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


@on_ranks(2, 3)
def test_sums_of_sparse_tensors(rank: int, size: int) -> None:
    def of(r: int) -> torch.Tensor:
        rows = torch.tensor([[0, r, 2 + r, r]])  # one in common, and one of each rank's own twice
        return torch.sparse_coo_tensor(rows, torch.arange(8.0).view(4, 2) + r, (10, 2))

    expected = sum(of(r).to_dense() for r in range(size))
    x = of(rank)
    dist.all_reduce(x)
    assert x.is_sparse and x.is_coalesced()
    assert torch.equal(x.to_dense(), expected)
    y = of(rank)
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    assert torch.equal(work.get_future().wait()[0].to_dense(), expected)
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2), (10, 2))
    z = of(0) if rank == 0 else empty
    dist.all_reduce(z)
    assert torch.equal(z.to_dense(), of(0).to_dense())


@on_ranks(2)
def test_sparse_tensors_that_differ_are_refused_by_all_and_the_group_goes_on(rank: int, size: int) -> None:
    x = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (5 + rank,))
    with pytest.raises(ConfigError, match=f"rank {rank}: all_reduce: rank {1 - rank} has a sparse tensor of another"):
        dist.all_reduce(x)
    with pytest.raises(ConfigError, match="summed only"):
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.barrier()


@on_ranks(2)
def test_an_embedding_with_sparse_gradients_trains_as_in_one_process(rank: int, size: int) -> None:
    def train(model: torch.nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for rows in batches:
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
        return next(iter(model.parameters())).detach()

    torch.manual_seed(3)
    start = torch.nn.Embedding(20, 4, sparse=True, dtype=torch.float64)
    batches = [torch.randint(0, 20, (6,)) for _ in range(4)]
    alone = train(copy.deepcopy(start), batches)
    model = DistributedDataParallel(copy.deepcopy(start))
    together = train(model, [rows.chunk(size)[rank] for rows in batches])
    torch.testing.assert_close(together, alone)
