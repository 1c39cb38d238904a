"""Every script for torchrun, on two ranks: each exits with 0 only if all that it claims is true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = {
    "fsdp2.py": (3, []),
    "tensor_parallel.py": (3, []),
    "checkpoint.py": (4, ["{folder}/checkpoint"]),
    "compiled_step.py": (3, ["--backend=aot_eager"]),
    "elastic.py": (3, ["{folder}/state.pt"]),
}
"""Claims that each makes, and its arguments."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_a_script_claims_is_true(script: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    claims, arguments = SCRIPTS[script]
    key = tmp_path / "job.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launcher += ["--max-restarts=1"] if script == "elastic.py" else []
    result = subprocess.run(
        [*launcher, str(EXAMPLES / script), *(a.format(folder=tmp_path) for a in arguments)],
        env={**os.environ, "SECURECOLL_KEY_FILE": str(key), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("✓") == claims and "✗" not in result.stdout, result.stdout + result.stderr


@pytest.mark.slow
def test_workers_of_ray_train_over_the_backend(tmp_path: Path) -> None:
    pytest.importorskip("ray.train")
    key = tmp_path / "job.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "ray_train.py")],
        env={**os.environ, "SECURECOLL_KEY_FILE": str(key)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0 and "✓ 2 workers" in result.stdout, result.stdout + result.stderr


def test_every_script_is_run() -> None:
    """One that talks to a process group is run here, or by the demo."""
    scripts = {p.name for p in EXAMPLES.glob("*.py") if "init_process_group" in p.read_text()}
    assert scripts == {*SCRIPTS, "digits_ddp.py"}
