"""Splits a layer's columns and the next one's rows between ranks: activations are summed sealed, weights never move.

securecoll keygen my.key
SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 examples/tensor_parallel.py
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from digits import accuracy, claim, load, perceptron
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

BATCH, EPOCHS = 64, 10


def train(model: nn.Module, images: Tensor, digits: Tensor) -> None:
    """Adam. Every rank sees the same batches: it is the model that is split."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), digits[batch]).backward()
            optimizer.step()


def main() -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    dist.init_process_group("securecoll")
    torch.set_num_threads(1)
    images, digits, held_out, answers = load()

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = perceptron()
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    shapes = [tuple(p.to_local().shape) for p in model.parameters() if isinstance(p, DTensor) and p.dim() == 2]
    alone = perceptron()
    apart = float((model(held_out) - alone(held_out)).abs().max())
    fine = claim(apart < 1e-5, f"weights of {shapes} on each rank, and scores within {apart:.1e} of the whole model's")

    train(model, images, digits)
    reached = accuracy(model(held_out), answers)
    fine &= claim(reached > 0.95, f"accuracy on {len(held_out)} held-out images: {reached:.1%}")
    train(alone, images, digits)
    apart = float((model(held_out) - alone(held_out)).abs().max())
    fine &= claim(apart < 1e-2, f"after training, scores within {apart:.1e} of those of one process")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
