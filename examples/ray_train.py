"""Trains with DistributedDataParallel under Ray Train, with every byte between the workers sealed.

    pip install 'ray[train]' tensorboardX
    securecoll keygen my.key
    SECURECOLL_KEY_FILE=$PWD/my.key python examples/ray_train.py

Ray starts the workers and carries code and results, over connections of its own that securecoll knows nothing of: keep
them in a private network, or turn on Ray's TLS. Of the key it carries the path, so that every host needs the file.
"""

from __future__ import annotations

import os

import ray
import torch
import torch.distributed as dist
from digits import accuracy, load, perceptron
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH, EPOCHS, WORKERS = 32, 10, 2


def train() -> None:
    """One worker's part. Ray has made the process group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    images, digits, held_out, answers = load()
    model = DistributedDataParallel(perceptron())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH * ranks)[:-1]:
            mine = batch.chunk(ranks)[rank]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[mine]), digits[mine]).backward()
            optimizer.step()
    reached = accuracy(model(held_out), answers)
    if dist.get_backend() != "securecoll" or reached < 0.95:
        raise RuntimeError(f"accuracy {reached:.1%} over {dist.get_backend()}")


def main() -> None:
    """The program. Raises what a worker raised."""
    key = {"SECURECOLL_KEY_FILE": os.environ["SECURECOLL_KEY_FILE"]}
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": key})
    TorchTrainer(
        train,
        torch_config=TorchConfig(backend="securecoll"),
        scaling_config=ScalingConfig(num_workers=WORKERS),
    ).fit()
    print(f"✓ {WORKERS} workers trained over securecoll to an accuracy above 95% on held-out images")


if __name__ == "__main__":
    main()
