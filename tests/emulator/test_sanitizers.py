"""What only ThreadSanitizer sees (memory between blocks) and AddressSanitizer (local arrays); both follow fibers."""

from __future__ import annotations

import pytest

from tests.emulator.conftest import BUGS, PROBE
from tests.emulator.emulator import build
from tests.emulator.sanitizers import REPORTED, run_under

# Planted mistakes, and the blocks that they take.
UNORDERED = {"missing_release": 2, "missing_fence_before_arrival": 3, "missing_fence_after_arrival": 3}
OVERRUNS = {"stack_overrun": "stack-buffer-overflow", "out_of_bounds": "use-after-poison"}

PROGRAM = """
import struct, sys
from tests.emulator.emulator import Emulator, Order
library, correct, threads, *kernels = sys.argv[1:]
emulator = Emulator(library)
for kernel in kernels:
    name, blocks = kernel.split(":")
    for order in Order:
        out, other = emulator.upload(bytes(4 * int(threads))), emulator.upload(bytes(64))
        args = struct.pack("<QQII", out, other, int(correct), 0)
        emulator.run(name, args, int(blocks), int(threads), shared=1024, order=order, resident=4)
print("finished")
"""

# Everything that switches fibers, in all orders, several blocks at a time.
SWITCHES = """
import sys
from tests.emulator.emulator import Emulator, Order
from tests.emulator.test_names import args, pack, unpack
emulator = Emulator(sys.argv[1])
how = {"block": 64, "resident": 4}
for order in Order:
    at, out, token = emulator.upload(pack(range(256))), emulator.allocate(1024), emulator.upload(bytes(4))
    emulator.run("probe_reverse", args(out, at), grid=4, shared=4096, order=order, **how)
    assert unpack(emulator.read(out, 1024)) == tuple(64 * b + 63 - t for b in range(4) for t in range(64))
    emulator.run("probe_halves", args(out, at), grid=4, order=order, **how)
    emulator.write(out, bytes(1024))
    emulator.run("probe_token", args(out, 0, token, 3), grid=3, order=order, **how)
    assert unpack(emulator.read(out, 256)) == (18,) * 64
    why = emulator.launch("probe_trap", args(a=100), grid=4, order=order, **how)
    assert why == "probe_trap, block 1, thread 36: trap", why
print("finished")
"""


def test_thread_sanitizer_finds_what_nothing_orders_between_blocks() -> None:
    library = str(build(BUGS, "tsan"))
    kernels = [f"{name}:{blocks}" for name, blocks in UNORDERED.items()]
    correct = run_under("tsan", PROGRAM, library, "1", "64", *kernels)
    assert (correct.returncode, correct.stdout) == (0, "finished\n"), correct.stderr
    for kernel in kernels:
        wrong = run_under("tsan", PROGRAM, library, "0", "64", kernel)
        assert wrong.returncode == REPORTED, (kernel, wrong.stderr)
        assert "WARNING: ThreadSanitizer: data race" in wrong.stderr
        assert "bugs.cu:" in wrong.stderr


def test_address_sanitizer_finds_overruns_of_local_arrays_and_device_memory() -> None:
    library = str(build(BUGS, "asan"))
    kernels = [f"{name}:1" for name in OVERRUNS]
    correct = run_under("asan", PROGRAM, library, "1", "256", *kernels)
    assert (correct.returncode, correct.stdout) == (0, "finished\n"), correct.stderr
    for kernel, finding in zip(kernels, OVERRUNS.values(), strict=True):
        wrong = run_under("asan", PROGRAM, library, "0", "256", kernel)
        assert wrong.returncode == REPORTED, (kernel, wrong.stderr)
        assert f"ERROR: AddressSanitizer: {finding}" in wrong.stderr
        assert "bugs.cu:" in wrong.stderr


@pytest.mark.parametrize("mode", ["asan", "tsan"])
def test_sanitizers_have_nothing_to_say_of_the_emulator_itself(mode: str) -> None:
    done = run_under(mode, SWITCHES, str(build(PROBE, mode)))
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stderr
