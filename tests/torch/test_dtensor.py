"""DTensor and tensor parallelism: whatever is redistributed or computed in parts equals the whole."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from tests.torch.ranks import on_ranks
from tests.torch.training import close, gradients


@on_ranks(4)
def test_c35_uneven_shards(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/115310: five rows among four ranks are 2, 2, 1 and none."""
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(10.0).view(5, 2)
    sharded = distribute_tensor(whole if rank == 0 else torch.zeros(5, 2), mesh, [Shard(0)])  # rank 0's counts
    assert len(sharded.to_local()) == [2, 2, 1, 0][rank]
    assert torch.equal(sharded.full_tensor(), whole)
    partial = DTensor.from_local(whole.clone(), mesh, [Partial()])
    rows = partial.redistribute(mesh, [Shard(0)])
    assert torch.equal(rows.to_local(), 4 * whole[2 * rank : 2 * rank + 2])
    assert torch.equal(rows.full_tensor(), 4 * whole)


@on_ranks(2, 4)
def test_every_redistribution_keeps_the_tensor(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(35.0).view(5, 7)  # divides by no size
    targets: list[Placement] = [Shard(0), Shard(1), Replicate()]
    sources = [distribute_tensor(whole, mesh, [placement]) for placement in targets]
    sources.append(DTensor.from_local(whole / size, mesh, [Partial("sum")], run_check=False))
    sources.append(DTensor.from_local(whole + rank - (size - 1) / 2, mesh, [Partial("avg")], run_check=False))
    sources.append(DTensor.from_local(whole - rank, mesh, [Partial("max")], run_check=False))
    for source, target in itertools.product(sources, targets):
        moved = source.redistribute(mesh, [target])
        assert torch.equal(moved.full_tensor(), whole), (source.placements, target)


@on_ranks(4)
def test_redistribution_on_a_mesh_of_two_dimensions(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(35.0).view(5, 7)
    pairs = list(itertools.product([Shard(0), Shard(1), Replicate()], repeat=2))
    start = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    for pair in pairs:
        assert torch.equal(start.redistribute(mesh, list(pair)).full_tensor(), whole), pair


@on_ranks(2)
def test_arithmetic_on_shards_equals_arithmetic_on_the_whole(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    a, b = torch.arange(15.0).view(5, 3), torch.arange(21.0).view(3, 7)
    for left, right in itertools.product([Shard(0), Shard(1), Replicate()], repeat=2):
        x, y = (distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in ((a, left), (b, right)))
        product = x @ y
        assert torch.equal(product.full_tensor(), a @ b), (left, right)
        assert product.sum().full_tensor() == (a @ b).sum()
        product.sum().backward()
        assert x.grad is not None and torch.equal(x.grad.full_tensor(), b.sum(1).expand(5, 3))


class Block(nn.Module):
    """As in a transformer: a norm, a layer split by columns, one split by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def block() -> Block:
    torch.manual_seed(5)
    return Block().double()


def sequence(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, 4, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)


def gathered(module: nn.Module) -> list[torch.Tensor]:
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients(module)]


@on_ranks(2, 4)
def test_a_block_split_by_columns_and_rows_equals_the_whole(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    alone, parted = block(), block()
    parallelize_module(parted, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    out, reference = parted(sequence()), alone(sequence())
    torch.testing.assert_close(out, reference, rtol=1e-12, atol=1e-14)
    out.square().sum().backward()
    reference.square().sum().backward()
    close(gathered(parted), gradients(alone))


@on_ranks(2)
def test_a_sequence_split_between_blocks_equals_the_whole(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    alone, parted = block(), block()
    plan = {
        "norm": SequenceParallel(),
        "up": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(parted, mesh, plan)
    parallelize_module(parted.up, mesh, ColwiseParallel())
    mine = sequence().chunk(size, 1)[rank]
    reference = alone(sequence())
    out = parted(mine)
    torch.testing.assert_close(out, reference.chunk(size, 1)[rank], rtol=1e-12, atol=1e-14)
    out.square().sum().backward()
    reference.square().sum().backward()
    close(gathered(parted)[2:], gradients(alone)[2:])


@on_ranks(2)
def test_a_loss_over_split_classes_equals_the_whole(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    x, targets = sequence().flatten(0, 1), torch.arange(8) % 10
    torch.manual_seed(5)
    alone = nn.Linear(8, 10).double()
    torch.manual_seed(5)
    parted = nn.Linear(8, 10).double()
    parallelize_module(parted, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    with loss_parallel():
        loss = nn.functional.cross_entropy(parted(x), targets)
        loss.backward()
    reference = nn.functional.cross_entropy(alone(x), targets)
    reference.backward()
    torch.testing.assert_close(loss.full_tensor(), reference, rtol=1e-12, atol=1e-14)
    close(gathered(parted), gradients(alone))


@on_ranks(4)
def test_a_block_split_in_two_and_its_parts_sharded_over_two(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    alone, parted = block(), block()
    parallelize_module(parted, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(parted, mesh=mesh["data"])
    x = sequence(4)
    parted(x.chunk(2)[mesh.get_local_rank("data")]).square().mean().backward()
    alone(x).square().mean().backward()
    close(gathered(parted), gradients(alone))
    assert dist.get_backend(mesh.get_group("data")) == dist.get_backend(mesh.get_group("tensor")) == "securecoll"
