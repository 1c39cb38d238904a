"""Which ranks there are, and the communicator among them: under a launcher of MPI, under torchrun, or alone."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securecoll import Communicator, cuda

KEY_VARIABLES = ("SECURECOLL_KEY_FD", "SECURECOLL_KEY_FILE", "SECURECOLL_KEY")
"""Where a configured key may come from; see docs/configuration.md."""


class LaunchError(RuntimeError):
    """The environment does not describe a run that can start. The message says what to do."""


class Launcher(Enum):
    """Who started this process."""

    MPI = "mpirun"
    TORCH = "torchrun"
    ALONE = "alone"


@dataclass(frozen=True, slots=True)
class Launch:
    """This process among those that the launcher started. ``local_size`` counts those on this host."""

    launcher: Launcher
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


_MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # Hydra: MPICH, Intel MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)


def detect(environ: Mapping[str, str] = os.environ) -> Launch:
    """Reads the launcher's variables. Raises LaunchError when they contradict each other."""
    for rank, size, local_rank, local_size in _MPI_VARIABLES:
        if rank in environ and size in environ:
            found = [_integer(environ, name, 0) for name in (rank, size)]
            # Without the local ones, nothing is known to be on this host but this process.
            found += [_integer(environ, local_rank, 0), _integer(environ, local_size, 1)]
            return _checked(Launch(Launcher.MPI, *found))
    if "RANK" in environ and "WORLD_SIZE" in environ:
        found = [_integer(environ, "RANK", 0), _integer(environ, "WORLD_SIZE", 1)]
        found += [_integer(environ, "LOCAL_RANK", 0), _integer(environ, "LOCAL_WORLD_SIZE", 1)]
        return _checked(Launch(Launcher.TORCH, *found))
    return Launch(Launcher.ALONE)


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise LaunchError(f"{name} is {text!r}, not a number") from None


def _checked(launch: Launch) -> Launch:
    if not (0 <= launch.rank < launch.size and 0 <= launch.local_rank < launch.local_size <= launch.size):
        raise LaunchError(f"{launch.launcher.value} says: {launch}; ranks count from 0 to below the size")
    return launch


def join(
    launch: Launch,
    key: Path | None,
    timeout: float,
    device: cuda.Device | None = None,
    suite: str | None = None,
) -> Communicator:
    """The communicator of all ranks. ``key`` None: the configured one; ``device``: where arrays lie if not on the CPU;
    ``suite`` None: the default one. Collective over the ranks."""
    from securecoll import Communicator

    if launch.launcher is Launcher.MPI:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        if (world.rank, world.size) != (launch.rank, launch.size):
            library = MPI.Get_library_version().split(",")[0].split("\n")[0].strip()
            raise LaunchError(
                f"mpirun started {launch.size} ranks but mpi4py, which loads {library}, sees {world.size}: start with "
                "the mpirun of the environment that this Python belongs to (.venv/bin/mpirun)"
            )
        from securecoll import MPIExchange

        meeting = MPIExchange(world)
        try:
            meets = meeting if launch.size > 1 else None
            return Communicator.create(meets, key, timeout, device=device, suite=suite)
        finally:
            meeting.close()
    if launch.launcher is Launcher.ALONE:
        return Communicator.create(None, key, timeout, device=device, suite=suite)
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise LaunchError("RANK and WORLD_SIZE are set, MASTER_ADDR and MASTER_PORT are not: start with torchrun")
    try:
        from torch.distributed.rendezvous import rendezvous
    except ModuleNotFoundError:
        raise LaunchError("under torchrun the ranks meet in torch's store: pip install torch, or use mpirun") from None
    from securecoll.rendezvous import StoreExchange

    store, rank, size = next(rendezvous("env://"))
    exchange = StoreExchange(store, rank, size, "benchmarks")
    communicator = Communicator.create(exchange, key, timeout, device=device, suite=suite)
    # Without torchrun, rank 0 serves the store, and may let go of it when all have read what they need.
    communicator.barrier()
    return communicator


def choose_key(launch: Launch, given: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[Path | None, str]:
    """The key file for :func:`join` and a line that says which key it is.

    The one given; else the configured one (None); else, while all ranks are on this host, a key of this user's
    benchmarks, made on first use. A key is never sent: so between hosts somebody must have brought it to both.
    """
    if given is not None:
        return given, f"key file {given}"
    for name in KEY_VARIABLES:
        if environ.get(name):
            return None, f"the key that {name} names"
    if launch.local_size < launch.size:
        raise LaunchError(
            "ranks on several hosts need a key that is on each of them: make one with `securecoll keygen FILE`, copy "
            "it over a channel you trust, and pass --key FILE or set SECURECOLL_KEY_FILE"
        )
    path = Path.home() / ".cache" / "securecoll" / "bench.key"
    make_key(path)
    return path, f"key file {path}: made on first use, for benchmarks on this host only"


def make_key(path: Path) -> bool:
    """Makes a key file (32 random bytes, mode 0600) unless there is one; says whether it did.

    Safe to race: a name only ever appears with its whole content, and whoever links first wins.
    """
    if path.exists():
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        return True
    finally:
        draft.unlink()
