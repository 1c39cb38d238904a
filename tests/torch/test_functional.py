"""Functional collectives: values, gradients, and within a graph that torch compiles whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import Tensor

from securecoll.errors import ConfigError
from tests.torch.ranks import on_ranks

F64 = torch.float64


def part(rank: int, rows: int = 4) -> Tensor:
    """What a rank sends: values that differ by rank and place."""
    return torch.arange(3.0 * rows, dtype=F64).view(rows, 3) + 100 * rank


def parts(size: int, rows: int = 4) -> list[Tensor]:
    return [part(r, rows) for r in range(size)]


@on_ranks(2, 4)
def test_every_functional_collective(rank: int, size: int) -> None:
    world = dist.group.WORLD
    mine, all_of_them = part(rank), parts(size)
    total = sum(all_of_them, torch.zeros(4, 3, dtype=F64))
    rows = 4 // size
    own = slice(rows * rank, rows * rank + rows)
    largest = torch.stack(all_of_them).amax(0)
    permuted = [(r + 1) % size for r in range(size)]
    cases: dict[str, tuple[Tensor, Tensor]] = {
        "sum": (functional.all_reduce(mine, "sum", world), total),
        "avg": (functional.all_reduce(mine, "avg", world), total / size),
        "max": (functional.all_reduce(mine, "max", world), largest),
        "broadcast": (functional.broadcast(mine, size - 1, world), all_of_them[-1]),
        "gather": (functional.all_gather_tensor(mine, 0, world), torch.cat(all_of_them)),
        "gather columns": (functional.all_gather_tensor(mine, 1, world), torch.cat(all_of_them, 1)),
        "scatter": (functional.reduce_scatter_tensor(mine, "sum", 0, world), total[own]),
        "scatter columns": (
            functional.reduce_scatter_tensor(mine.t(), "avg", 1, world),
            (total[own] / size).t(),
        ),
        "exchange": (
            functional.all_to_all_single(mine, None, None, world),
            torch.cat([p[own] for p in all_of_them]),
        ),
        # one row: torch takes the number of elements for the number of rows
        "permute": (functional.permute_tensor(mine[0], permuted, world), all_of_them[(rank - 1) % size][0]),
    }
    for name, (found, wanted) in cases.items():
        assert torch.equal(functional.wait_tensor(found), wanted), name

    pair = [mine, mine[:, :1].contiguous()]
    totals = functional.all_reduce_coalesced(pair, "sum", world)
    gathered = functional.all_gather_into_tensor_coalesced(pair, world)
    scattered = functional.reduce_scatter_tensor_coalesced(pair, "sum", [0, 0], world)
    for i, columns in enumerate((slice(None), slice(1))):
        assert torch.equal(totals[i], total[:, columns])
        assert torch.equal(gathered[i], torch.cat([p[:, columns] for p in all_of_them]))
        assert torch.equal(scattered[i], total[own, columns])


@on_ranks(2)
def test_gradients_of_functional_collectives(rank: int, size: int) -> None:
    world = dist.group.WORLD
    weight = torch.arange(24.0, dtype=F64).view(8, 3) + rank

    x = part(rank).requires_grad_()
    (functional.all_gather_tensor_autograd(x, 0, world) * weight).sum().backward()
    both = sum((torch.arange(24.0, dtype=F64).view(8, 3) + r for r in range(size)), torch.zeros(8, 3, dtype=F64))
    assert x.grad is not None and torch.equal(x.grad, both[4 * rank : 4 * rank + 4])

    x = part(rank).requires_grad_()
    (functional.reduce_scatter_tensor_autograd(x, "sum", 0, world) * weight[:2]).sum().backward()
    slices = [torch.arange(6.0, dtype=F64).view(2, 3) + r for r in range(size)]
    assert x.grad is not None and torch.equal(x.grad, torch.cat(slices))

    x = part(rank).requires_grad_()
    (functional.all_to_all_single_autograd(x, [2, 2], [2, 2], world) * weight[:4]).sum().backward()
    halves = [(torch.arange(12.0, dtype=F64).view(4, 3) + r)[2 * rank : 2 * rank + 2] for r in range(size)]
    assert x.grad is not None and torch.equal(x.grad, torch.cat(halves))


@on_ranks(2)
def test_gradients_of_differentiable_collectives(rank: int, size: int) -> None:
    """Each moves gradients the other way: the derivative of the sum over ranks of rank times the result."""
    factor = rank + 1.0
    factors = sum(r + 1.0 for r in range(size))

    def gradient(call: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> Tensor:
        x = part(rank).requires_grad_()
        out = call(x)
        total = sum(t.sum() for t in out) if isinstance(out, tuple) else out.sum()
        (factor * total).backward()
        assert x.grad is not None
        return x.grad

    ones = torch.ones(4, 3, dtype=F64)
    empty = [torch.empty(4, 3, dtype=F64) for _ in range(size)]
    assert torch.equal(gradient(differentiable.all_reduce), factors * ones)
    assert torch.equal(gradient(lambda x: differentiable.broadcast(x, 1)), factors * ones * (rank == 1))
    assert torch.equal(gradient(lambda x: differentiable.reduce(x, 1)), 2 * ones)
    assert torch.equal(gradient(lambda x: tuple(differentiable.gather(x, 1))), 2 * ones)
    assert torch.equal(gradient(lambda x: differentiable.scatter([x, x.clone()], 0)), factors * ones * (rank == 0))
    assert torch.equal(gradient(lambda x: tuple(differentiable.all_gather(x))), factors * ones)
    assert torch.equal(gradient(lambda x: differentiable.reduce_scatter(empty[0], [x, x.clone()])), factors * ones)
    assert torch.equal(gradient(lambda x: tuple(differentiable.all_to_all(empty, [x, x.clone()]))), factors * ones)
    assert torch.equal(
        gradient(lambda x: differentiable.all_to_all_single(torch.empty(4, 3, dtype=F64), x)),
        torch.cat([r * torch.ones(2, 3, dtype=F64) for r in (1, 2)]),
    )


def compiled(body: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compiled whole, or not at all. Graphs are captured and differentiated as for any backend, but run by torch."""
    return torch.compile(body, backend="aot_eager", fullgraph=True)  # type: ignore[no-any-return]


