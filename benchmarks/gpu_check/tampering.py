"""The host flips a bit of a record: the victim's stream stops before any consumer, and every rank gets an error."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from gpu_check import cards
from gpu_check.driver import Driver, DriverError
from gpu_check.findings import Findings
from gpu_check.target import Target
from securecoll import Communicator, SecureCollError
from tests.cuda.arrays import Array
from tests.cuda.card import GateArgs
from tests.emulator.emulator import EmulatorError
from tests.groups import SMALL, HostView, group, left_behind

COUNT = 3000
UNTOUCHED = -1.0
SECONDS = 20.0


def step(target: Target, findings: Findings) -> None:
    for mapped in (False, True):
        mode = "mapped" if mapped else "staged"
        with findings.check(f"{mode}: untouched records, for comparison"):
            for got in attack(target, mapped, lambda sender: None):
                assert (got["raised"], got["consumed"], got["later"]) == ("", {3.0}, "returned"), got
        for byte, what in ((1234, "ciphertext"), (4100, "tag")):
            with findings.check(f"{mode}: a bit flipped in the {what}"):
                victim = check(attack(target, mapped, functools.partial(flip, byte)))
                findings.note(
                    f"{mode}, {what}: the call said {victim['raised'] or 'nothing'}; the stream: {victim['stream']}"
                )
    with findings.check("the gate: where something failed, nothing behind it runs"):
        check_gate(target)  # last: it ends the context of this process


def check_gate(target: Target) -> None:
    """Of the kernel alone, since a call that learns of a failure in time says so itself and needs no gate."""
    card = cards.maker(target, [])()
    args = GateArgs(status=card.status)
    card.launch("sc_gate", args, block=32)
    card.fail()
    if target.emulate:
        try:
            card.launch("sc_gate", args, block=32)
        except EmulatorError as error:
            assert "trap" in str(error), error
            return
        raise AssertionError("the gate let through what failed")
    driver = card.emulator.driver  # type: ignore[attr-defined]
    seen = driver.pinned(64)
    seen.raw = b"u" * 64
    driver.launch("sc_gate", bytes(args), 1, 32, 0)
    try:
        driver.copy_out(seen, card.status, 64)
        driver.synchronize()
    except DriverError:
        assert seen.raw == b"u" * 64, "what came behind the gate ran"
        return
    raise AssertionError("the gate let through what failed")


def flip(byte: int, sender: HostView) -> None:
    sender.flip(sender.slot_at(2, 0) + byte, bit=3)


def check(results: list[dict[str, Any]]) -> dict[str, Any]:
    victim = results[1]
    # No consumer saw a sum: where the call raised, the output may have been zeroed in time for it.
    assert victim["consumed"] <= ({UNTOUCHED, 0.0} if victim["raised"] else {UNTOUCHED}), victim
    assert victim["raised"] or victim["stream"] != "went on", victim
    if victim["raised"]:
        assert victim["raised"].startswith("AuthenticationError") and "from rank 0" in victim["raised"], victim
    assert [got["later"] for got in results] == ["AuthenticationError"] * 2, results
    return victim


def attack(target: Target, mapped: bool, change: Callable[[HostView], None]) -> list[dict[str, Any]]:
    """What each of two ranks got, after ``change`` of what rank 0 has sealed for rank 1."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        gate = folder / "gate"
        device = functools.partial(device_of, target, mapped)
        options = {"shape": SMALL, "timeout": SECONDS, "device": device}
        with group(2, folder, victim_or_sender, target, str(gate), **options) as ranks:
            ranks.wait_joined()
            sender = HostView(ranks.pids[0], 0, 2, SMALL)
            sender.wait_head(2, 1)
            change(sender)
            gate.touch()
            outcomes = ranks.finish()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.exit_code == 0, f"exit status {outcome.exit_code}"
    assert not left_behind()
    return [outcome.value for outcome in outcomes]


def device_of(target: Target, mapped: bool, rank: int) -> Any:
    return target.communicator_device(rank, mapped)


def victim_or_sender(comm: Communicator, target: Target, gate: str) -> dict[str, Any]:
    """A sum of both ranks' arrays, and a consumer of it on the same stream."""
    assert comm.device is not None
    x = Array(comm.device, np.full(COUNT, comm.rank + 1.0, np.float32))
    consumer = Consumer(target, comm, x)
    if comm.rank == 1:
        deadline = time.monotonic() + SECONDS
        while not Path(gate).exists():
            assert time.monotonic() < deadline, "the host never came"
            time.sleep(0.002)
    got: dict[str, Any] = {"raised": "", "later": "returned"}
    try:
        comm.all_reduce(x, algorithm="one_shot")
    except SecureCollError as error:
        got["raised"] = f"{type(error).__name__}: {error}"
    else:
        consumer.start()
    got["stream"], got["consumed"] = consumer.outcome()
    try:
        comm.barrier()
    except SecureCollError as error:
        got["later"] = type(error).__name__
    return got


class Consumer:
    """Reads a device array, in the order of its stream, into what this process can see even when the device failed."""

    def __init__(self, target: Target, comm: Communicator, x: Array) -> None:
        assert comm.device is not None
        self._engine, self._x = comm.device.engine, x
        untouched = np.full(COUNT, UNTOUCHED, np.float32)
        self._copy = Array(comm.device, untouched)
        self._driver = None
        if not target.emulate:
            self._driver = Driver()
            self._seen = self._driver.pinned(x.nbytes)
            self._seen.raw = untouched.tobytes()

    def start(self) -> None:
        """Gives the stream the work; does not wait for it."""
        try:
            if self._driver is not None:
                self._driver.copy_out(self._seen, self._x.address, self._x.nbytes)
            else:
                self._engine.copy(self._copy.address, self._x.address, self._x.nbytes)
        except RuntimeError:
            pass  # it has already stopped

    def outcome(self) -> tuple[str, set[float]]:
        """What became of the stream, and the values that the consumer saw."""
        stream = "went on"
        try:
            self._engine.synchronize()
        except RuntimeError as error:
            stream = str(error)
        if self._driver is not None:
            return stream, set(np.frombuffer(self._seen.raw, np.float32).tolist())
        if stream != "went on":
            return stream, {UNTOUCHED}  # memory of a device that failed cannot be read
        return stream, set(self._copy.get().tolist())
