"""How fast this machine seals, opens and reduces: measured while the doctor runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securecoll import _engine
from securecoll.cli.findings import Finding, State

RECORD_BYTES = 64 * 1024
"""Of the records measured: the largest that a slot between few ranks holds, and in cache."""
ROUNDS = 10
ROUND_SECONDS = 0.02
SLOW = 0.8
"""Below this fraction of `cryptography`'s rate something is wrong: a busy machine, or a set of kernels that does not
suit the CPU."""


def seconds_per_call(work: Callable[[], object]) -> float:
    """The mean over a round of calls."""
    calls, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < ROUND_SECONDS:
        for _ in range(16):
            work()
        calls += 16
    return (now - start) / calls


def measure() -> dict[str, float]:
    """Gigabytes (1e9 bytes) per second by name, called from Python: the best of rounds that alternate."""
    key, nonce, associated = bytes(range(32)), bytes(12), bytes(32)
    ours, theirs = _engine.Aead(_engine.aead_name(), key), AESGCM(key)
    plain, sealed = bytearray(RECORD_BYTES), bytearray(RECORD_BYTES + 16)
    calls: dict[str, Callable[[], object]] = {
        "seal": lambda: ours.seal_into(nonce, associated, plain, sealed),
        "cryptography_seal": lambda: theirs.encrypt_into(nonce, plain, associated, sealed),
        "open": lambda: ours.open_into(nonce, associated, sealed, plain),
        "cryptography_open": lambda: theirs.decrypt_into(nonce, sealed, associated, plain),
    }
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, work in calls.items():
            best[name] = min(best[name], seconds_per_call(work))
    return {name: RECORD_BYTES / 1e9 / seconds for name, seconds in best.items()}


def aead() -> Finding:
    """The set of AEAD kernels that is chosen, and its rates beside those of ``cryptography`` in the same run."""
    try:
        chosen, known = _engine.aead_name(), _engine.aead_names()
    except RuntimeError as error:
        advice = "Build the package again; if that does not help, do not trust this CPU."
        return Finding("aead", State.FAIL, str(error), advice)
    rates = measure()
    seal, open_ = rates["seal"] / rates["cryptography_seal"], rates["open"] / rates["cryptography_open"]
    values: dict[str, object] = {"set": chosen, "sets": list(known), "record_bytes": RECORD_BYTES}
    values |= {f"{name}_gigabytes_per_second": round(rate, 3) for name, rate in rates.items()}
    found = (
        f"{chosen} (of {', '.join(known)}): seals {rates['seal']:.1f} and opens {rates['open']:.1f} GB/s, "
        f"{seal:.2f}x and {open_:.2f}x of cryptography {version('cryptography')}; {RECORD_BYTES // 1024} KiB, one core"
    )
    if min(seal, open_) < SLOW:
        advice = "Run this again while the machine is idle; please report a ratio that stays low, with the cpu line."
        return Finding("aead", State.WARN, found, advice, values)
    return Finding("aead", State.OK, found, values=values)


def reductions() -> Finding:
    """The instruction set that reductions run with."""
    isa = _engine.reduce_isa()
    values: dict[str, object] = {"isa": isa}
    if isa == "generic":
        advice = "Sums are slow without AVX2. In a VM, look whether the host passes it on (QEMU: -cpu host)."
        return Finding("reductions", State.WARN, isa, advice, values)
    return Finding("reductions", State.OK, isa, values=values)
