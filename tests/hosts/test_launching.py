"""Lines of docs/launching.md, on two hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.lab import hosts

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("securecoll")
rank, last = dist.get_rank(), dist.get_world_size() - 1
x = torch.full((1000,), float(rank + 1))
dist.all_reduce(x)
message = torch.zeros(3)
if rank == 0:
    dist.send(torch.arange(3.0), last)
if rank == last:
    dist.recv(message, 0)
    assert message.tolist() == [0, 1, 2]
dist.barrier()
print(f"rank {rank} has {x[0].item():g}")
dist.destroy_process_group()
"""

# What follows the handshake needs no MPI: it is finalized by then.
COLLECTIVES = """
from mpi4py import MPI
from securecoll import Communicator
from tests.test_communicator import every_collective
with Communicator.from_mpi(MPI.COMM_WORLD) as comm:
    MPI.Finalize()
    print(f"rank {comm.rank}: {every_collective(comm, (1, 1025))} results are NumPy's")
"""

# What ssh is to mpirun: options, a host, and a command for its shell. This one enters a namespace.
REMOTE_SHELL = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
number=$((${{1##*.}} - 1)); shift
exec ip netns exec {lab}-$number unshare --mount sh -c "mount -t tmpfs tmpfs /dev/shm && exec $*"
"""

# Of srun and scontrol, what the line in docs/launching.md uses: tasks on two nodes, numbered in Slurm's variables.
SRUN = """#!/bin/sh
test "$1" = --ntasks-per-node || exit 2
export each=$2
shift 2
export SLURM_NTASKS=$((2 * each))
tasks='
mount -t tmpfs tmpfs /dev/shm || exit 1
for local in $(seq 0 $((each - 1))); do
  SLURM_LOCALID=$local SLURM_PROCID=$((SLURM_NODEID * each + local)) "$@" & started="$started $!"
done
for task in $started; do wait $task || exit 1; done'
for node in 0 1; do
  SLURM_NODEID=$node ip netns exec {lab}-$node unshare --mount sh -c "$tasks" sh "$@" & nodes="$nodes $!"
done
for node in $nodes; do wait $node || exit 1; done
"""
SCONTROL = """#!/bin/sh
test "$*" = "show hostnames node[0-1]" && printf '10.77.0.1\\n10.77.0.2\\n'
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    (tmp_path / "train.py").write_text(TRAIN)
    return {
        **os.environ,
        "SECURECOLL_KEY_FILE": str(key),
        "SECURECOLL_LOG": "info",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def on(host: str, *words: str) -> list[str]:
    """With memory of its own, too: the ranks of a host share theirs, and nobody else's."""
    own = ["sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh", *words]
    return ["ip", "netns", "exec", host, "unshare", "--mount", *own]


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


JOINED = "members 0,1,2,3 on 2 hosts, shared memory, and TCP with"


def _torchrun(environment: dict[str, str], options: list[list[str]], program: list[str]) -> list[str]:
    """What each host prints that runs the program with its own options; all launchers must exit with 0."""
    with hosts(len(options), (4,)) as made:
        nodes = []
        for number, own in enumerate(options):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(options)), *own, *program]
            words = on(made.host(number), *torchrun)
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


def test_torchrun_on_two_hosts(tmp_path: Path, environment: dict[str, str]) -> None:
    common = ["--nproc-per-node", "2", "--master-addr", "10.77.0.1", "--master-port", "29511"]
    options = [[*common, "--node-rank", str(number)] for number in range(2)]
    for number, output in enumerate(_torchrun(environment, options, [str(tmp_path / "train.py")])):
        assert JOINED in output, output
        for rank in (2 * number, 2 * number + 1):
            assert f"rank {rank} has 10" in output


def test_mpirun_on_two_hosts(tmp_path: Path, environment: dict[str, str]) -> None:
    """MPI carries the handshake, and is over before the first collective."""
    pytest.importorskip("mpi4py")
    mpirun = BIN / "mpirun"
    if not mpirun.exists():
        pytest.skip("there is no mpirun")
    script = tmp_path / "collectives.py"
    script.write_text(COLLECTIVES)
    key = environment.pop("SECURECOLL_KEY_FILE")
    with hosts(2, (4,)) as made:
        shell = executable(tmp_path / "shell", REMOTE_SHELL.format(lab=made.name))
        words = [str(mpirun), "-launcher-exec", str(shell), "-n", "4", "-hosts", "10.77.0.1:2,10.77.0.2:2"]
        words += ["-genv", "SECURECOLL_KEY_FILE", key, sys.executable, str(script)]
        done = subprocess.run(
            on(made.host(0), *words), env=environment, capture_output=True, text=True, timeout=100, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count(JOINED) == 4, done.stderr
    found = dict(re.findall(r"rank (\d): (\d+) results are NumPy's", done.stdout))
    assert found.keys() == {"0", "1", "2", "3"} and min(map(int, found.values())) > 100


def test_the_lines_for_srun_start_ranks_by_its_variables(tmp_path: Path, environment: dict[str, str]) -> None:
    """Not Slurm itself, which is not here: stand-ins, that number tasks as it does."""
    text = (ROOT / "docs/launching.md").read_text()
    lines = re.findall(r"^\$ ((?:.*scontrol|srun).+)$", text, re.MULTILINE)
    assert len(lines) == 2 and "--ntasks-per-node 4" in lines[1]
    batch = tmp_path / "batch"
    batch.write_text("\n".join(("set -e", lines[0], lines[1].replace("per-node 4", "per-node 1"))))
    environment["PATH"] = f"{tmp_path}:{BIN}:{environment['PATH']}"
    environment["SLURM_JOB_NODELIST"] = "node[0-1]"
    executable(tmp_path / "scontrol", SCONTROL)
    with hosts(2, (4,)) as made:
        executable(tmp_path / "srun", SRUN.format(lab=made.name))
        done = subprocess.run(
            ["ip", "netns", "exec", made.host(0), "sh", str(batch)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("members 0,1 on 2 hosts, TCP") == 2, done.stderr
    assert "rank 0 has 3" in done.stdout and "rank 1 has 3" in done.stdout


@pytest.mark.slow
def test_f7_a_worker_that_is_killed_is_started_again_with_the_others_on_both_hosts(
    tmp_path: Path, environment: dict[str, str]
) -> None:
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
    elastic = ROOT / "examples" / "elastic.py"
    output = "".join(_torchrun(environment, options, [str(elastic), str(tmp_path / "state.pt")]))
    assert output.count("✓") == 3 and "✗" not in output, output
    assert output.count("joined: members 0,1 on 2 hosts") == 4, output  # twice, each with two ranks
