"""all_reduce among ranks that share the GPU, staged and mapped, beside torch's gloo on the same tensors."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_check.findings import Findings, Skipped
from gpu_check.target import Target

SECONDS = 45

Rows = dict[int, tuple[float, int]]
"""By size: microseconds, and wrong elements."""


def run(target: Target, findings: Findings) -> None:
    findings.note("in place, float32 sums, on the slowest rank; the ranks' processes take turns on the one GPU")
    if target.emulate:
        findings.note("these times mean nothing: the CPU plays the device, and gloo's tensors are on the CPU")
    sizes = [4 << 10, 16 << 10] if target.emulate else [1 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20]
    columns = ("ranks", "bytes", "way", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "over gloo's time")
    table = findings.table("all_reduce", *columns)
    for ranks in (2, 4):
        gloo: Rows = {}
        for way in ("gloo", "staged", "mapped"):
            rows: Rows = {}
            with findings.check(f"{way}, {ranks} ranks"):
                rows = measure(target, way, ranks, sizes[: target.pick(1, 2, 5)])
                wrong = {size: count for size, (_, count) in rows.items() if count}
                assert not wrong, f"wrong elements by size: {wrong}"
            if way == "gloo":
                gloo = rows
            for size, (us, _) in rows.items():
                algbw = size / us / 1e3
                ratio = f"{us / gloo[size][0]:.2f}" if size in gloo else ""
                busbw = algbw * 2 * (ranks - 1) / ranks
                findings.row(table, ranks, size, way, f"{us:.1f}", f"{algbw:.3g}", f"{busbw:.3g}", ratio)


def measure(target: Target, way: str, ranks: int, sizes: list[int]) -> Rows:
    """Starts the ranks. Raises RuntimeError with the last words of one that failed."""
    if way == "gloo" and util.find_spec("torch") is None:
        raise Skipped("there is no torch")
    device = "emulated" if target.emulate else "cuda"
    counts = [target.pick(1, 2, 10), target.pick(0, 1, 3)]
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "exchange").mkdir()
        key = folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(32))
        commands = [
            [sys.executable, "-m", "gpu_check.rank", way, device, *map(str, [rank, ranks, folder, *counts, *sizes])]
            for rank in range(ranks)
        ]
        wait([subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in commands])
        rows = json.loads((folder / "rows.json").read_text())
    return {row["size"]: (row["time_us"], row["wrong"]) for row in rows}


def wait(ranks: list[subprocess.Popen[bytes]]) -> None:
    try:
        said = [rank.communicate(timeout=SECONDS)[0].decode(errors="replace") for rank in ranks]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"not done after {SECONDS} s") from None
    finally:
        for rank in ranks:
            rank.kill()
    for number, (rank, text) in enumerate(zip(ranks, said, strict=True)):
        print(text, flush=True)
        if rank.returncode:
            raise RuntimeError(f"rank {number} ended with {rank.returncode}: {text[-1500:]}")
