"""A small model with a fixed batch, and what one process computes from all of it: the reference for every way to
spread that work over ranks."""

from __future__ import annotations

import torch
from torch import nn

ROWS = 6
"""Of the batch, for each rank."""


def model(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same weights in every process."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).to(dtype)


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(ROWS * size, 4, generator=generator, dtype=torch.float64)
    return x, torch.randn(ROWS * size, 2, generator=generator, dtype=torch.float64)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    """Those of the parameters that have one."""
    return [p.grad for p in module.parameters() if p.grad is not None]


def step(module: nn.Module, rank: int, size: int) -> list[torch.Tensor]:
    """Gradients after a rank's own rows went forward and backward."""
    x, y = batch(size)
    mine = slice(ROWS * rank, ROWS * rank + ROWS)
    nn.functional.mse_loss(module(x[mine]), y[mine]).backward()
    return gradients(module)


def expected(size: int) -> list[torch.Tensor]:
    """Gradients of one process on the whole batch."""
    alone = model()
    x, y = batch(size)
    nn.functional.mse_loss(alone(x), y).backward()
    return gradients(alone)


def trained_alone(size: int, steps: int, clip: float | None = None) -> list[torch.Tensor]:
    """Parameters of one process after SGD on the whole batch. ``clip`` bounds the norm of the gradients."""
    alone = model()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.5, momentum=0.9)
    x, y = batch(size)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(alone(x), y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(alone.parameters(), clip)
        optimizer.step()
    return [p.detach() for p in alone.parameters()]


def train(module: nn.Module, rank: int, size: int, steps: int) -> None:
    """SGD, each rank on its own rows."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        step(module, rank, size)
        optimizer.step()


def close(actual: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Equal but for the order of float64 additions."""
    torch.testing.assert_close(actual, wanted, rtol=1e-12, atol=1e-14)
