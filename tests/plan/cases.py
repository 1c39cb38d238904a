"""Plans of whole groups, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS, Plan, Topology, plan
from securecoll.plan.call import PARTED

EVERY = [(collective, algorithm) for collective in Collective for algorithm in ALGORITHMS[collective]]
"""Every algorithm that ships."""


def named(algorithms: Sequence[tuple[Collective, str]]) -> list[str]:
    """Names of test cases."""
    return [f"{collective.name.lower()}-{algorithm}" for collective, algorithm in algorithms]


NAMES = named(EVERY)


def group(
    collective: Collective,
    algorithm: str,
    size: int,
    nbytes: int = 0,
    *,
    counts: Sequence[int] | None = None,
    edges: Sequence[Sequence[int]] | None = None,
    root: int = 0,
    itemsize: int = 4,
    chunk: int = 64,
    wave: int = 8,
    topology: Topology | None = None,
) -> list[Plan]:
    """All ranks' plans. ``edges[i][j]``: bytes from rank i to rank j in an uneven all_to_all."""
    return [
        plan(
            collective,
            rank,
            size,
            nbytes=nbytes,
            itemsize=itemsize,
            root=root,
            counts=counts,
            send=None if edges is None else edges[rank],
            recv=None if edges is None else [row[rank] for row in edges],
            chunk=chunk,
            wave=wave,
            algorithm=algorithm,
            topology=topology,
        )
        for rank in range(size)
    ]


def filling(collective: Collective, size: int, each: int) -> int:
    """The ``nbytes`` with which every rank's slice or part holds ``each`` bytes."""
    if collective is Collective.BARRIER:
        return 0
    return each if collective in PARTED or collective is Collective.ALL_TO_ALL else each * size


def placements(size: int) -> dict[str, Topology]:
    """Ways to place ``size`` ranks on hosts, different ones; where a name does not fit the size, nearly so."""
    third = max(1, size // 3)
    made = {
        "single": Topology.single(size),
        "two": Topology.of(rank * 2 // size for rank in range(size)),
        "uneven": Topology.of(min(2, rank // max(1, third - 1)) for rank in range(size)),
        "alone": Topology.of(range(size)),
        "interleaved": Topology.of(rank % third for rank in range(size)),
        "fours": Topology.of(rank // 4 for rank in range(size)),
        "scattered": Topology.of(rank * rank % 7 for rank in range(size)),
    }
    names = {topology: name for name, topology in reversed(made.items())}
    return {name: topology for topology, name in names.items()}
