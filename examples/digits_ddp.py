"""Trains a small convolutional network on handwritten digits, data-parallel, with every byte between ranks sealed.

    securecoll keygen my.key
    SECURECOLL_KEY_FILE=my.key torchrun --nproc-per-node 2 examples/digits_ddp.py

What makes it sealed is one word: the backend's name in ``init_process_group``. The rest is how any script with
DistributedDataParallel looks, and then three looks behind the curtain: whether the ranks agree to the bit, what a host
finds in shared memory, and what it costs beside gloo, which sends plaintext.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
from digits import HELD_OUT, load
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from shm_scan import Region, find_all, planted, snapshot
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

BATCH = 32
"""Images a rank sees per step."""
SIZES = (8, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
"""Bytes of the all_reduces that are compared with gloo's."""


class Net(nn.Module):
    """8x8 grey images (float32[n, 1, 8, 8], 0 to 1) to ten scores (float32[n, 10])."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classes = nn.Sequential(nn.Flatten(), nn.Linear(512, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Scores, highest for the most likely digit."""
        scores: Tensor = self.classes(self.features(images))
        return scores


class Tap:
    """Keeps the last gradients that this rank handed to its process group, as the bytes that must not be seen."""

    def __init__(self) -> None:
        self.sent = b""

    def hook(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """DDP's default communication, with a copy made first; the division is the one that it does before sending."""
        share = bucket.buffer() / group.size()
        self.sent = share.numpy().tobytes() + (b"" if bucket.index() == 0 else self.sent)
        return allreduce_hook(group, bucket)


def train(model: nn.Module, images: Tensor, digits: Tensor, epochs: int, console: Console) -> None:
    """Each step, every rank computes gradients on its own images; DDP averages them over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = len(images) // (BATCH * ranks)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=epochs * steps)
        for epoch in range(epochs):
            order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
            for step in range(steps):
                mine = order[(step * ranks + rank) * BATCH :][:BATCH]
                loss = nn.functional.cross_entropy(model(images[mine]), digits[mine])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                progress.update(task, advance=1, description=f"epoch {epoch + 1} of {epochs}, loss {loss.item():.4f}")


def accuracy(model: nn.Module, images: Tensor, digits: Tensor) -> float:
    """The fraction of images recognised; each rank looks at its share of them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        right = (model(images[rank::ranks]).argmax(1) == digits[rank::ranks]).sum()
    dist.all_reduce(right)
    return int(right) / len(images)


def digests(model: nn.Module) -> list[str]:
    """The SHA-256 of each rank's parameters."""
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    mine = torch.tensor(list(hashlib.sha256(parameters).digest()), dtype=torch.uint8)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return [digest.numpy().tobytes().hex() for digest in everyone]


def everyones(secret: bytes) -> list[bytes]:
    """``secret`` of each rank; all have the same length."""
    mine = torch.frombuffer(bytearray(secret), dtype=torch.uint8)
    table = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(table, mine)
    return [row.numpy().tobytes() for row in table]


def total(value: int) -> int:
    """The sum over ranks."""
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return int(tensor.item())


def scan(sent: bytes, averaged: bytes, regions: list[Region], console: Console) -> bool:
    """Searches ``regions``, copied right after a step, for the gradients that any rank sent, and for their average."""
    secrets = [*everyones(sent), averaged]
    found = total(find_all(secrets, regions))
    with planted(sent[:4096]):
        control = total(find_all(secrets, snapshot()))
    nbytes, written = sum(len(region.content) for region in regions), sum(region.written for region in regions)
    console.print(
        f"{mark(found == 0 and written > 0)} shared memory ({len(regions)} segments, {nbytes >> 20} MiB, of which "
        f"{written:,} bytes are not zero): {found} matches for {sum(map(len, secrets)):,} bytes of gradients just sent"
    )
    console.print(f"{mark(control > 0)} the same search, 4096 bytes of them planted on each rank: {control} matches")
    return written > 0 and found == 0 and control > 0


def compare(console: Console) -> None:
    """Prints a table of all_reduce times, sealed and through gloo: medians of turns that alternate, slowest rank."""
    gloo = dist.new_group(backend="gloo")
    table = Table(title=f"all_reduce, {dist.get_world_size()} ranks, float32")
    for title in ("size", "securecoll, sealed", "gloo, plaintext", "gloo / securecoll"):
        table.add_column(title, justify="right")
    for nbytes in SIZES:
        tensor = torch.zeros(nbytes // 4)
        calls = 100 if nbytes <= 64 << 10 else 20 if nbytes <= 1 << 20 else 3
        contenders: list[Callable[[], object]] = [
            lambda tensor=tensor: dist.all_reduce(tensor),  # type: ignore[misc]
            lambda tensor=tensor: dist.all_reduce(tensor, group=gloo),  # type: ignore[misc]
        ]
        rounds = torch.tensor([[timed(contender, calls) for contender in contenders] for _ in range(6)])
        dist.all_reduce(rounds, op=dist.ReduceOp.MAX)
        ours, theirs = (median(column) for column in rounds[1:].T.tolist())  # the first round warms up
        size = f"{nbytes} B" if nbytes < 1024 else f"{nbytes >> 10} KiB" if nbytes < 1 << 20 else f"{nbytes >> 20} MiB"
        table.add_row(size, f"{ours * 1e6:,.0f} µs", f"{theirs * 1e6:,.0f} µs", f"{theirs / ours:.1f}x")
    console.print(table)


def timed(function: Callable[[], object], calls: int) -> float:
    """Seconds of one call."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def mark(good: bool) -> str:
    """A tick or a cross."""
    return "[green]✓[/]" if good else "[red]✗[/]"


def main() -> int:
    """The program; its exit status is 0 when all that it shows is as it must be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=15)
    epochs: int = parser.parse_args().epochs
    dist.init_process_group("securecoll")
    # Only rank 0 speaks.
    console = Console(quiet=dist.get_rank() != 0, highlight=False, soft_wrap=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, digits, held_out_images, held_out_digits = load()
    tap = Tap()
    model = DistributedDataParallel(Net())
    model.register_comm_hook(model.process_group, tap.hook)
    train(model, images, digits, epochs, console)
    shared = snapshot()  # before anything else is sent
    reached = accuracy(model, held_out_images, held_out_digits)
    console.print(f"{mark(reached > 0.95)} accuracy on {HELD_OUT} held-out images: {reached:.1%}")
    hashes = digests(model)
    same = len(set(hashes)) == 1
    for rank, digest in enumerate(hashes):
        console.print(f"{mark(same)} SHA-256 of the parameters on rank {rank}: {digest}")
    averaged = b"".join(p.grad.numpy().tobytes() for p in model.parameters() if p.grad is not None)
    sealed = scan(tap.sent, averaged, shared, console)
    compare(console)
    dist.destroy_process_group()
    return 0 if reached > 0.95 and same and sealed else 1


if __name__ == "__main__":
    sys.exit(main())
