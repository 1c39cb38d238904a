"""Mistakes that CUDA programs make, planted one by one: each is found, and its corrected version is let be."""

from __future__ import annotations

import ctypes
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.emulator.conftest import BUGS
from tests.emulator.emulator import Emulator, Order

# What every build says about a mistake, wherever the fault lies in the order of threads.
FOUND_BY_ALL = {
    "shared_overrun": r"1024 (of 1024 )?bytes of shared memory",
    "misaligned_stream": r"thread 0: misaligned access of 16 bytes at byte 4 of an allocation of 1024 bytes",
    "divergent_barrier": r"thread \d+: divergence: in __syncthreads at bugs.cu:\d+, while thread \d+ is in the one at",
    "barrier_of_some": r"deadlock: polls byte 0 of .* 40 threads wait, thread 0 the first, in __syncthreads at",
    "missing_lanes": r"block 0: deadlock: 200 threads wait, thread 7 the first, in __syncthreads at bugs.cu:\d+; "
    r"56 threads wait, thread 0 the first, in the warp operation at bugs.cu:\d+ for lanes ffffff80",
    "exited_lanes": r"thread \d+ reads from lane 7, which does not take part",
    "wrong_mask": r"the mask 0000ffff leaves the calling lane out",
    "different_operations": r"divergence: in the warp operation at bugs.cu:\d+ .* while thread \d+ is in the one at",
    "matrix_of_some": r"binary_mma with lanes 7fffffff of 32",
    "deadlock": r"thread 3: deadlock: polls byte 0 .* 255 threads wait, thread 0 the first, in __syncthreads at",
    "traps": r"traps, block 0, thread 77: trap",
    "out_of_bounds": r"(wrote|writes 4 bytes at) 0 bytes past the end of an allocation of 1024 bytes",
    "before_bounds": r"(wrote|writes 4 bytes at) 4 bytes before an allocation of 1024 bytes",
}
# What needs a look at every access.
FOUND_BY_CHECKS = {
    "missing_barrier": r"reads byte \d+ of shared memory, which was never written",
    "missing_second_barrier": r"race: \w+ byte \d+ of shared memory, which thread \d+ wrote with no barrier",
    "lockstep": r"reads byte \d+ of shared memory, which was never written",
    "shuffle_as_barrier": r"race: reads byte \d+ of shared memory, which thread \d+ wrote with no barrier",
    "warp_barrier_for_block": r"race: reads .* which thread \d+ wrote|which was never written",
    "half_warp_barrier": r"race: (reads|writes) .* which thread \d+|which was never written",
    "overwritten_for_block": r"race: (reads|writes) byte 0 of shared memory, which thread(s of several warps| 254) ",
    "overwritten_for_warp": r"race: (reads|writes) byte \d+ of shared memory, which thread \d+ (read|wrote) ",
    "unwritten": r"reads byte 1020 of shared memory, which was never written",
    "out_of_bounds_read": r"thread 255: reads 4 bytes at 0 bytes past the end of an allocation of 1024 bytes",
    "misaligned": r"thread 9: misaligned access of 4 bytes at byte 37 of an allocation of 1024 bytes",
}
# Mistakes that show in a plain build by what comes out, in one order or another.
SHOWN_BY_RESULTS = ("missing_barrier", "missing_second_barrier", "lockstep", "warp_barrier_for_block", "unwritten")
# Only ThreadSanitizer and AddressSanitizer see these; test_sanitizers.py has them.
FOUND_BY_SANITIZERS = {
    "missing_release",
    "missing_fence_before_arrival",
    "missing_fence_after_arrival",
    "stack_overrun",
}
BLOCKS = {"missing_release": 2, "missing_fence_before_arrival": 3, "missing_fence_after_arrival": 3}
ALL = re.findall(r"SC_KERNEL\((\w+)", BUGS.read_text())


@dataclass
class Outcome:
    why: str
    out: bytes


@contextmanager
def buffers(emulator: Emulator) -> Iterator[tuple[int, int]]:
    out, other = emulator.upload(bytes(1024)), emulator.upload(bytes(64))
    yield out, other
    emulator.release(out)
    emulator.release(other)


def launch(emulator: Emulator, kernel: str, correct: bool, order: Order, seed: int = 1) -> Outcome:
    with buffers(emulator) as (out, other):
        args = struct.pack("<QQII", out, other, correct, 0)
        blocks = BLOCKS.get(kernel, 1)
        why = emulator.launch(kernel, args, blocks, shared=1024, order=order, seed=seed, patience=0.3)
        return Outcome(why, emulator.read(out, 1024))


