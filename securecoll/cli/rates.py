"""How fast this machine seals, opens and reduces: measured while the doctor runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securecoll import _engine
from securecoll.cli.findings import Finding, State
from securecoll.suites import Suite

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


def measure(suite: Suite) -> dict[str, float]:
    """Gigabytes (1e9 bytes) per second by name, called from Python: the best of rounds that alternate between the
    suite's kernels and what they are compared with: ``cryptography``, or with another cipher the default suite's."""
    key, nonce, associated = bytes(range(32)), bytes(12), bytes(32)
    ours = _engine.Aead(_engine.aead_name(suite), key)
    plain, sealed = bytearray(RECORD_BYTES), bytearray(RECORD_BYTES + 16)
    calls: dict[str, Callable[[], object]] = {
        "seal": lambda: ours.seal_into(nonce, associated, plain, sealed),
        "open": lambda: ours.open_into(nonce, associated, sealed, plain),  # opens what was sealed just before
    }
    if suite is Suite.AES_256_GCM:
        theirs = AESGCM(key)
        calls["cryptography_seal"] = lambda: theirs.encrypt_into(nonce, plain, associated, sealed)
        calls["cryptography_open"] = lambda: theirs.decrypt_into(nonce, sealed, associated, plain)
    else:
        usual = _engine.Aead(_engine.aead_name(Suite.AES_256_GCM), key)
        calls["aes_256_gcm_seal"] = lambda: usual.seal_into(nonce, associated, plain, sealed)
        calls["aes_256_gcm_open"] = lambda: usual.open_into(nonce, associated, sealed, plain)
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, work in calls.items():
            best[name] = min(best[name], seconds_per_call(work))
    return {name: RECORD_BYTES / 1e9 / seconds for name, seconds in best.items()}


def aead(suite: Suite) -> Finding:
    """A suite's set of AEAD kernels that is chosen, and its rates: of AES-256-GCM beside those of ``cryptography``, of
    another cipher beside those of AES-256-GCM, in the same run."""
    subject = suite.title
    try:
        known = _engine.aead_names(suite)
        if not known:
            return Finding(subject, State.OK, "no kernels: this CPU has no AES instructions", values={"sets": []})
        chosen = _engine.aead_name(suite)
    except RuntimeError as error:
        advice = "Build the package again; if that does not help, do not trust this CPU."
        return Finding(subject, State.FAIL, str(error), advice)
    rates = measure(suite)
    beside, named = "cryptography", f"cryptography {version('cryptography')}"
    if suite is not Suite.AES_256_GCM:
        beside, named = "aes_256_gcm", Suite.AES_256_GCM.title
    seal, open_ = rates["seal"] / rates[f"{beside}_seal"], rates["open"] / rates[f"{beside}_open"]
    values: dict[str, object] = {
        "suite": suite.value,
        "set": chosen,
        "sets": known,
        "record_bytes": RECORD_BYTES,
    }
    values |= {f"{name}_gigabytes_per_second": round(rate, 3) for name, rate in rates.items()}
    found = (
        f"{chosen} (of {', '.join(known)}): seals {rates['seal']:.1f} and opens {rates['open']:.1f} GB/s, "
        f"{seal:.2f}x and {open_:.2f}x of {named}; {RECORD_BYTES // 1024} KiB, one core"
    )
    if min(seal, open_) < SLOW and suite is Suite.AES_256_GCM:
        advice = "Run this again while the machine is idle; please report a ratio that stays low, with the cpu line."
        return Finding(subject, State.WARN, found, advice, values)
    return Finding(subject, State.OK, found, values=values)


def reductions() -> Finding:
    """The instruction set that reductions run with."""
    isa = _engine.reduce_isa()
    values: dict[str, object] = {"isa": isa}
    if isa == "generic":
        advice = "Sums are slow without AVX2. In a VM, look whether the host passes it on (QEMU: -cpu host)."
        return Finding("reductions", State.WARN, isa, advice, values)
    return Finding("reductions", State.OK, isa, values=values)
