"""The cost model: simulated times are those of the schedule, and the closed form agrees with them."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from securecoll.codes import Collective
from securecoll.plan.call import ROOTED
from securecoll.plan.check import check
from securecoll.plan.cost import Network, Rates, simulate
from securecoll.plan.estimate import estimate
from securecoll.plan.schedule import PlanError
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import DEPTH, HOST
from tests.plan.cases import EVERY, NAMES, group

ROUND = Rates(seal=1e9, open=2e9, reduce=4e9, copy=8e9, record_seconds=0.0, hop_seconds=1e-6, cores=64)


def test_one_record_by_hand() -> None:
    """1000 ns to seal, 1000 ns on the way, 500 ns to open; the root copies meanwhile."""
    run = simulate(group(Collective.BROADCAST, "one_shot", 2, 1000, chunk=1024), ROUND, DEPTH)
    assert run.seconds == pytest.approx(2.5e-6)
    assert run.busy == pytest.approx((1.125e-6, 0.5e-6))
    assert run.records == ((0, 2),)


def test_chunks_overlap() -> None:
    """Ten chunks: the reader is done half a chunk and a hop after the writer has sealed its last."""
    plans = group(Collective.GATHER, "one_shot", 2, 10_240, root=1, chunk=1024, wave=100)
    run = simulate(plans, replace(ROUND, copy=1e15), DEPTH)
    assert run.seconds == pytest.approx(10.24e-6 + 1e-6 + 0.512e-6, rel=1e-3)


def test_too_few_cores_slow_all_work_down() -> None:
    plans = group(Collective.ALL_REDUCE, "direct", 4, 4 * 640)
    full = simulate(plans, ROUND, DEPTH)
    half = simulate(plans, replace(ROUND, cores=2), DEPTH)
    assert half.busy == pytest.approx([2 * seconds for seconds in full.busy])


def test_a_full_lane_holds_its_writer_back() -> None:
    """With one slot, the next seal waits until the last open is seen: seal, hop, open, hop for each chunk."""
    plans = group(Collective.GATHER, "one_shot", 2, 4096, root=1, chunk=1024, wave=100)
    run = simulate(plans, replace(ROUND, copy=1e15), 1)
    assert run.seconds == pytest.approx(4 * (1.024e-6 + 1e-6 + 0.512e-6) + 3 * 1e-6, rel=1e-3)


def test_plans_that_deadlock_have_no_price() -> None:
    with pytest.raises(PlanError, match=r"^deadlock"):
        simulate(group(Collective.ALL_REDUCE, "ring", 3, 3 * 128, wave=2), ROUND, 2)


@pytest.mark.parametrize("cores", [2, 64])
@pytest.mark.parametrize(("collective", "algorithm"), EVERY, ids=NAMES)
def test_the_estimate_agrees_with_the_simulation(collective: Collective, algorithm: str, cores: int) -> None:
    rates = replace(HOST, cores=cores)
    for size in (2, 3, 4, 8):
        for nbytes in (64, 4 << 10, 64 << 10, 1 << 20):
            moved = 0 if collective is Collective.BARRIER else nbytes
            for chunk in (16 << 10, 64 << 10):
                plans = group(collective, algorithm, size, moved, root=size // 2, chunk=chunk)
                ratio = estimate(collective, algorithm, Topology.single(size), moved, chunk, 8, rates) / (
                    simulate(plans, rates, DEPTH).seconds
                )
                assert 0.6 < ratio < 1.6, f"{size} ranks, {nbytes} bytes, chunks of {chunk}: {ratio:.2f}"


def test_every_algorithm_has_an_estimate_and_no_other() -> None:
    for topology in (Topology.single(4), Topology.even(2, 2)):
        for collective, algorithm in EVERY:
            nbytes = 0 if collective is Collective.BARRIER else 1024
            assert estimate(collective, algorithm, topology, nbytes, 1024, 8, HOST) > 0
        with pytest.raises(ValueError, match="gather has no algorithm 'ring'"):
            estimate(Collective.GATHER, "ring", topology, 1024, 1024, 8, HOST)


def test_an_estimate_takes_no_longer_for_more_ranks() -> None:
    def best(topology: Topology) -> float:
        times = []
        for _ in range(200):
            start = time.perf_counter()
            estimate(Collective.ALL_REDUCE, "hierarchical", topology, 1 << 20, 1 << 16, 8, HOST)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(Topology.even(512, 8)) < 20 * best(Topology.even(2, 8))  # 256 times the hosts


# Across hosts

SLOW = Network(link=0.25e9, socket=2e9, record_seconds=2e-6, hop_seconds=50e-6)
"""A link of 2 Gbit/s."""
FAST = Network(link=50e9, socket=20e9, record_seconds=0.5e-6, hop_seconds=5e-6)
TOPOLOGIES = {
    "2x1": Topology.even(2, 1),
    "2x2": Topology.even(2, 2),
    "3x1": Topology.even(3, 1),
    "3+1": Topology((0, 0, 0, 1)),
    "3+2+1": Topology((0, 0, 0, 1, 1, 2)),
    "interleaved": Topology((0, 1, 2, 0, 1, 2)),
}
ROUND_NETWORK = Network(link=1e9, socket=1e15, record_seconds=100e-9, hop_seconds=10e-6)


def test_a_record_between_hosts_by_hand() -> None:
    """1000 ns to seal, 100 ns of a socket, 1016 ns on the link, 10 us on the way, 100 ns of a socket, 500 to open."""
    plans = group(Collective.GATHER, "one_shot", 2, 1000, root=1, chunk=1024, topology=Topology.even(2, 1))
    run = simulate(plans, replace(ROUND, network=ROUND_NETWORK, copy=1e15), DEPTH)
    assert run.seconds == pytest.approx((1000 + 100 + 1016 + 10_000 + 100 + 500) * 1e-9)


def test_ranks_of_a_host_share_its_link() -> None:
    """Two ranks send at once: the second record leaves when the first has."""
    calls = {"nbytes": 1000, "chunk": 1024, "root": 2}
    alone = group(Collective.GATHER, "one_shot", 3, topology=Topology((0, 1, 2)), **calls)  # type: ignore[arg-type]
    shared = group(Collective.GATHER, "one_shot", 3, topology=Topology((0, 0, 1)), **calls)  # type: ignore[arg-type]
    rates = replace(ROUND, network=ROUND_NETWORK, copy=1e15)
    # Records from two hosts arrive one after the other, too: the reader's link is as busy.
    assert simulate(shared, rates, DEPTH).seconds == pytest.approx(simulate(alone, rates, DEPTH).seconds)
    both = (1000 + 100 + 2 * 1016 + 10_000 + 100 + 500) * 1e-9
    assert simulate(shared, rates, DEPTH).seconds == pytest.approx(both)


def test_links_carry_both_directions_at_once() -> None:
    plans = group(Collective.ALL_TO_ALL, "one_shot", 2, 100_000, chunk=1024, topology=Topology.even(2, 1))
    rates = replace(ROUND, seal=1e15, open=1e15, copy=1e15, network=replace(ROUND_NETWORK, hop_seconds=0.0))
    assert simulate(plans, rates, 1000).seconds == pytest.approx(100e-6, rel=0.1)


def test_too_few_cores_slow_the_ranks_of_their_host_down() -> None:
    plans = group(Collective.ALL_TO_ALL, "one_shot", 4, 640, topology=Topology((0, 0, 0, 1)))
    full = simulate(plans, ROUND, DEPTH)
    one = simulate(plans, replace(ROUND, cores=1), DEPTH)
    assert one.busy == pytest.approx([seconds * (3 if rank < 3 else 1) for rank, seconds in enumerate(full.busy)])


@pytest.mark.parametrize("network", [SLOW, Network(), FAST], ids=["slow", "ethernet", "fast"])
@pytest.mark.parametrize("hosts", TOPOLOGIES)
def test_estimates_across_hosts_agree_with_the_simulation(hosts: str, network: Network) -> None:
    """Of a rooted collective, an estimate is for the slowest root: it is not told where the root is."""
    agree(TOPOLOGIES[hosts], network, EVERY)


@pytest.mark.slow
@pytest.mark.parametrize("network", [SLOW, Network(), FAST], ids=["slow", "ethernet", "fast"])
@pytest.mark.parametrize("hosts", ["4x2", "8x2", "7x3", "16x1", "16x2", "32x1"])
def test_estimates_between_many_hosts_agree_with_the_simulation(hosts: str, network: Network) -> None:
    count, each = map(int, hosts.split("x"))
    agree(Topology.even(count, each), network, EVERY)


def agree(topology: Topology, network: Network, every: list[tuple[Collective, str]]) -> None:
    rates = replace(HOST, network=network)
    for collective, algorithm in every:
        roots = [group[-1] for group in topology.groups] if collective in ROOTED else [0]
        for nbytes, chunk in ((4 << 10, 16 << 10), (64 << 10, 16 << 10), (1 << 20, 64 << 10)):
            moved = 0 if collective is Collective.BARRIER else nbytes
            simulated = []
            for root in roots:
                plans = group(collective, algorithm, len(topology), moved, root=root, chunk=chunk, topology=topology)
                simulated.append(simulate(plans, rates, DEPTH).seconds)
            ratio = estimate(collective, algorithm, topology, moved, chunk, 8, rates) / max(simulated)
            assert 0.6 < ratio < 1.6, f"{collective.name} {algorithm}, {moved} bytes in {chunk}: {ratio:.2f}"


def test_two_hosts_of_two_ranks_reduce_64_mib_faster_in_a_hierarchy_than_in_a_ring() -> None:
    """It carries S over each link, the ring 1.5 S; on 2 Gbit/s that is what counts."""
    topology, whole = TOPOLOGIES["2x2"], 64 << 20
    rates = replace(HOST, network=SLOW)
    seconds, over_link = {}, {}
    for algorithm in ("hierarchical", "ring"):
        plans = group(Collective.ALL_REDUCE, algorithm, 4, whole, chunk=64 << 10, topology=topology)
        carried = check(plans, DEPTH).carried
        over_link[algorithm] = {sum(carried[rank] for rank in ranks) for ranks in topology.groups}
        seconds[algorithm] = simulate(plans, rates, DEPTH).seconds
    assert over_link == {"hierarchical": {whole}, "ring": {whole * 3 // 2}}
    assert seconds["ring"] / seconds["hierarchical"] >= 1.3
    priced = {name: estimate(Collective.ALL_REDUCE, name, topology, whole, 64 << 10, 8, rates) for name in seconds}
    assert priced["ring"] / priced["hierarchical"] >= 1.3
    assert whole / SLOW.link / seconds["hierarchical"] > 0.95, "the link is busy all the time"
