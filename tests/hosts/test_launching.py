"""A line of docs/launching.md: torchrun on two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def _torchrun(folder: Path, options: list[list[str]], program: list[str]) -> list[str]:
    """What each host prints that runs the program with its own options; all launchers must exit with 0."""
    key = folder / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    environment = {**os.environ, "SECURECOLL_KEY_FILE": str(key), "SECURECOLL_LOG": "info", "OMP_NUM_THREADS": "1"}
    with hosts(len(options), (4,)) as made:
        nodes = []
        for number, own_options in enumerate(options):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(options)), *own_options]
            # Memory of its own, too: the ranks of a host share theirs, and nobody else's.
            own = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *torchrun, *program]
            words = ["ip", "netns", "exec", made.host(number), "unshare", "--mount", *own]
            nodes.append(
                subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        try:
            outputs = [node.communicate(timeout=150)[0] for node in nodes]
        finally:
            for node in nodes:
                node.terminate()  # and with it its workers
                node.wait(30)
    assert not any(node.returncode for node in nodes), "\n".join(outputs)
    return outputs


def test_torchrun_on_two_hosts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    common = ["--nproc-per-node", "2", "--master-addr", "10.77.0.1", "--master-port", "29511"]
    options = [[*common, "--node-rank", str(number)] for number in range(2)]
    for number, output in enumerate(_torchrun(tmp_path, options, [str(script)])):
        assert "members 0,1,2,3 on 2 hosts, shared memory, and TCP with" in output, output
        for rank in (2 * number, 2 * number + 1):
            assert f"rank {rank} has 10" in output


@pytest.mark.slow
def test_f7_a_worker_that_is_killed_is_started_again_with_the_others_on_both_hosts(tmp_path: Path) -> None:
    """The example's own claims: training goes on from its checkpoint, and ends with the loss of one that nothing
    disturbs."""
    pytest.importorskip("sklearn")
    common = ["--nproc-per-node", "1", "--max-restarts", "1"]
    common += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29512"]
    # Their names resolve to nothing, by which torchrun would find out who is the host of its store.
    options = [
        [*common, "--local-addr", f"10.77.0.{number + 1}", "--rdzv-conf", f"is_host={1 - number}"]
        for number in range(2)
    ]
    elastic = Path(__file__).parents[2] / "examples" / "elastic.py"
    output = "".join(_torchrun(tmp_path, options, [str(elastic), str(tmp_path / "state.pt")]))
    assert output.count("✓") == 3 and "✗" not in output, output
    assert output.count("joined: members 0,1 on 2 hosts") == 4, output  # twice, each with two ranks
