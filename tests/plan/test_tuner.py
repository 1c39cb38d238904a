"""The tuner's choices."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS, plan, serves
from securecoll.plan.check import check
from securecoll.plan.cost import Network
from securecoll.plan.ir import records
from securecoll.plan.peers import DEEPER
from securecoll.plan.topology import Topology
from securecoll.plan.tuner import DEPTH, HOST, WAVE, candidates, choose, default_chunk, stretch
from tests.plan.cases import EVERY, group

SIZES = [8, 1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 24, 1 << 28]


def test_slots_shrink_as_groups_grow() -> None:
    chunks = {size: default_chunk(size) for size in (1, 2, 8, 9, 16, 17, 64, 128, 129, 4096)}
    assert chunks == {
        1: 65536,
        2: 65536,
        8: 65536,
        9: 32768,
        16: 32768,
        17: 16384,
        64: 8192,
        128: 4096,
        129: 4096,
        4096: 4096,
    }


def test_small_messages_take_one_step_and_large_ones_two() -> None:
    for size in (3, 4, 8, 16):
        assert choose(Collective.ALL_REDUCE, size, 8).algorithm == "one_shot"
        for nbytes in (1 << 20, 1 << 26):
            assert choose(Collective.ALL_REDUCE, size, nbytes).algorithm == "direct"
            assert choose(Collective.REDUCE, max(size, 4), nbytes).algorithm == "direct"


def test_one_switch_between_algorithms() -> None:
    """As messages grow, the choice goes from one_shot to direct once."""
    for size in (2, 4, 8, 64):
        names = [choose(Collective.ALL_REDUCE, size, 1 << power).algorithm for power in range(2, 30)]
        assert names == sorted(names, key=("one_shot", "direct").index)
        assert {*names} == {"one_shot", "direct"}


def test_medium_messages_take_several_records_a_slice() -> None:
    for nbytes in (128 << 10, 256 << 10, 1 << 20):
        choice = choose(Collective.ALL_REDUCE, 2, nbytes)
        assert choice.algorithm == "direct"
        assert records(nbytes // 2, choice.chunk) >= 2
    assert records((1 << 20) // 2, choose(Collective.ALL_REDUCE, 2, 1 << 20).chunk) >= 8


def test_chunks_fit_their_slots_and_keep_their_alignment() -> None:
    for collective, _ in EVERY:
        for size in (1, 2, 5, 16, 200):
            for nbytes in SIZES:
                for largest in (None, 64, 4096, 3 * 4096, 65536):
                    choice = choose(collective, size, nbytes, max_chunk=largest)
                    assert choice.algorithm in ALGORITHMS[collective]
                    assert choice.chunk <= (largest or default_chunk(size))
                    assert choice.chunk % 64 == 0
                    assert choice.wave == WAVE < DEPTH


def test_pinned_algorithms_are_kept_and_unknown_ones_refused() -> None:
    for collective, algorithm in EVERY:
        assert choose(collective, 4, 1 << 20, algorithm=algorithm).algorithm == algorithm
    with pytest.raises(ValueError, match="scatter has the algorithms one_shot, not 'ring'"):
        choose(Collective.SCATTER, 4, 1 << 20, algorithm="ring")
    with pytest.raises(ValueError, match="max_chunk must be a positive multiple of 64 bytes, not 100"):
        choose(Collective.SCATTER, 4, 1 << 20, max_chunk=100)


def test_an_all_to_all_is_served_alike_whatever_a_rank_knows_of_its_sizes() -> None:
    assert len({choose(Collective.ALL_TO_ALL, 4, nbytes) for nbytes in SIZES}) == 1


def test_uneven_parts_are_priced_by_their_mean() -> None:
    even = choose(Collective.ALL_GATHER, 4, 1 << 16)
    assert choose(Collective.ALL_GATHER, 4, 0, counts=(0, 1 << 17, 1 << 16, 1 << 16)) == even


def test_other_processes_choose_alike() -> None:
    """Hash seeds, caches and the order of calls do not matter."""
    table = "\n".join(
        f"{collective} {size} {nbytes} {choose(collective, size, nbytes)}"
        for collective in Collective
        for size in (2, 3, 64)
        for nbytes in SIZES
    )
    program = (
        "from securecoll.codes import Collective\n"
        "from securecoll.plan.tuner import choose\n"
        f"for line in reversed([(c, s, n) for c in Collective for s in (2, 3, 64) for n in {SIZES}]):\n"
        "    print(line[0], line[1], line[2], choose(*line))\n"
    )
    there = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert there.stdout.splitlines()[::-1] == table.splitlines()


# Across hosts


def test_across_hosts_small_messages_take_few_hops_and_large_ones_few_bytes() -> None:
    for topology in (Topology.even(8, 1), Topology.even(16, 8), Topology.even(512, 8)):
        size = len(topology)
        for nbytes, reduced, spread in ((8, "recursive_doubling", "tree"), (1 << 28, "hierarchical", "hierarchical")):
            assert choose(Collective.ALL_REDUCE, size, nbytes, topology=topology).algorithm == reduced
            assert choose(Collective.BROADCAST, size, nbytes, topology=topology).algorithm == spread
            assert choose(Collective.REDUCE, size, nbytes, topology=topology).algorithm == spread


def test_two_hosts_of_two_ranks_reduce_large_buffers_in_a_hierarchy() -> None:
    topology = Topology.even(2, 2)
    rates = replace(HOST, network=Network(link=0.25e9))
    assert choose(Collective.ALL_REDUCE, 4, 64 << 20, topology=topology, rates=rates).algorithm == "hierarchical"


def test_only_small_groups_may_meet_everyone() -> None:
    assert "one_shot" in candidates(Collective.ALL_GATHER, Topology.even(2, 2))
    assert "one_shot" not in candidates(Collective.ALL_GATHER, Topology.even(16, 8))
    assert candidates(Collective.GATHER, Topology.even(16, 8)) == ("one_shot",)


def test_one_host_is_served_as_without_a_topology() -> None:
    for collective, algorithm in EVERY:
        for nbytes in SIZES:
            assert choose(collective, 4, nbytes, topology=Topology.single(4)) == choose(collective, 4, nbytes)
        pinned = choose(collective, 4, 1 << 20, topology=Topology.even(2, 2), algorithm=algorithm)
        assert pinned.algorithm == algorithm


def test_chunks_follow_the_ranks_of_a_host() -> None:
    assert choose(Collective.ALL_TO_ALL, 4096, 1 << 20, topology=Topology.even(512, 8)).chunk == default_chunk(8)


def test_a_choice_for_4096_ranks_takes_milliseconds() -> None:
    topology = Topology.even(512, 8)
    start = time.process_time()
    for collective in Collective:
        choose(collective, 4096, 0 if collective is Collective.BARRIER else 12_345_600, topology=topology)
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize("wave", [1, WAVE])
def test_every_choice_can_be_planned_however_uneven_hosts_are(wave: int) -> None:
    for hosts in ((0, *[1] * 12), (0, 1, 2, *[3] * 20), (0, 0, 0, 1, 1), (0, 1, 0, 2)):
        topology, size = Topology(hosts), len(hosts)
        for collective in Collective:
            for nbytes in (0,) if collective is Collective.BARRIER else (64, 1 << 20):
                choice = choose(collective, size, nbytes, topology=topology, wave=wave)
                assert choice.wave == wave
                made = plan(collective, 1, size, nbytes=nbytes, itemsize=1, topology=topology, **choice._asdict())
                assert 1 <= made.wave <= wave
    lopsided = Topology((0, *[1] * 12))
    assert not serves(Collective.ALL_REDUCE, "hierarchical", lopsided, WAVE)
    assert choose(Collective.REDUCE_SCATTER, 13, 1 << 20, topology=lopsided).algorithm == "ring"


def test_waves_are_longer_where_every_lane_is_a_deeper_one() -> None:
    """As much longer as the engine makes lanes over sockets deeper; a lane in shared memory is not."""
    for topology in (Topology.even(2, 1), Topology.even(7, 1)):
        assert stretch(topology) == DEEPER
    for topology in (Topology.single(1), Topology.single(4), Topology.even(2, 2), Topology((0, 1, 1))):
        assert stretch(topology) == 1
    for size in (2, 3, 5):
        for name in ("hierarchical", "ring"):
            ranks = group(
                Collective.ALL_REDUCE,
                name,
                size,
                (size * 3 * WAVE * DEEPER + 1) * 64,
                wave=WAVE * DEEPER,
                topology=Topology.even(size, 1),
            )
            check(ranks, DEPTH * DEEPER)
