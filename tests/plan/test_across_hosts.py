"""Every plan that ships is proven on every kind of placement: one host, equal ones, uneven ones, one rank each,
interleaved and scattered ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from securecoll.codes import Collective
from securecoll.plan import serves
from securecoll.plan.call import PARTED
from securecoll.plan.check import Proof, check
from securecoll.plan.schedule import PlanError, Schedule
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import DEPTH, WAVE
from tests.plan.cases import EVERY, NAMES, filling, group, named, placements
from tests.plan.test_check import QUADRATIC, few


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_small_groups_of_every_placement(collective: Collective, algorithm: str) -> None:
    """A ragged slice on every rank, and a root on the last host."""
    for size in (2, 3, 4, 5, 6, 8, 11):
        for topology in placements(size).values():
            nbytes = max(0, filling(collective, size, 64) - 20)
            check(group(collective, algorithm, size, nbytes, root=size - 1, topology=topology), DEPTH)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_several_waves_fill_lanes_and_run_to_the_end(collective: Collective, algorithm: str) -> None:
    for size in (2, 4, 7):
        nbytes = max(0, filling(collective, size, 10 * 64) - 4)
        for topology in placements(size).values():
            wave = 3 * topology.crowding
            check(group(collective, algorithm, size, nbytes, root=1, wave=wave, topology=topology), wave + 1)


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_nothing_to_move_still_exchanges_records(collective: Collective, algorithm: str) -> None:
    for size in (2, 3, 6, 11):
        for topology in placements(size).values():
            proof = check(group(collective, algorithm, size, 0, root=size - 1, topology=topology), DEPTH)
            assert proof.sealed == proof.opened == proof.carried == (0,) * size
            assert min(proof.records_opened) > 0


@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_random_calls(collective: Collective, algorithm: str) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(8):
        prove_at_random(draw, collective, algorithm, 12)


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_many_random_calls(collective: Collective, algorithm: str) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(200):
        prove_at_random(draw, collective, algorithm, 20)


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_every_group_to_64_ranks_of_every_placement(collective: Collective, algorithm: str) -> None:
    for size in range(1, 65):
        for topology in placements(size).values():
            if not serves(collective, algorithm, topology, WAVE):
                continue
            each = 64 if size > 24 else 128
            nbytes = max(0, filling(collective, size, each) - 4)
            check(group(collective, algorithm, size, nbytes, root=size // 3, topology=topology, wave=WAVE), DEPTH)


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_random_groups_to_4096_ranks(collective: Collective, algorithm: str) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    size = draw.randint(65, 160 if (collective, algorithm) in QUADRATIC else 4096)
    hosts = draw.randint(2, size // 2)
    even = Topology.of(rank * hosts // size for rank in range(size))
    uneven = Topology.of(min(draw.randrange(hosts), draw.randrange(hosts)) for _ in range(size))
    for topology in (even, uneven):
        if not serves(collective, algorithm, topology, WAVE):
            continue
        call = few(collective, size, 128, 3)
        root = draw.randrange(size)
        check(group(collective, algorithm, size, root=root, topology=topology, **call), DEPTH)  # type: ignore[arg-type]


def prove_at_random(draw: random.Random, collective: Collective, algorithm: str, most: int) -> Proof:
    size = draw.randint(2, most)
    topology = Topology.of(draw.randrange(draw.randint(1, size)) for _ in range(size))
    itemsize = draw.choice((1, 2, 4, 8, 16))
    amount = [itemsize * draw.choice((0, 1, 5, 40, 200)) for _ in range(size)]
    shape: dict[str, object] = {"nbytes": 0 if collective is Collective.BARRIER else itemsize * draw.randint(0, 600)}
    if collective in PARTED and draw.random() < 0.7:
        shape = {"counts": amount}
    elif collective is Collective.ALL_TO_ALL and draw.random() < 0.7:
        shape = {"edges": [draw.sample(amount, size) for _ in range(size)]}
    wave = draw.randint(1, 9)
    if not serves(collective, algorithm, topology, wave):
        wave = topology.crowding
    plans = group(
        collective,
        algorithm,
        size,
        root=draw.randrange(size),
        itemsize=itemsize,
        chunk=64 * draw.randint(1, 4),
        wave=wave,
        topology=topology,
        **shape,  # type: ignore[arg-type]
    )
    return check(plans, draw.randint(wave + 1, 2 * wave + 1))


# Uneven hosts


CROWDED = [(c, "hierarchical") for c in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)]


@pytest.mark.parametrize(("collective", "algorithm"), CROWDED, ids=named(CROWDED))
def test_rings_of_uneven_hosts_take_smaller_waves_and_then_need_no_deeper_lanes(
    collective: Collective, algorithm: str
) -> None:
    """Four ranks of a host stand in the columns of ranks that are alone: their slices share lanes."""
    topology = Topology((0, 1, 2, 2, 2, 2, 3))
    plans = group(collective, algorithm, 7, filling(collective, 7, 24 * 64), wave=8, topology=topology)
    assert {plan.wave for plan in plans} == {2}
    check(plans, 9)
    with pytest.raises(PlanError, match="deadlock, lanes of 9 slots are too shallow"):
        Schedule([replace(plan, wave=8) for plan in plans], topology, 9).order()


def test_hosts_too_uneven_for_a_wave_are_refused() -> None:
    topology = Topology((0, 1, 1, 1))
    with pytest.raises(
        ValueError, match="hosts are too uneven for the hierarchical algorithm with waves of 2: it would"
    ):
        group(Collective.ALL_REDUCE, "hierarchical", 4, 4 * 64, wave=2, topology=topology)
    check(group(Collective.REDUCE, "hierarchical", 4, 4 * 64, wave=2, topology=topology), 3)


# What crosses between hosts


def over_links(collective: Collective, algorithm: str, topology: Topology, nbytes: int) -> list[int]:
    """What each host's ranks carry to others, proven."""
    carried = check(group(collective, algorithm, len(topology), nbytes, topology=topology), DEPTH).carried
    return [sum(carried[rank] for rank in ranks) for ranks in topology.groups]


