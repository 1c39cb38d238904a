"""One rank of one contender of ddp_overhead.py, which starts it and tells it over a socket what to train.

Training is as in any script: DistributedDataParallel with its default settings but for the size of buckets, and plain
SGD. Nothing depends on the backend but its name. One model is set up at a time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from harness.control import Channel, Message
from torch import nn
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

from ddp_overhead.models import Batch, loss, workloads

BATCHES = 4
"""Different batches that iterations take in turn."""
WARM_UP = 3
"""Iterations before any is timed: DDP arranges its buckets anew after the first."""


class Clock:
    """When each part of an iteration ended: by the host's clock or, on a GPU, by events of its stream."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """Now, or as soon as the GPU has come this far."""
        if self._cuda:
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[-1].record()
        else:
            self._times.append(time.perf_counter())

    def spans(self) -> list[float]:
        """Seconds between each mark and the next."""
        if self._cuda:
            torch.cuda.synchronize()
            return [earlier.elapsed_time(later) / 1000 for earlier, later in pairwise(self._events)]
        return [later - earlier for earlier, later in pairwise(self._times)]


class Training:
    """A model under training on this rank's batches."""

    def __init__(self, name: str, bucket_mb: int, quick: bool, device: torch.device) -> None:
        workload = workloads(quick)[name]
        torch.manual_seed(0)
        self._device = device
        self._model = DistributedDataParallel(workload.model().to(device), bucket_cap_mb=bucket_mb)
        # Steps of size 0 take as long as others, and replicas stay alike through iterations that do not communicate.
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.0)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self._batches: list[Batch] = []
        for _ in range(BATCHES):
            inputs, targets = workload.batch(generator)
            self._batches.append((inputs.to(device), targets.to(device)))
        self._done = 0

    def parameters(self) -> list[nn.Parameter]:
        """Those that have gradients."""
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def gradients(self) -> Message:
        """Averaged over the ranks for the first batch: a digest, which must be the same on all ranks, and the norm,
        which other contenders must come close to."""
        inputs, targets = self._batches[0]
        loss(self._model(inputs), targets).backward()
        whole = torch.cat([parameter.grad.flatten().cpu() for parameter in self.parameters()])
        self._optimizer.zero_grad()
        return {"digest": hashlib.sha256(whole.numpy().tobytes()).hexdigest(), "norm": whole.double().norm().item()}

    def iterate(self, count: int, together: bool) -> Message:
        """Seconds of forward, backward and update, of each of ``count`` iterations, and CPU seconds of one;
        ``together``: with the other ranks, else the same without communication."""
        dist.barrier()
        clock = Clock(self._device)
        begun = time.process_time()
        with nullcontext() if together else self._model.no_sync():
            for _ in range(count):
                self._iteration(clock)
        spans = clock.spans()
        cpu = (time.process_time() - begun) / count
        # Four marks an iteration; what lies between the last and the next first is the loop.
        return {"spans": [spans[at : at + 3] for at in range(0, len(spans), 4)], "cpu": cpu}

    def _iteration(self, clock: Clock) -> None:
        inputs, targets = self._batches[self._done % BATCHES]
        self._done += 1
        clock.mark()
        value = loss(self._model(inputs), targets)
        clock.mark()
        value.backward()
        clock.mark()
        self._optimizer.step()
        self._optimizer.zero_grad()
        clock.mark()


class Session:
    """Carries out the driver's commands."""

    def __init__(self, quick: bool, device: torch.device) -> None:
        self._quick = quick
        self._device = device
        self._training: Training | None = None

    def answer(self, command: Message) -> Message:
        """Carries out one command and returns what to tell the driver."""
        what = command["do"]
        if what == "begin":
            self._training = training = Training(command["model"], command["bucket_mb"], self._quick, self._device)
            sizes = [parameter.numel() * parameter.element_size() for parameter in training.parameters()]
            found = training.gradients()
            training.iterate(WARM_UP, together=True)
            training.iterate(1, together=False)
            return {**found, "bytes": sum(sizes), "tensors": len(sizes)}
        if what == "time":
            if self._training is None:
                raise ValueError("no model is set up")
            together = self._training.iterate(command["iters"], together=True)
            alone = self._training.iterate(command["iters"], together=False)
            return {"together": together, "alone": alone}
        if what == "end":
            self._training = None
            return {}
        raise ValueError(f"unknown command {what!r}")


def version(backend: str) -> str:
    """The library and its release; of securecoll also the kernels that seal, which tell the builds apart."""
    through = f"through torch {torch.__version__}"
    if backend != "securecoll":
        return f"{backend} {through}"
    import securecoll
    from securecoll import _engine

    return f"securecoll {securecoll.__version__} {through}, AEAD {_engine.aead_name()}"


def main() -> None:
    """Serves commands until the driver hangs up or says quit."""
    parser = argparse.ArgumentParser(description="Started by ddp_overhead.py.")
    parser.add_argument("backend")
    parser.add_argument("--control", type=Path, required=True, help="the driver's socket")
    parser.add_argument("--meet", type=Path, required=True, help="an empty folder where the ranks find each other")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    channel = Channel.connect(options.control)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", options.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    store = FileStore(str(options.meet / "store"), options.size)
    dist.init_process_group(options.backend, store=store, rank=options.rank, world_size=options.size)
    channel.send({"rank": options.rank, "pid": os.getpid(), "version": version(options.backend)})
    session = Session(options.quick, device)
    try:
        while (command := channel.receive())["do"] != "quit":
            channel.send(session.answer(command))
    except EOFError:
        os._exit(1)  # the driver is gone: nobody is left to agree with on how to leave
    session.answer({"do": "end"})
    dist.destroy_process_group()
    channel.send({})


if __name__ == "__main__":
    main()
