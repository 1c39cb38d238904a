"""Trains with fully_shard: every rank keeps a part of each parameter, and what it borrows or reduces is sealed.

securecoll keygen my.key
SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 examples/fsdp2.py
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from digits import accuracy, claim, load, perceptron
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

BATCH, EPOCHS, CLIP = 64, 10, 1.0


def train(model: nn.Module, images: Tensor, digits: Tensor, part: int, parts: int) -> None:
    """Adam with clipped gradients, on one of equal parts of each batch. With fully_shard, gradients come averaged."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH)[:-1]:
            mine = batch.chunk(parts)[part]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()


def main() -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    dist.init_process_group("securecoll")  # before any mesh: a mesh without a group makes one over gloo
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    images, digits, held_out, answers = load()

    model = perceptron()
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    whole = sum(p.numel() for p in model.parameters())
    here = sum(p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor))
    train(model, images, digits, rank, ranks)
    reached = accuracy(model(held_out), answers)

    alone = perceptron()
    train(alone, images, digits, 0, 1)
    pairs = zip(model.parameters(), alone.parameters(), strict=True)
    apart = max(float((p.full_tensor() - q).abs().max()) for p, q in pairs if isinstance(p, DTensor))

    fine = claim(here < whole * 0.6, f"rank 0 holds {here:,} of {whole:,} parameters")
    fine &= claim(reached > 0.95, f"accuracy on {len(held_out)} held-out images: {reached:.1%}")
    fine &= claim(apart < 1e-3, f"no parameter differs by more than {apart:.1e} from training in one process")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
