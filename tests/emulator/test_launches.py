"""Blocks, orders and garbage: what a launch does around the kernel."""

from __future__ import annotations

import pytest

from tests.emulator.conftest import PROBE
from tests.emulator.emulator import Emulator, EmulatorError, Order, build
from tests.emulator.test_names import args, pack, unpack


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize(("grid", "block"), [(1, 1), (3, 31), (5, 256), (2, 1024)])
def test_blocks_share_nothing_but_device_memory(probe: Emulator, order: Order, grid: int, block: int) -> None:
    source = list(range(grid * block))
    at, out = probe.upload(pack(source)), probe.allocate(4 * grid * block)
    probe.run("probe_reverse", args(out, at), grid, block, shared=4096, order=order)
    expected = [b * block + block - 1 - t for b in range(grid) for t in range(block)]
    assert list(unpack(probe.read(out, 4 * grid * block))) == expected


@pytest.mark.parametrize("order", Order)
def test_resident_blocks_can_wait_for_each_other(probe: Emulator, order: Order) -> None:
    out, token = probe.upload(bytes(1024)), probe.upload(bytes(4))
    probe.run("probe_token", args(out, 0, token, 5), grid=4, order=order, resident=4)
    assert unpack(probe.read(out, 1024)) == (5 * (1 + 2 + 3 + 4),) * 256


def test_waiting_for_a_block_that_is_not_resident_is_a_deadlock(probe: Emulator) -> None:
    out, token = probe.upload(bytes(1024)), probe.upload(bytes(4))
    why = probe.launch("probe_token", args(out, 0, token, 2), grid=4, resident=3, patience=0.3)
    assert "deadlock: polls byte 0 of an allocation of 4 bytes, and nothing has moved for" in why


def turns(emulator: Emulator, order: Order, seed: int) -> list[int]:
    """Threads of two blocks in the order in which they came."""
    at, out = emulator.upload(bytes(4)), emulator.allocate(4 * 512)
    emulator.run("probe_turns", args(out, 0, at), grid=2, order=order, seed=seed, resident=1)
    places = unpack(emulator.read(out, 4 * 512))
    return sorted(range(512), key=places.__getitem__)


def test_threads_come_in_turn_reversed_or_as_the_seed_says(probe: Emulator) -> None:
    assert turns(probe, Order.IN_TURN, 1) == list(range(512))
    assert turns(probe, Order.REVERSED, 1) == list(range(511, -1, -1))
    random = [turns(probe, Order.RANDOM, seed) for seed in (1, 1, 2, 3)]
    assert random[0] == random[1]
    assert len({tuple(t) for t in random}) == 3
    # Blocks, too, do not come in order.
    assert {turns(probe, Order.RANDOM, seed)[0] // 256 for seed in range(8)} == {0, 1}


def test_shared_memory_starts_as_garbage_of_the_seed() -> None:
    emulator = Emulator(build(PROBE))
    out = emulator.allocate(2 * 1024)
    seen = []
    for seed in (1, 1, 2):
        emulator.run("probe_garbage", args(out), grid=2, shared=4096, seed=seed)
        seen += [emulator.read(out, 1024), emulator.read(out + 1024, 1024)]
    emulator.close()
    assert seen[:2] == seen[2:4]
    assert len(set(seen)) == 4  # another for each block and seed
    assert all(words.count(0) < 32 for words in seen)


def test_fresh_and_released_device_memory_is_garbage() -> None:
    emulator = Emulator(build(PROBE), seed=5)
    at = emulator.upload(bytes(1024))
    out = emulator.allocate(1024)
    fresh = emulator.read(out, 1024)
    emulator.release(at)
    emulator.run("probe_add", args(out, at, 0, 0, 256))  # reads what was released: a plain build does not notice
    stale = emulator.read(out, 1024)
    emulator.close()
    assert fresh.count(0) < 32 and stale.count(0) < 32


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_a_trap_ends_the_launch_for_all_blocks(mode: str) -> None:
    emulator = Emulator(build(PROBE, mode))
    with pytest.raises(EmulatorError, match=r"^probe_trap, block 2, thread 7: trap$"):
        emulator.run("probe_trap", args(a=2 * 256 + 7), grid=6, resident=2)
    emulator.run("probe_trap", args(a=6 * 256), grid=6)  # the emulator itself goes on
    emulator.close()


def test_launches_that_a_gpu_would_refuse_are_refused(probe: Emulator) -> None:
    for why, launch in {
        'no kernel "probe_none"': ("probe_none", args(), 1, 256, 0),
        "probe_add takes 32 bytes of arguments, not 31": ("probe_add", args()[:-1], 1, 256, 0),
        "probe_add: launched with 257 threads a block, and has at most 256": ("probe_add", args(), 1, 257, 0),
        "probe_add: launched with an empty grid or block": ("probe_add", args(), 0, 256, 0),
        "probe_add: launched with 300000 bytes of shared memory, of 232448 that a block can have": (
            "probe_add",
            args(),
            1,
            256,
            300000,
        ),
        "probe_reverse, block 0, thread 0: SC_SHARED needs 4096 bytes, and the launch gave 4095": (
            "probe_reverse",
            args(),
            1,
            256,
            4095,
        ),
    }.items():
        assert probe.launch(*launch) == why
