"""Loses a rank in the middle of training, is restarted by torchrun, and goes on from its last checkpoint.

    securecoll keygen my.key
    SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 --max-restarts 1 examples/elastic.py checkpoint.pt

Each attempt joins anew, with fresh keys: nothing that an earlier one left in the store or in shared memory is of use
in a later one. In the end the loss is that of a single process that was never interrupted.
"""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from digits import accuracy, claim, load, perceptron
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

BATCH, EPOCHS = 32, 12
LOST_IN = 5
"""The epoch in which rank 1 is killed, in the first attempt."""


def batches(epoch: int, images: int, size: int) -> tuple[Tensor, ...]:
    """Numbers of the images of each batch of an epoch, the same in every process."""
    order = torch.randperm(images, generator=torch.Generator().manual_seed(epoch))
    return order.split(size)[:-1]


def uninterrupted(images: Tensor, digits: Tensor, size: int) -> float:
    """The loss after the same training by one process alone."""
    model = perceptron()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        for batch in batches(epoch, len(images), size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), digits[batch]).backward()
            optimizer.step()
    return loss(model, images, digits)


def loss(model: nn.Module, images: Tensor, digits: Tensor) -> float:
    """Over all images."""
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), digits))


def main(path: Path) -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("securecoll")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    images, digits, held_out, answers = load()
    model = DistributedDataParallel(perceptron())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    first = 0
    if attempt > 0:
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1

    for epoch in range(first, EPOCHS):
        for i, batch in enumerate(batches(epoch, len(images), BATCH * ranks)):
            if (attempt, rank, epoch, i) == (0, 1, LOST_IN, 7):
                os.kill(os.getpid(), signal.SIGKILL)
            mine = batch.chunk(ranks)[rank]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
            optimizer.step()
        if rank == 0:
            state = {"epoch": epoch, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        dist.barrier()  # the file is there before anyone goes on

    fine = claim((attempt, first) == (1, LOST_IN), f"attempt {attempt} went on with epoch {first}")
    ended, expected = loss(model.module, images, digits), uninterrupted(images, digits, BATCH * ranks)
    same = math.isclose(ended, expected, rel_tol=1e-3)
    fine &= claim(same, f"loss {ended:.5f}; of one process that was never interrupted {expected:.5f}")
    reached = accuracy(model(held_out), answers)
    fine &= claim(reached > 0.95, f"accuracy on {len(held_out)} held-out images: {reached:.1%}")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
