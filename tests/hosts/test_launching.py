"""A line of docs/launching.md: torchrun on two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hosts.lab import hosts

SCRIPT = """
import logging, sys
import torch, torch.distributed as dist
dist.init_process_group("securecoll")
rank = dist.get_rank()
x = torch.full((1000,), float(rank + 1))
dist.all_reduce(x)
message = torch.zeros(3)
if rank == 0:
    dist.send(torch.arange(3.0), 3)
if rank == 3:
    dist.recv(message, 0)
    assert message.tolist() == [0, 1, 2]
dist.barrier()
print(f"rank {rank} has {x[0].item():g}")
dist.destroy_process_group()
"""


def test_torchrun_on_two_hosts(tmp_path: Path) -> None:
    script, key = tmp_path / "script.py", tmp_path / "key"
    script.write_text(SCRIPT)
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    environment = {**os.environ, "SECURECOLL_KEY_FILE": str(key), "SECURECOLL_LOG": "info", "OMP_NUM_THREADS": "1"}
    with hosts(2, (4,)) as made:
        nodes = []
        for number in range(2):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(number)]
            torchrun += ["--nproc-per-node", "2", "--master-addr", "10.77.0.1", "--master-port", "29511"]
            # Memory of its own, too: the ranks of a host share theirs, and nobody else's.
            own = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *torchrun, str(script)]
            words = ["ip", "netns", "exec", made.host(number), "unshare", "--mount", *own]
            nodes.append(
                subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        outputs = [node.communicate(timeout=100)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    for number, output in enumerate(outputs):
        assert "members 0,1,2,3 on 2 hosts, shared memory, and TCP with" in output, output
        for rank in (2 * number, 2 * number + 1):
            assert f"rank {rank} has 10" in output
