"""What docs/architecture.md says of sockets, of ranks that run: a few at first, and then those of their plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from securecoll import Communicator
from securecoll.plan import Topology
from securecoll.plan.peers import is_small, overlay, sockets
from tests.engine.relay import sockets_only
from tests.groups import SMALL, run

RANKS = 12
"""Each on a host of its own, in the fewest that are no small group."""


def _connected(comm: Communicator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that this one has a socket with at first, and once it ran default plans of all but pairwise kinds."""
    first = comm.connected_ranks
    for count in (comm.size, 40_000 * comm.size):
        x = np.ones(count, np.float32)
        part = np.empty(count // comm.size, np.float32)
        comm.all_reduce(x)
        comm.reduce_scatter(x, part)
        comm.all_gather(part, x)
        for root in (0, comm.size - 1):
            comm.broadcast(x, root)
            comm.reduce(x, root=root)
    comm.barrier()
    return first, comm.connected_ranks


def test_a_rank_has_the_sockets_that_the_docs_say(tmp_path: Path) -> None:
    topology = Topology.even(RANKS, 1)
    assert not is_small(topology)
    for rank, (first, then) in enumerate(run(RANKS, tmp_path, _connected, shape=SMALL, prepare=sockets_only)):
        assert {*overlay(topology, rank)} <= {*first} <= {*then} <= {*sockets(topology, rank)}
        assert len(then) < RANKS - 1
