"""Peers: default plans meet few ranks of other hosts, and those that are said."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from securecoll import _engine
from securecoll.codes import Collective
from securecoll.plan import plan
from securecoll.plan.call import ROOTED
from securecoll.plan.peers import DEEPER, is_small, met, overlay, peers, socket_bytes, sockets
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import DEPTH, choose, default_chunk
from tests.plan.cases import group, placements

PAIRWISE = {Collective.GATHER, Collective.SCATTER, Collective.ALL_TO_ALL}


@pytest.mark.parametrize("size", [2, 3, 4, 6, 9, 16, pytest.param(40, marks=pytest.mark.slow)])
def test_default_plans_meet_their_peers_and_nobody_else(size: int) -> None:
    for topology in placements(size).values():
        everyone: list[set[int]] = [set() for _ in range(size)]
        for collective in set(Collective) - PAIRWISE:
            for nbytes in (64, 1 << 16, 1 << 24):
                moved = 0 if collective is Collective.BARRIER else nbytes
                choice = choose(collective, size, moved, topology=topology)
                for root in {0, size - 1} if collective in ROOTED else {0}:
                    for rank in range(size):
                        made = plan(
                            collective,
                            rank,
                            size,
                            nbytes=moved,
                            itemsize=4,
                            root=root,
                            topology=topology,
                            **choice._asdict(),
                        )
                        everyone[rank] |= met(made)
        for rank in range(size):
            assert everyone[rank] <= {*peers(topology, rank)}, f"rank {rank} of {topology.hosts}"


def test_whoever_has_a_peer_is_its_peer() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(20):
        size = draw.randint(2, 60)
        topology = Topology.of(draw.randrange(draw.randint(1, size)) for _ in range(size))
        met_by = [peers(topology, rank) for rank in range(size)]
        for rank, others in enumerate(met_by):
            assert all(topology.crosses(rank, p) and rank in met_by[p] for p in others)


@pytest.mark.parametrize(
    ("hosts", "gpus", "count", "mebibytes"), [(1, 8, 0, 0.0), (8, 1, 5, 40.0), (64, 8, 11, 88.0), (512, 8, 17, 136.0)]
)
def test_sockets_and_their_memory_grow_with_the_logarithm(hosts: int, gpus: int, count: int, mebibytes: float) -> None:
    topology = Topology.even(hosts, gpus)
    assert {len(peers(topology, rank)) for rank in range(0, len(topology), 97)} == {count}
    assert round(socket_bytes(count, default_chunk(gpus), DEPTH) / (1 << 20), 1) == mebibytes


def test_a_group_is_made_with_five_sockets_at_most() -> None:
    for hosts, gpus, most in ((1, 8, 0), (2, 1, 1), (8, 1, 5), (64, 8, 4), (4096, 1, 5)):
        topology = Topology.even(hosts, gpus)
        met_by = [overlay(topology, rank) for rank in range(len(topology))]
        assert max(map(len, met_by)) == most
        for rank, others in enumerate(met_by):
            assert all(topology.crosses(rank, p) and rank in met_by[p] for p in others)
    assert overlay(Topology.even(9, 1), 3) == (1, 2, 4, 7, 8)
    assert overlay(Topology.even(3, 3), 3) == (1, 2, 7, 8)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 61, 4096])
def test_the_overlay_is_the_neighbours_that_the_engine_meets(size: int) -> None:
    topology = Topology.even(size, 1)
    for rank in range(size):
        assert list(overlay(topology, rank)) == _engine.neighbours(rank, size)


def test_a_rank_has_sockets_for_its_overlay_and_its_plans_and_nobody_else() -> None:
    topology = Topology.even(16, 4)
    for rank in range(len(topology)):
        assert {*sockets(topology, rank)} == {*overlay(topology, rank)} | {*peers(topology, rank)}


def test_lanes_over_sockets_are_as_deep_as_the_engine_makes_them() -> None:
    source = (Path(__file__).parents[2] / "kernels/engine/mesh.cpp").read_text()
    assert f"constexpr uint64_t kDeeper = {DEEPER};" in source


def test_small_groups_may_meet_everyone() -> None:
    assert is_small(Topology.even(2, 8)) and is_small(Topology.even(4, 1))
    assert not is_small(Topology.even(4, 4))
    assert peers(Topology.even(2, 2), 1) == (2, 3)


def test_what_plans_meet_is_read_off_their_lanes() -> None:
    plans = group(Collective.ALL_GATHER, "ring", 4, 64, topology=Topology((0, 1, 0, 1)))
    assert [met(made) for made in plans] == [{3}, {2}, {1}, {0}]
