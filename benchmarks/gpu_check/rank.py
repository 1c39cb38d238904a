"""One rank of an all_reduce that is timed: of securecoll's, staged or mapped, or of torch's gloo on the same arrays.

    python -m gpu_check.rank {staged|mapped|gloo} {cpu|cuda|emulated} RANK RANKS FOLDER ITERATIONS WARM_UP BYTES...

FOLDER, where the ranks meet, holds a key file ``key``; rank 0 writes ``rows.json`` there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness.collectives import ALL_REDUCE, Case
from harness.devices import make
from harness.floor import AeadRates
from harness.launch import Launch, Launcher
from harness.pattern import ELEMENTS, Pattern
from harness.perf import Bench

UNMEASURED = AeadRates("not measured", 1.0, 1.0)

Rows = list[dict[str, Any]]


def main() -> None:
    way, device, *rest = sys.argv[1:]
    rank, ranks, folder, iterations, warm_up = int(rest[0]), int(rest[1]), Path(rest[2]), int(rest[3]), int(rest[4])
    pattern = Pattern(ELEMENTS["float"], "sum", ranks)
    cases = [Case(ALL_REDUCE, pattern, rank, int(size) // 4) for size in rest[5:]]
    if way == "gloo":
        rows = by_gloo(cases, "cuda:0" if device == "cuda" else "cpu", folder, iterations, warm_up)
    else:
        rows = by_us(cases, device, way == "staged", folder, iterations, warm_up)
    if rank == 0:
        (folder / "rows.json").write_text(json.dumps(rows))


def by_us(cases: list[Case], device: str, staged: bool, folder: Path, iterations: int, warm_up: int) -> Rows:
    from securecoll import Communicator, DirectoryExchange

    rank, ranks = cases[0].rank, cases[0].ranks
    memory = make(device, Launch(Launcher.ALONE, rank, ranks, rank, ranks), staged)
    exchange = DirectoryExchange(folder / "exchange", rank=rank, size=ranks)
    options = argparse.Namespace(iters=iterations, warmup_iters=warm_up, check=1, algorithm=None)
    rows = []
    with Communicator.create(exchange, folder / "key", 60.0, device=memory.communicator) as communicator:
        bench = Bench(communicator, UNMEASURED, options, memory)
        for case in cases:
            timing = bench.row(case).in_place
            assert timing is not None
            rows.append({"size": case.nbytes, "time_us": timing.time_us, "wrong": timing.wrong})
    return rows


def by_gloo(cases: list[Case], device: str, folder: Path, iterations: int, warm_up: int) -> Rows:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = cases[0].rank, cases[0].ranks
    store = dist.FileStore(str(folder / "store"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)

    def settle() -> None:
        if device != "cpu":
            torch.cuda.synchronize()

    rows = []
    for case in cases:
        values = np.zeros(case.count, np.float32)
        case.prepare(values, values)
        tensor = torch.from_numpy(values).to(device)
        dist.all_reduce(tensor)
        wrong = case.count_wrong(tensor.cpu().numpy())
        tensor.zero_()  # in place, sums would grow from call to call
        for _ in range(warm_up):
            dist.all_reduce(tensor)
        settle()
        dist.barrier()
        begun = time.perf_counter()
        for _ in range(iterations):
            dist.all_reduce(tensor)
        settle()
        seconds = torch.tensor([(time.perf_counter() - begun) / iterations], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        rows.append({"size": case.nbytes, "time_us": float(seconds) * 1e6, "wrong": wrong})
    dist.destroy_process_group()
    return rows


if __name__ == "__main__":
    main()
