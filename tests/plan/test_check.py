"""Every plan that ships is proven: each algorithm, every group to 64 ranks, random ones to 4096; here on one host."""

from __future__ import annotations

import random

import pytest

from securecoll.codes import Collective
from securecoll.plan.call import PARTED, REDUCTIONS
from securecoll.plan.check import check
from securecoll.plan.traffic import traffic
from securecoll.plan.tuner import DEPTH, WAVE
from tests.plan.cases import EVERY, filling, group, named

ON_ONE_HOST = [(collective, name) for collective, name in EVERY if name in ("one_shot", "direct", "ring")]
"""The others are made for several hosts; test_across_hosts.py proves them on one host, too."""

QUADRATIC = {
    (Collective.ALL_TO_ALL, "one_shot"),
    (Collective.BARRIER, "one_shot"),
    (Collective.ALL_REDUCE, "one_shot"),
}
"""All ranks meet all others, however little they move."""


def few(collective: Collective, size: int, each: int, owners: int) -> dict[str, object]:
    """A call in which only ``owners`` slices or parts hold anything, so that big groups stay cheap to prove."""
    if collective in PARTED:
        holding = {rank * size // owners for rank in range(min(owners, size))}
        return {"counts": [each if rank in holding else 0 for rank in range(size)]}
    return {"nbytes": 0 if collective is Collective.BARRIER else each * min(owners, size)}


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_every_group_to_32_ranks_with_a_ragged_slice_on_every_rank(collective: Collective, algorithm: str) -> None:
    for size in range(1, 33):
        nbytes = max(0, filling(collective, size, 64) - 20)
        check(group(collective, algorithm, size, nbytes, root=size // 2), DEPTH)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_groups_of_33_to_64_ranks(collective: Collective, algorithm: str) -> None:
    sizes = (33, 47, 63) if collective is Collective.ALL_TO_ALL else range(33, 65)  # the slow test takes them all
    for size in sizes:
        call = few(collective, size, 64, 3)
        check(group(collective, algorithm, size, root=size - 1, **call), DEPTH)  # type: ignore[arg-type]
    check(group(collective, algorithm, 64, filling(collective, 64, 64), root=1), DEPTH)


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_groups_of_33_to_64_ranks_with_two_chunks_on_every_rank(collective: Collective, algorithm: str) -> None:
    for size in range(33, 65):
        nbytes = filling(collective, size, 128) - (4 if collective is not Collective.BARRIER else 0)
        check(group(collective, algorithm, size, nbytes, root=size // 3), DEPTH)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_several_waves_fill_lanes_and_run_to_the_end(collective: Collective, algorithm: str) -> None:
    for size in (2, 3, 4, 5, 8):
        nbytes = max(0, filling(collective, size, 21 * 64) - 4)
        check(group(collective, algorithm, size, nbytes, root=1, wave=WAVE), DEPTH)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_lanes_need_a_slot_more_than_a_wave_has_chunks(collective: Collective, algorithm: str) -> None:
    for size in (2, 3, 6):
        for wave in (1, 4):
            check(group(collective, algorithm, size, filling(collective, size, 9 * 64), wave=wave), wave + 1)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_nothing_to_move_still_exchanges_records(collective: Collective, algorithm: str) -> None:
    for size in range(1, 17):
        proof = check(group(collective, algorithm, size, 0, root=size - 1), DEPTH)
        assert proof.sealed == proof.opened == (0,) * size
        assert proof.records_opened == (size - 1,) * size


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_one_element(collective: Collective, algorithm: str) -> None:
    nbytes = 0 if collective is Collective.BARRIER else 16
    for size in (1, 2, 3, 7, 20):
        check(group(collective, algorithm, size, nbytes, itemsize=max(1, nbytes), root=size - 1), DEPTH)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_random_calls(collective: Collective, algorithm: str) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    for _ in range(12):
        size = draw.randint(2, 9)
        itemsize = draw.choice((1, 2, 4, 8, 16))
        chunk, wave = 64 * draw.randint(1, 4), draw.randint(1, 9)
        root = draw.randrange(size)
        amount = [itemsize * draw.choice((0, 1, 5, 40, 200)) for _ in range(size)]
        shape: dict[str, object] = {
            "nbytes": 0 if collective is Collective.BARRIER else itemsize * draw.randint(0, 600)
        }
        if collective in PARTED and draw.random() < 0.7:
            shape = {"counts": amount}
        elif collective is Collective.ALL_TO_ALL and draw.random() < 0.7:
            shape = {"edges": [draw.sample(amount, size) for _ in range(size)]}
        plans = group(collective, algorithm, size, root=root, itemsize=itemsize, chunk=chunk, wave=wave, **shape)  # type: ignore[arg-type]
        check(plans, 2 * wave)


@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_random_groups_to_4096_ranks(collective: Collective, algorithm: str) -> None:
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print(f"seed {seed}")
    linear = collective in (Collective.BROADCAST, Collective.REDUCE) and algorithm != "direct"
    largest = 96 if (collective, algorithm) in QUADRATIC else 4096 if linear else 700
    size = draw.randint(65, largest)
    call = few(collective, size, 64 * draw.randint(1, 2), 2)
    check(group(collective, algorithm, size, root=draw.randrange(size), **call), DEPTH)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "algorithm"), ON_ONE_HOST, ids=named(ON_ONE_HOST))
def test_4096_ranks(collective: Collective, algorithm: str) -> None:
    size = 256 if (collective, algorithm) in QUADRATIC else 4096
    check(group(collective, algorithm, size, root=17, **few(collective, size, 128, 3)), DEPTH)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
def test_all_reduce_seals_its_bytes_and_opens_two_less_a_share(algorithm: str) -> None:
    for size in (2, 3, 8):
        whole = 64 * 7 * size
        proof = check(group(Collective.ALL_REDUCE, algorithm, size, whole), DEPTH)
        assert proof.sealed == (whole,) * size
        assert proof.opened == (2 * whole * (size - 1) // size,) * size


def test_the_documented_traffic_of_reductions_adds_up() -> None:
    """Every byte opened was sealed: per collective, what all ranks open is what they seal, times its readers."""
    for collective, algorithm in ON_ONE_HOST:
        if collective in REDUCTIONS and algorithm == "one_shot" and collective is not Collective.ALL_REDUCE:
            calls = [p.call for p in group(collective, algorithm, 5, 5 * 64 * 3, root=2)]
            moved = [traffic(call, algorithm) for call in calls if call is not None]
            assert sum(each.sealed for each in moved) == sum(each.opened for each in moved) > 0
