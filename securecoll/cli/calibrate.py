"""``securecoll calibrate``: the ranks of a job measure their cores and network, and rank 0 writes the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from securecoll.cli.suite import suite_option
from securecoll.communicator import Communicator
from securecoll.errors import SecureCollError
from securecoll.plan.cost import Rates
from securecoll.rates import MEASURE, spell
from securecoll.rendezvous import DirectoryExchange, Exchange, MPIExchange, StoreExchange

_MPI_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""What the launchers of MPI set."""


@contextmanager
def _meeting(folder: Path | None, rank: int | None, size: int | None) -> Iterator[Exchange]:
    """Where the ranks of this job find each other."""
    if folder is not None:
        if rank is None or size is None:
            raise click.UsageError("--exchange goes with --rank and --size")
        directory = DirectoryExchange(folder, rank, size)
        yield directory
        directory.close()
    elif any(name in os.environ for name in _MPI_RANKS):
        try:
            from mpi4py import MPI
        except ImportError:
            raise click.ClickException("under mpirun the ranks meet over MPI: pip install mpi4py") from None
        meeting = MPIExchange(MPI.COMM_WORLD)
        try:
            yield meeting
        finally:
            meeting.close()
    elif {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        try:
            from torch.distributed.rendezvous import rendezvous
        except ImportError:
            raise click.ClickException("under torchrun the ranks meet in torch's store: pip install torch") from None
        store, rank, size = next(rendezvous("env://"))
        yield StoreExchange(store, rank, size, "securecoll.calibrate")
    else:
        raise click.UsageError(
            "start it once for each rank, as the job itself is started: under mpirun, under torchrun --no-python, or "
            "with --exchange, --rank and --size"
        )


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--exchange", type=click.Path(file_okay=False, path_type=Path), help="A folder that all ranks see.")
@click.option("--rank", type=click.IntRange(min=0), help="With --exchange: this rank.")
@click.option("--size", type=click.IntRange(min=2), help="With --exchange: how many there are.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0, show_default=True, help="Seconds."
)
@suite_option("Of the job's groups: how fast their cipher is.")
def calibrate(
    file: Path, exchange: Path | None, rank: int | None, size: int | None, timeout: float, suite: str
) -> None:
    """Measure the cores and network of a job, and write FILE for SECURECOLL_NETWORK.

    The ranks of a job run this together, with its key, placed as the job will be. Rank 0 writes FILE; give every rank
    a copy.
    """
    try:
        with (
            _meeting(exchange, rank, size) as meeting,
            Communicator.create(meeting, timeout=timeout, network=MEASURE, suite=suite) as comm,
        ):
            if comm.rank == 0:
                _write(file, comm.rates)
            # Without torchrun's agent rank 0 serves the store, and may let go of it when all are done.
            comm.barrier()
            if comm.rank == 0:
                click.echo(f"{file}: {_told(comm.rates, comm.size)}")
    except SecureCollError as e:
        raise click.ClickException(str(e)) from None


def _write(file: Path, rates: Rates) -> None:
    """All of it, or nothing."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        draft.write_text(spell(rates))
        draft.replace(file)
    except OSError as e:
        draft.unlink(missing_ok=True)
        raise click.ClickException(f"cannot write {file}: {e.strerror}") from None


def _told(rates: Rates, size: int) -> str:
    network = rates.network
    return (
        f"the worst of {size} ranks: seals {rates.seal / 1e9:.2f} and opens {rates.open / 1e9:.2f} GB/s; between "
        f"hosts {network.link / 1e9:.3f} GB/s and {network.hop_seconds * 1e6:.0f} µs a hop"
    )
