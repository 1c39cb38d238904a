"""How fast each kernel is, over the size of a chunk and the number of CTAs, beside what its machine code predicts."""

from __future__ import annotations

import ctypes
import importlib.util
import secrets
import sys
import time
from types import ModuleType

from gpu_check import aesgcm, cards
from gpu_check.facts import gpu
from gpu_check.findings import Findings
from gpu_check.target import ROOT, Target

aesgcm.provide()

from securecoll.codes import DType, ReduceOp  # noqa: E402
from tests.cuda.card import (  # noqa: E402
    RECORDS,
    SHARED,
    TAG,
    THREADS,
    Card,
    Chunk,
    CryptArgs,
    ReduceArgs,
    Reduction,
    ResealArgs,
)

GRIDS = ((1, 1), (1, 8), (4, 4), (16, 1), (8, 16))
"""Records and CTAs for each, in a launch."""
BYTES_TIMED = 256 << 20


def run(target: Target, findings: Findings) -> None:
    sizes = [target.pick(4096, 32768, 65536)]
    if not target.emulate:
        sizes += [256 << 10, 1 << 20, 4 << 20]
    grids = ((1, 1), (1, 2)) if target.emulate else GRIDS
    card = cards.maker(target, [])()
    if target.emulate:
        findings.note("these times mean nothing: the CPU plays the device")
    multiprocessors = 1 if target.emulate else card.emulator.driver.attribute("multiprocessors")  # type: ignore[attr-defined]
    predicted = predictions(target, card)
    if not target.emulate:
        measure(target, card, sizes[-1], *grids[-1])  # until the clock is up
    findings.note("predicted: GB/s of one SM at 1.98 GHz, from instruction counts; measured: per SM that has a CTA")
    table = findings.table("Rates", "kernel", "chunk", "records", "CTAs", "GB/s", "GB/s per SM", "predicted", "of it")
    for size in sizes:
        for records, parts in grids:
            ctas = records * parts
            for kernel, seconds in measure(target, card, size, records, parts).items():
                gbs = size * records / seconds / 1e9
                per_sm, expected = gbs / min(ctas, multiprocessors), predicted.get(kernel)
                share = [f"{expected:.2f}", f"{per_sm / expected:.2f}"] if expected else ["", ""]
                findings.row(table, kernel, size, records, ctas, f"{gbs:.3g}", f"{per_sm:.3g}", *share)
    if not target.emulate:
        findings.note(f"SM clock right after: {gpu().get('clocks.sm')}")
    findings.note("sc_reduce: float32 sums, bytes of the result; it moves three times that through memory")
    table = findings.table("Reductions between arrays", "bytes", "CTAs", "GB/s")
    for size in sizes:
        for ctas in (1, 2) if target.emulate else (1, 16, multiprocessors):
            args = ReduceArgs(card.room(size), card.room(size), card.room(size), size // 4)
            args.reduction = Reduction(DType.F32, ReduceOp.SUM, 0, 0, 2, 1.0)
            seconds = timed(target, card, "sc_reduce", args, ctas, 0, size)
            findings.row(table, size, ctas, f"{size / seconds / 1e9:.3g}")
            for at in (args.out, args.a, args.b):
                card.emulator.release(at)
    with findings.check("what was timed was right"):
        assert card.failed() == (0, None)
    card.emulator.close()


def measure(target: Target, card: Card, size: int, records: int, parts: int) -> dict[str, float]:
    """Seconds of each kernel's launch, for records that are sealed, verified, committed, and sealed again."""
    key = card.expand(secrets.token_bytes(32))[0]
    plain, opened, again = ([card.room(size) for _ in range(records)] for _ in range(3))
    sealed, resealed = ([card.room(size + TAG) for _ in range(records)] for _ in range(2))
    nonce, data = secrets.token_bytes(12), bytes(32)

    def crypt(inputs: list[int], outputs: list[int], copies: list[int] | None = None) -> CryptArgs:
        args = CryptArgs(status=card.status, partials=card.partials, records=records, parts=parts)
        for i in range(records):
            copy = copies[i] if copies else 0
            Chunk(key, inputs[i], outputs[i], size, nonce, data, copy=copy, index=i).fill(args.record[i])
        return args

    launches: dict[str, CryptArgs | ResealArgs] = {
        "sc_seal": crypt(plain, sealed),
        "sc_verify": crypt(sealed, opened),
        "sc_commit": crypt(sealed, opened),
    }
    if records <= RECORDS // 2:
        args = ResealArgs(status=card.status, partials=card.partials, records=records, parts=parts)
        args.reduction = Reduction(DType.F32, ReduceOp.SUM, 0, 0, 2, 1.0)
        for i in range(records):
            Chunk(key, sealed[i], again[i], size, nonce, data, operand=plain[i]).fill(args.open[i])
            Chunk(key, 0, resealed[i], size, nonce, data).fill(args.seal[i])
        launches["sc_commit_seal"] = args
    seconds = {
        kernel: timed(target, card, kernel, args, records * parts, SHARED, size * records)
        for kernel, args in launches.items()
    }
    seconds["verify, then commit"] = seconds["sc_verify"] + seconds["sc_commit"]
    for at in (*plain, *opened, *again, *sealed, *resealed, key):
        card.emulator.release(at)
    return seconds


def timed(target: Target, card: Card, kernel: str, args: ctypes.Structure, ctas: int, shared: int, size: int) -> float:
    """Seconds of one launch, of as many as it takes to time them well."""
    card.launch(kernel, args, ctas, THREADS, shared)
    if not target.emulate:
        times = max(3, min(200, BYTES_TIMED // size))
        return card.emulator.time(kernel, bytes(args), ctas, THREADS, shared, times)  # type: ignore[attr-defined,no-any-return]
    begun = time.perf_counter()
    card.launch(kernel, args, ctas, THREADS, shared)
    return time.perf_counter() - begun


def predictions(target: Target, card: Card) -> dict[str, float]:
    """GB/s of one SM, by the budgets that CI holds the kernels to."""
    budget = budgets()
    capability = 90 if target.emulate else card.emulator.driver.capability  # type: ignore[attr-defined]
    known = [arch for arch in budget.LOOPS if int(arch[3:]) <= capability]
    arch = known[-1] if known else next(iter(budget.LOOPS))
    clocks = {kernel: loop.clocks for kernel, loop in budget.LOOPS[arch].items()}
    clocks["verify, then commit"] = clocks["sc_verify"] + clocks["sc_commit"]
    return {kernel: budget.rate(least) for kernel, least in clocks.items()}


def budgets() -> ModuleType:
    """kernels/cuda/budget.py."""
    spec = importlib.util.spec_from_file_location("budget", ROOT / "kernels" / "cuda" / "budget.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["budget"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
