"""Distributed checkpoints: saved by some ranks, loaded by others, sharded in another way."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, zeros

from tests.torch.ranks import on_ranks
from tests.torch.training import close, model, step


def shared_folder() -> Path:
    """A new folder that all ranks know."""
    beside = Path(os.environ["SECURECOLL_KEY_FILE"]).parent
    box = [tempfile.mkdtemp(prefix="checkpoint-", dir=beside) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    assert box[0] is not None
    return Path(box[0])


def sharded(size: int) -> nn.Sequential:
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (size,)))
    return net


def whole(module: nn.Module) -> list[torch.Tensor]:
    return [p.full_tensor().detach() for p in module.parameters()]  # type: ignore[attr-defined]


@on_ranks(2)
def test_training_goes_on_from_a_checkpoint(rank: int, size: int) -> None:
    def trained(steps: int, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            step(module, rank, size)
            optimizer.step()

    folder = shared_folder()
    net = sharded(size)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    trained(2, net, optimizer)
    weights, moments = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    trained(3, net, optimizer)

    again = sharded(size)
    with torch.no_grad():
        for p in again.parameters():
            p.zero_()
    resumed = torch.optim.Adam(again.parameters(), lr=0.1)
    weights, moments = get_state_dict(again, resumed)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(again, resumed, model_state_dict=weights, optim_state_dict=moments)
    trained(3, again, resumed)
    close(whole(again), whole(net))


@on_ranks(2, 4)
def test_a_checkpoint_is_loaded_in_another_sharding(rank: int, size: int) -> None:
    folder = shared_folder()
    mesh = init_device_mesh("cpu", (size,))
    tensor = torch.arange(35.0).view(5, 7)
    dcp.save({"x": distribute_tensor(tensor, mesh, [Shard(0)]), "step": 7}, checkpoint_id=folder)
    for placement in (Shard(1), Replicate()):
        state = {"x": zeros(5, 7, device_mesh=mesh, placements=[placement]), "step": 0}
        dcp.load(state, checkpoint_id=folder)
        assert isinstance(state["x"], DTensor) and torch.equal(state["x"].full_tensor(), tensor)
        assert state["step"] == 7
    if rank == 0:
        alone = {"x": torch.zeros(5, 7)}
        dcp.load(alone, checkpoint_id=folder, no_dist=True)
        assert torch.equal(alone["x"], tensor)
    dist.barrier()


@on_ranks(4)
def test_checkpoints_of_the_first_fully_sharded_implementation(rank: int, size: int) -> None:
    """With a mesh its state is DTensors. (Of a ShardedTensor, torch wants a GPU where a rank has no part.)"""
    folder = shared_folder()

    def wrapped() -> tuple[FullyShardedDataParallel, torch.optim.Optimizer]:
        mesh = init_device_mesh("cpu", (size,))
        net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), device_mesh=mesh)
        return net, torch.optim.Adam(net.parameters(), lr=0.1)

    net, optimizer = wrapped()
    step(net, rank, size)
    optimizer.step()
    weights, moments = get_state_dict(net, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    again, other = wrapped()
    weights, moments = get_state_dict(again, other)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    set_state_dict(again, other, model_state_dict=weights, optim_state_dict=moments)
    with (
        FullyShardedDataParallel.summon_full_params(net),
        FullyShardedDataParallel.summon_full_params(again),
    ):
        close([p.detach() for p in again.parameters()], [p.detach() for p in net.parameters()])


@on_ranks(2)
def test_saving_while_training_goes_on(rank: int, size: int) -> None:
    """The saving thread's collectives need a group of their own, or they would come between those of training."""
    folder = shared_folder()
    net = sharded(size)
    before = whole(net)
    state = {"model": get_model_state_dict(net)}
    saving = dcp.async_save(state, checkpoint_id=folder, process_group=dist.new_group())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(5):
        step(net, rank, size)
        optimizer.step()
    saving.result()
    loaded = {"model": get_model_state_dict(sharded(size))}
    dcp.load(loaded, checkpoint_id=folder)
    close([t.full_tensor() for t in loaded["model"].values()], before)


@on_ranks(2)
def test_whole_states_are_gathered_on_rank_zero_and_spread_from_it(rank: int, size: int) -> None:
    net = sharded(size)
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(net, options=options)
    assert [tuple(t.shape) for t in state.values()] == ([(3, 4), (3,), (2, 3), (2,)] if rank == 0 else [])

    other = sharded(size)
    with torch.no_grad():
        for p in other.parameters():
            p.zero_()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, state, options=options)
    close(whole(other), [p.detach() for p in model().parameters()])