@pytest.mark.parametrize("interleaved", [False, True], ids=["blocks", "interleaved"])
@pytest.mark.parametrize(("hosts", "each"), [(2, 2), (2, 4), (4, 2), (3, 3), (5, 1)])
def test_a_hierarchy_carries_what_hosts_must_and_a_ring_what_ranks_must(
    hosts: int, each: int, interleaved: bool
) -> None:
    size = hosts * each
    topology = Topology.of(rank % hosts if interleaved else rank // each for rank in range(size))
    whole = 64 * size * 3
    least = 2 * whole * (hosts - 1) // hosts
    assert over_links(Collective.ALL_REDUCE, "hierarchical", topology, whole) == [least] * hosts
    assert over_links(Collective.ALL_REDUCE, "ring", topology, whole) == [2 * whole * (size - 1) // size] * hosts
    part = 64 * 3
    for collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        assert over_links(collective, "hierarchical", topology, part) == [part * (size - each)] * hosts


def test_what_is_sealed_for_everyone_crosses_to_a_host_once() -> None:
    """A part of an all_gather, and a broadcast's buffer, whatever the number of ranks that read it there."""
    topology = Topology((0, 0, 0, 1, 1, 1, 2))
    assert over_links(Collective.ALL_GATHER, "one_shot", topology, 64) == [3 * 2 * 64, 3 * 2 * 64, 2 * 64]
    assert over_links(Collective.BROADCAST, "one_shot", topology, 64) == [2 * 64, 0, 0]
    assert over_links(Collective.BROADCAST, "hierarchical", topology, 64) == [64, 64, 0]
    assert over_links(Collective.BROADCAST, "tree", topology, 64) == [2 * 64, 0, 0]


@pytest.mark.parametrize("algorithm", ["direct", "ring", "hierarchical"])
def test_an_all_reduce_seals_its_bytes_once_on_any_topology(algorithm: str) -> None:
    for topology in placements(9).values():
        whole = 64 * 9 * 2
        assert (
            check(group(Collective.ALL_REDUCE, algorithm, 9, whole, topology=topology), DEPTH).sealed == (whole,) * 9
        )


def test_a_barrier_across_hosts_takes_a_logarithm_of_rounds() -> None:
    proof = check(group(Collective.BARRIER, "hierarchical", 32, topology=Topology.even(16, 2)), DEPTH)
    assert proof.records_opened == (5, 1) * 16
    assert proof.records_sealed == (5, 1) * 16
