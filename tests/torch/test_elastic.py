"""What an attempt of torchrun leaves behind is of no use in the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.groups import left_behind
from tests.torch.ranks import key_for

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from securecoll import rendezvous
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
if (attempt, rank) == (0, 1):
    real = rendezvous.StoreExchange.exchange
    def exchange(self, round, *rest):
        answer = real(self, round, *rest)
        print("published", flush=True)
        os._exit(1)
    rendezvous.StoreExchange.exchange = exchange
dist.init_process_group("securecoll")
x = torch.full((70_000,), float(rank))
dist.all_reduce(x)
print(f"attempt {attempt} rank {rank} has {x[0].item():g}", flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_f7_the_next_attempt_does_not_meet_what_a_dead_one_published(tmp_path: Path, transport: str) -> None:
    """https://github.com/pytorch/pytorch/issues/135712: a rank exits when its address is known to all."""
    before = {*left_behind()}
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "--max-restarts=2", str(script)],
        env={**os.environ, "SECURECOLL_KEY_FILE": str(key_for(tmp_path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("published") == 1
    assert "attempt 0" not in done.stdout, done.stdout
    assert all(f"attempt 1 rank {rank} has 1" in done.stdout for rank in range(2)), done.stdout + done.stderr
    # Ranks that ended in the middle of joining leave names of segments, for a process a minute later to find.
    for name in {*left_behind()} - before:
        Path("/dev/shm", name).unlink(missing_ok=True)