@on_ranks(2)
def test_a_compiled_training_step_equals_the_eager_one(rank: int, size: int) -> None:
    torch.manual_seed(1)
    weight = torch.randn(3, 2, dtype=F64)

    def step(x: Tensor, w: Tensor) -> Tensor:
        hidden = functional.all_gather_tensor_autograd(torch.tanh(x @ w), 0, dist.group.WORLD)
        loss = functional.all_reduce(hidden.square().sum(), "sum", dist.group.WORLD)
        return loss / size

    results = []
    for run in (step, compiled(step)):
        w = weight.clone().requires_grad_()
        loss = run(part(rank) / 100, w)
        loss.backward()
        results.append((loss.detach(), w.grad))
    for eager, graph in zip(*results, strict=True):
        assert eager is not None and graph is not None
        torch.testing.assert_close(graph, eager, rtol=1e-12, atol=1e-14)


@on_ranks(2)
def test_in_place_collectives_are_compiled_as_functional_ones(rank: int, size: int) -> None:
    def step(x: Tensor) -> Tensor:
        y = x + 1
        dist.all_reduce(y)
        out = y.new_empty(y.shape[0] // 2, y.shape[1])
        dist.reduce_scatter_tensor(out, y)
        return out * 2

    total = sum(parts(size), torch.zeros(4, 3, dtype=F64)) + size
    wanted = 2 * size * total[2 * rank : 2 * rank + 2]
    assert torch.equal(compiled(step)(part(rank)), wanted)


@on_ranks(2)
def test_c25_stacked_outputs_of_all_gather_eager_and_compiled(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/pull/178844"""
    x = torch.arange(3.0) + 10 * rank

    def flat(x: Tensor) -> Tensor:
        out = x.new_zeros(6)
        dist.all_gather_into_tensor(out, x)
        return out

    def stacked(x: Tensor) -> Tensor:
        out = x.new_zeros(2, 3)
        dist.all_gather_into_tensor(out, x)
        return out

    wanted = torch.tensor([[0.0, 1, 2], [10, 11, 12]])
    for run in (flat, compiled(flat), stacked):
        assert torch.equal(run(x).view(2, 3), wanted), run
    try:
        found = compiled(stacked)(x)
    except torch._dynamo.exc.TorchRuntimeError:
        pass  # torch 2.13 cannot trace it, over any backend
    else:
        assert torch.equal(found, wanted)
    with pytest.raises(ConfigError, match="7 elements, where 6 are expected"):
        dist.all_gather_into_tensor(torch.zeros(7), x)
