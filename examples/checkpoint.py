"""Saves a sharded model while it trains, loads it in another sharding and in one process, and goes on from it.

    securecoll keygen my.key
    SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 examples/checkpoint.py /path/on/a/disk/you/trust

What the ranks say to each other is sealed. The files are not: they hold the weights as they are, and loading them
runs what a pickle among them says. So they belong on storage that is yours, or that something else encrypts and
authenticates.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from digits import claim, load, perceptron
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, zeros

BATCH = 64


def sharded() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The model at its start, every parameter spread over all ranks, and its optimizer."""
    model = perceptron()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model, torch.optim.Adam(model.parameters(), lr=3e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, digits: Tensor, epoch: int) -> None:
    """One epoch, each rank on its part of each batch."""
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(BATCH)[:-1]:
        mine = batch.chunk(dist.get_world_size())[dist.get_rank()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
        optimizer.step()


def full(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, whole."""
    return {name: p.full_tensor().detach() for name, p in model.named_parameters() if isinstance(p, DTensor)}


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    """To the bit."""
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def main(folder: Path) -> int:
    """The program; its exit status is 0 when all that it claims is true."""
    dist.init_process_group("securecoll")
    torch.set_num_threads(1)
    images, digits, _, _ = load()
    # Saving goes on in a thread while training does: each needs a group of its own, or their calls would mix.
    saving_group = dist.new_group()

    model, optimizer = sharded()
    train(model, optimizer, images, digits, 0)
    weights, moments = get_state_dict(model, optimizer)
    saved = full(model)
    saving = dcp.async_save({"model": weights, "optimizer": moments}, checkpoint_id=folder, process_group=saving_group)
    train(model, optimizer, images, digits, 1)
    saving.result()

    again, its_optimizer = sharded()
    weights, moments = get_state_dict(again, its_optimizer)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(again, its_optimizer, model_state_dict=weights, optim_state_dict=moments)
    fine = claim(equal(full(again), saved), f"loaded from {folder}: the parameters of epoch 1, to the bit")
    train(again, its_optimizer, images, digits, 1)
    fine &= claim(equal(full(again), full(model)), "an epoch later: those of the model that never stopped")

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = {name: zeros(t.shape, device_mesh=mesh, placements=[Shard(t.dim() - 1)]) for name, t in saved.items()}
    dcp.load({"model": columns}, checkpoint_id=folder)
    fine &= claim(equal({n: t.full_tensor() for n, t in columns.items()}, saved), "split by columns: the same")
    whole = {name: torch.zeros_like(t) for name, t in saved.items()}
    dcp.load({"model": whole}, checkpoint_id=folder, no_dist=True)
    fine &= claim(equal(whole, saved), "in one process: the same")
    dist.destroy_process_group()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