def test_every_planted_mistake_has_a_test() -> None:
    tested = {*FOUND_BY_ALL, *FOUND_BY_CHECKS, *FOUND_BY_SANITIZERS, "stray_pointer"}
    assert tested == set(ALL)


@pytest.mark.parametrize("kernel", ALL)
def test_no_fault_is_found_in_what_is_correct(bugs: Emulator, kernel: str) -> None:
    outcomes = [launch(bugs, kernel, True, order) for order in Order]
    assert [outcome.why for outcome in outcomes] == [""] * 3
    assert outcomes[0].out == outcomes[1].out == outcomes[2].out


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("kernel", FOUND_BY_ALL)
def test_a_mistake_is_named_with_its_kernel_and_place(bugs: Emulator, kernel: str, order: Order) -> None:
    why = launch(bugs, kernel, False, order).why
    assert why.startswith(kernel)
    assert re.search(FOUND_BY_ALL[kernel], why), why


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("kernel", FOUND_BY_CHECKS)
def test_a_checked_build_finds_it_in_every_order(checked_bugs: Emulator, kernel: str, order: Order) -> None:
    why = launch(checked_bugs, kernel, False, order).why
    assert re.match(rf"{kernel}, block 0, thread \d+: ", why), why
    assert re.search(FOUND_BY_CHECKS[kernel], why), why


@pytest.mark.parametrize(
    ("kernel", "reader"), [("overwritten_for_block", "threads of several warps"), ("overwritten_for_warp", "thread 0")]
)
def test_the_last_to_write_is_told_who_may_still_read(checked_bugs: Emulator, kernel: str, reader: str) -> None:
    """In turn, everyone has read when that thread writes, so the order shows nothing."""
    why = launch(checked_bugs, kernel, False, Order.IN_TURN).why
    assert f"race: writes byte 0 of shared memory, which {reader} read with no barrier in between" in why


@pytest.mark.parametrize("kernel", SHOWN_BY_RESULTS)
def test_a_plain_build_shows_it_by_what_comes_out(plain_bugs: Emulator, kernel: str) -> None:
    right = launch(plain_bugs, kernel, True, Order.IN_TURN).out
    outs = [launch(plain_bugs, kernel, False, order, seed).out for order in Order for seed in (1, 2)]
    assert any(out != right for out in outs)
    if kernel == "unwritten":  # in every order, and differently with each seed
        assert all(out != right for out in outs)
        assert outs[0] != outs[1]


def test_a_checked_build_says_where_the_access_stands(checked_bugs: Emulator) -> None:
    why = launch(checked_bugs, "missing_barrier", False, Order.IN_TURN).why
    found = re.search(r"\(addr2line -ie (\S+\.so) (0x[0-9a-f]+)\)$", why)
    assert found, why
    if shutil.which("addr2line") is None:
        return
    named = subprocess.run(["addr2line", "-ie", *found.groups()], capture_output=True, text=True, check=True).stdout
    source = BUGS.read_text().splitlines()
    numbers = [int(n) for n in re.findall(r"bugs\.cu:(\d+)", named)]
    assert any("scratch.word[255 - threadIdx.x]" in source[n - 1] for n in numbers), named


@pytest.mark.parametrize("order", Order)
def test_stray_pointers_are_found(checked_bugs: Emulator, order: Order) -> None:
    """Released memory, host memory that was not mapped, and host memory that was mapped for reading only."""
    host = ctypes.create_string_buffer(1024)
    address = ctypes.addressof(host)
    with buffers(checked_bugs) as (out, other):
        released = checked_bugs.upload(bytes(64))
        checked_bugs.release(released)

        def why(out: int, other: int) -> str:
            return checked_bugs.launch("stray_pointer", struct.pack("<QQII", out, other, 0, 0), order=order)

        assert why(out, other) == ""
        assert re.search(r"reads 4 bytes at .* past the end", why(out, released))
        assert "reads 4 bytes at host memory that is not mapped" in why(out, address)
        checked_bugs.map(address, len(host), writable=False)
        assert why(out, address) == ""
        assert "writes 4 bytes at host memory that is not mapped" in why(address, other)
        checked_bugs.map(address, len(host), writable=True)
        assert why(address, other) == ""
