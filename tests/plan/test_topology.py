"""Topologies: placements as plans see them."""

from __future__ import annotations

import random

import pytest

from securecoll.plan.topology import Topology


def drawn(draw: random.Random, most: int) -> Topology:
    """Ranks on hosts at random: uneven, and in any order."""
    size = draw.randint(2, most)
    return Topology.of(draw.randrange(draw.randint(1, size)) for _ in range(size))


def test_hosts_are_numbered_as_they_are_first_seen() -> None:
    named = Topology.of(["b", "a", "b", "c", "a"])
    assert named.hosts == (0, 1, 0, 2, 1)
    assert named == Topology((0, 1, 0, 2, 1)) != Topology((0, 1, 0, 1, 2))
    assert hash(named) == hash(Topology((0, 1, 0, 2, 1)))
    assert named.groups == ((0, 2), (1, 4), (3,))
    assert named.places == (0, 0, 1, 0, 1)
    assert named.order == (0, 2, 1, 4, 3)
    assert named.crowding == 2 and Topology.even(3, 4).crowding == 1


@pytest.mark.parametrize(
    ("hosts", "sentence"),
    [
        ((), "a topology has at least one rank"),
        ((1,), "hosts are numbered as they are first seen: rank 0 may be on a host up to 0, not 1"),
        ((0, 2), "hosts are numbered as they are first seen: rank 1 may be on a host up to 1, not 2"),
        ((0, -1), "hosts are numbered as they are first seen: rank 1 may be on a host up to 1, not -1"),
    ],
)
def test_other_numbers_are_refused(hosts: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        Topology(hosts)


def test_common_placements() -> None:
    assert Topology.single(3).hosts == (0, 0, 0) and Topology.single(3).is_single
    assert Topology.even(2, 3).hosts == (0, 0, 0, 1, 1, 1)
    assert not Topology.even(2, 1).is_single


def test_a_column_has_one_rank_on_each_host_and_owners_know_their_columns() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(50):
        topology = drawn(draw, 24)
        for owner in range(len(topology)):
            for host in range(len(topology.groups)):
                relay = topology.relay(owner, host)
                assert topology.hosts[relay] == host
                assert owner in topology.owned(relay, topology.hosts[owner])
            assert topology.relay(owner, topology.hosts[owner]) == owner
        owned = [
            owner
            for rank in topology.groups[0]
            for host in range(len(topology.groups))
            for owner in topology.owned(rank, host)
        ]
        assert sorted(owned) == list(range(len(topology))), "each owner has one collector on a host"


def test_rings_and_chains_enter_each_host_once() -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(50):
        topology = drawn(draw, 24)
        root = draw.randrange(len(topology))
        count = len(topology.groups)
        ring = (*topology.order, topology.order[0])
        for ranks, crossings in (
            (ring, count if count > 1 else 0),
            (topology.outward(root), count - 1),
            (topology.inward(root), count - 1),
        ):
            assert sorted({*ranks}) == list(range(len(topology)))
            assert sum(map(topology.crosses, ranks, ranks[1:])) == crossings
        assert topology.outward(root)[0] == root == topology.inward(root)[-1]
