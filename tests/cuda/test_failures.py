"""Bad input and broken peers with arrays in device memory: one clear error each, on every rank, and nothing left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, ConfigError, PeerLostError, SecureCollError, cuda
from tests.cuda import arrays
from tests.cuda.arrays import Array
from tests.cuda.groups import devices
from tests.groups import SMALL, HostView, group, left_behind, run

COUNT = 3000
needs_aegis = pytest.mark.skipif(not securecoll._engine.aead_names(4), reason="this CPU has no AES instructions")


def _error(call: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(SecureCollError) as caught:
        call(*args, **options)
    return f"{type(caught.value).__name__}: {caught.value}"


class Face:
    """Says what it is told to."""

    def __init__(self, array: Array, **other: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **other}
        if "device" in other:
            self.device = other["device"]


def _bad_arrays(comm: Communicator) -> dict[str, str]:
    good = Array(comm.device, np.ones((50, 60), np.float32))
    there, here = Array(comm.device, np.ones(COUNT, np.float32)), np.ones(COUNT, np.float32)
    half = {"shape": (COUNT // 2 + 1,)}
    shifted = (there.address + (COUNT // 2 - 1) * 4, False)
    errors = {
        "strides": _error(comm.all_reduce, Face(good, strides=(4, 200))),
        "read-only": _error(comm.all_reduce, Face(good, data=(good.address, True))),
        "dtype": _error(comm.all_reduce, Face(good, typestr=">f4")),
        "places": _error(comm.all_reduce, there, here),
        "overlap": _error(comm.all_reduce, Face(there, **half), Face(there, **half, data=shifted)),
        "device": _error(comm.all_reduce, Face(good, device=1)),
    }
    comm.all_reduce(good)  # nothing was sent, and no sequence number used: the ranks are still in step
    assert (good.get() == comm.size).all()
    return errors


def test_bad_arrays_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for rank, errors in enumerate(run(2, tmp_path, _bad_arrays, shape=SMALL, device=devices())):
        for name, words in {
            "strides": "the input must be C-contiguous",
            "read-only": "the output must be writable",
            "dtype": "has a dtype that has no collective",
            "places": "lie on different devices",
            "overlap": "overlap",
            "device": "got memory of device 1",
        }.items():
            assert errors[name].startswith(f"ConfigError: rank {rank}: "), errors[name]
            assert words in errors[name], (name, errors[name])


def _captured(comm: Communicator) -> str:
    return _error(comm.all_reduce, Array(comm.device, np.ones(COUNT, np.float32)))


def test_a_stream_under_capture_is_refused(tmp_path: Path) -> None:
    """A replay would seal new data under the nonces of the recording."""
    for error in run(2, tmp_path, _captured, shape=SMALL, device=devices("capturing=1")):
        assert error.startswith("ConfigError") and "captured" in error and "outside" in error


def _little_memory(comm: Communicator) -> str:
    return _error(comm.all_reduce, Array(comm.device, np.ones(COUNT, np.float32)))


def test_too_little_device_memory(tmp_path: Path) -> None:
    for error in run(2, tmp_path, _little_memory, shape=SMALL, device=devices("memory=256K")):
        assert error.startswith("ConfigError") and "no room for" in error and "emulated device" in error


def _without_cupy(comm: Communicator) -> str:
    sys.modules["cupy"] = None  # type: ignore[assignment]
    face = Face(Array(arrays_device(), np.ones(COUNT, np.float32)))
    error = _error(comm.all_reduce, face)
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x)  # arrays on the CPU do not care
    assert (x == comm.size).all()
    return error


def arrays_device() -> cuda.Device:
    """A device that no communicator knows."""
    return cuda.emulated(arrays.kernels(), "seed=1")


def test_without_cupy_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    arrays.kernels()
    for error in run(2, tmp_path, _without_cupy, shape=SMALL):
        assert error.startswith("ConfigError") and "CuPy" in error and "pip install 'securecoll[cuda13]'" in error


def _in_a_group_of_suite_4(comm: Communicator) -> list[str]:
    there = Array(arrays_device(), np.ones(COUNT, np.float32))
    errors = [_error(comm.all_reduce, there), _error(comm.broadcast, there, 0)]
    x = np.ones(COUNT, np.float32)
    comm.all_reduce(x)  # nothing was sent, and no sequence number used: the ranks are still in step
    assert (x == comm.size).all()
    assert (there.get() == 1).all()
    return errors


@needs_aegis
def test_device_memory_in_a_group_of_suite_4_is_refused(tmp_path: Path) -> None:
    arrays.kernels()
    for rank, errors in enumerate(run(2, tmp_path, _in_a_group_of_suite_4, shape=SMALL, suite="aegis-256x4")):
        for error in errors:
            assert error.startswith(f"ConfigError: rank {rank}: "), error
            assert "aegis-256x4 works on CPU memory alone" in error and "suite aes-256-gcm" in error


@needs_aegis
def test_a_device_for_a_group_of_suite_4_is_refused_when_it_is_made(tmp_path: Path) -> None:
    with group(2, tmp_path, _nothing, shape=SMALL, suite="aegis-256x4", device=devices(only=(1,))) as ranks:
        zero, one = ranks.finish()
    assert isinstance(one.error, ConfigError)
    assert "aegis-256x4 works on CPU memory alone" in str(one.error) and "suite aes-256-gcm" in str(one.error)
    assert "rank 1 gave up" in str(zero.error)
    assert max(zero.seconds, one.seconds) < 5


def _nothing(comm: Communicator) -> None:
    raise AssertionError("joined")


def test_a_missing_driver_is_named() -> None:
    """This machine has none; on one that has, a device of that number is what is missing."""
    with pytest.raises(ConfigError, match=r"no CUDA driver|no such CUDA device"):
        securecoll._engine.Device.cuda(1000, {})


def test_a_library_that_is_no_device_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no emulated device"):
        cuda.emulated(str(tmp_path / "missing.so"))
    with pytest.raises(ConfigError, match="'order=sideways'"):
        cuda.emulated(arrays.kernels(), "order=sideways")


def _until_killed(comm: Communicator) -> tuple[str, float]:
    x = Array(comm.device, np.ones(200_000, np.float32))
    began = time.monotonic()
    try:
        while True:
            began = time.monotonic()
            comm.all_reduce(x)
    except (PeerLostError, RuntimeError) as e:
        return f"{type(e).__name__}: {e}", time.monotonic() - began


@pytest.mark.parametrize("how", [{}, {"mapped": True}, {"copies_block": True}], ids=["staged", "mapped", "blocking"])
def test_a_peer_that_dies_with_chunks_in_flight(tmp_path: Path, how: dict[str, bool]) -> None:
    """Survivors raise, naming it, long before the deadline."""
    with group(3, tmp_path, _until_killed, shape=SMALL, device=devices(**how), timeout=40.0) as ranks:
        ranks.wait_joined()
        time.sleep(1.5)
        ranks.kill(2, signal.SIGKILL)
        outcomes = ranks.finish()
    for outcome in outcomes[:2]:
        assert outcome.error is None, outcome.error
        error, seconds = outcome.value
        assert error.startswith("PeerLostError") and "rank 2" in error, error
        assert seconds < 10
    assert not left_behind()


def _after_the_trap(comm: Communicator, gate: str) -> list[str]:
    x = Array(comm.device, np.ones(COUNT, np.float32)) if comm.device else np.ones(COUNT, np.float32)
    if comm.device:
        deadline = time.monotonic() + 30
        while not Path(gate).exists() and time.monotonic() < deadline:
            time.sleep(0.002)
    errors = []
    for _ in range(4):
        try:
            comm.all_reduce(x, algorithm="one_shot")
            if comm.device:
                comm.device.engine.synchronize()
        except (SecureCollError, RuntimeError) as e:
            errors.append(type(e).__name__)
    return errors


def test_calls_after_a_trap_raise_the_communicators_error(tmp_path: Path) -> None:
    """The device takes nothing any more, and that is not what the user should read."""
    gate = tmp_path / "gate"
    with group(2, tmp_path, _after_the_trap, str(gate), shape=SMALL, device=devices(only=(1,)), timeout=30.0) as ranks:
        ranks.wait_joined()
        view = HostView(ranks.pids[0], 0, 2, SMALL)
        view.wait_head(2, 1)
        view.flip(view.slot_at(2, 0))
        gate.touch()
        errors = ranks.finish()[1].value
    assert errors[-2:] == ["AuthenticationError"] * 2, errors
    assert set(errors) <= {"AuthenticationError", "RuntimeError"}


LEAVES = """
import sys
from pathlib import Path
import numpy as np
import securecoll
from securecoll import Communicator, cuda
from tests.cuda.arrays import Array
rank, folder, library = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
exchange = securecoll.DirectoryExchange(folder / "exchange", rank=rank, size=2)
device = cuda.emulated(library, "latency=300") if rank == 0 else None
comm = Communicator.create(exchange, folder / "key", timeout=30.0, device=device)
x = np.full(30_000, rank + 1.0, np.float32)
there = Array(device, x) if rank == 0 else x
comm.all_reduce(there)
if rank == 1:
    assert (x == 3.0).all()
print("left")
"""


def test_a_script_that_ends_behind_a_call_still_sends_what_it_owes(tmp_path: Path) -> None:
    """Rank 0's call returns when its work was given to the device; its records leave it later, and it never closes."""
    (tmp_path / "exchange").mkdir()
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_bytes(bytes(range(32)))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LEAVES, str(rank), str(tmp_path), arrays.kernels()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=arrays.ROOT,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all("left" in output for output in outputs)
