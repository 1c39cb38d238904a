"""Loses a rank in the middle of training, is restarted by torchrun, and goes on from its last checkpoint.

    securecoll keygen my.key
    SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 --max-restarts 1 examples/elastic.py checkpoint.pt

Each attempt joins anew, with fresh keys: nothing that an earlier one left in the store or in shared memory is of use
in a later one.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from digits import accuracy, claim, load, perceptron
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, EPOCHS = 32, 12
LOST_IN = 5
"""The epoch in which rank 1 is killed, in the first attempt."""


class Training:
    """A model and its optimizer, the same on every rank."""

    def __init__(self) -> None:
        self.model = DistributedDataParallel(perceptron())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)

    def load(self, path: Path) -> int:
        """Takes over a checkpoint, and returns the first epoch that it has not seen."""
        state = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"]) + 1

    def save(self, path: Path, epoch: int) -> None:
        """All of a checkpoint is in its place, or nothing."""
        state = {"epoch": epoch, "model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def run(self, epoch: int, images: torch.Tensor, digits: torch.Tensor, lost_at: int = -1) -> float:
        """One epoch; this rank is killed in batch ``lost_at``. The loss of the last batch, over all ranks."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        loss = torch.zeros(())
        for i, batch in enumerate(order.split(BATCH * ranks)[:-1]):
            if i == lost_at:
                os.kill(os.getpid(), signal.SIGKILL)
            mine = batch.chunk(ranks)[rank]
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images[mine]), digits[mine])
            loss.backward()
            self.optimizer.step()
        loss = loss.detach()
        dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss.item()


def main(path: Path) -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    dist.init_process_group("securecoll")
    torch.set_num_threads(1)
    images, digits, held_out, answers = load()
    training = Training()
    # One rank looks: TORCHELASTIC_RESTART_COUNT may differ from host to host.
    resumes = torch.tensor(path.exists())
    dist.broadcast(resumes, 0)
    first = training.load(path) if resumes else 0
    loses = first == 0 and dist.get_rank() == 1

    loss = 0.0
    for epoch in range(first, EPOCHS):
        loss = training.run(epoch, images, digits, lost_at=7 if loses and epoch == LOST_IN else -1)
        if dist.get_rank() == 0:
            training.save(path, epoch)
        dist.barrier()  # the file is there before anyone goes on
    fine = claim(first == LOST_IN, f"after a loss in epoch {LOST_IN} it went on with epoch {first}")
    reached = accuracy(training.model(held_out), answers)
    fine &= claim(reached > 0.95, f"accuracy on {len(held_out)} held-out images: {reached:.1%}")

    undisturbed = Training()
    expected = [undisturbed.run(epoch, images, digits) for epoch in range(EPOCHS)][-1]
    fine &= claim(loss == expected, f"loss {loss:.9f}; of a training that nothing disturbs {expected:.9f}")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
