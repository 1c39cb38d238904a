"""The programs as users start them: two ranks under mpirun and under torchrun, on the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from securecoll import _engine

ROOT = Path(__file__).resolve().parents[2]
MPIRUN = Path(sys.executable).with_name("mpirun")
SHORT = ["-b", "8", "-e", "64K", "-f", "8", "-n", "3", "-w", "1"]
COLLECTIVES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "alltoall"]


def start(launcher: str, script: Path, arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    if launcher == "mpirun":
        pytest.importorskip("mpi4py")
        if not MPIRUN.exists():
            pytest.skip(f"no {MPIRUN}: pip install mpich")
        command = [str(MPIRUN), "-n", "2", sys.executable]
    else:
        pytest.importorskip("torch")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    unconfigured = {name: value for name, value in os.environ.items() if not name.startswith("SECURECOLL_")}
    environment = {**unconfigured, "HOME": str(home), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, str(script), *arguments], env=environment, capture_output=True, text=True, timeout=120, cwd=home
    )


def check(result: subprocess.CompletedProcess[str], file: Path) -> dict[str, Any]:
    assert result.returncode == 0, result.stdout + result.stderr
    assert "# Out of bounds values : 0 OK" in result.stdout
    document: dict[str, Any] = json.loads(file.read_text())
    assert document["ranks"] == 2 and document["wrong"] == 0
    assert [row["size"] for row in document["rows"]] == [8, 64, 512, 4096, 32768]
    return document


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_two_ranks_under_mpirun_have_nothing_wrong(collective: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script = ROOT / "benchmarks" / f"{collective}_perf.py"
    document = check(start("mpirun", script, [*SHORT, "--json", str(file)], tmp_path), file)
    for row in document["rows"]:
        for timing in filter(None, (row["out_of_place"], row["in_place"])):
            factor = {"all_reduce": 1.0, "broadcast": 1.0, "reduce": 1.0}.get(collective, 0.5)
            assert timing["busbw_gbs"] == pytest.approx(factor * row["size"] / timing["time_us"] / 1e3)
            # Somebody sealed something, and no more than a naive all_reduce would.
            assert 0 < timing["sealed"] <= 2


@pytest.mark.skipif(not _engine.aead_names(4), reason="this CPU has no AES instructions")
def test_two_ranks_in_suite_4_have_nothing_wrong_and_say_which_it_is(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script = ROOT / "benchmarks" / "all_reduce_perf.py"
    result = start("mpirun", script, [*SHORT, "--suite", "aegis-256x4", "--json", str(file)], tmp_path)
    assert check(result, file)["cipher"] == "aegis-256x4"
    assert f"# aegis-256x4 by {_engine.aead_name(4)}: seals" in result.stdout


def test_two_ranks_under_torchrun_have_nothing_wrong(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script = ROOT / "benchmarks" / "all_reduce_perf.py"
    document = check(start("torchrun", script, [*SHORT, "-o", "avg", "--json", str(file)], tmp_path), file)
    assert document["launcher"] == "torchrun"


@pytest.mark.parametrize("options", [["--staged"], ["-d", "bfloat16"]], ids=["staged", "mapped"])
def test_two_ranks_on_emulated_devices_have_nothing_wrong(options: list[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    script = ROOT / "benchmarks" / "all_reduce_perf.py"
    arguments = ["--device", "emulated", *options, "-b", "8", "-e", "4K", "-f", "512", "-n", "1", "-w", "0"]
    result = start("mpirun", script, [*arguments, "--json", str(file)], tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "times mean nothing" in result.stdout
    document = json.loads(file.read_text())
    assert document["device"] == "emulated" and document["wrong"] == 0
    assert [row["size"] for row in document["rows"]] == [8, 4096]
    assert all(row[half]["sealed"] > 0 for row in document["rows"] for half in ("out_of_place", "in_place"))


def test_without_a_gpu_one_sentence_says_what_is_missing(tmp_path: Path) -> None:
    result = start("mpirun", ROOT / "benchmarks" / "all_reduce_perf.py", ["--device", "cuda"], tmp_path)
    if result.returncode == 0:
        pytest.skip("there is a GPU")
    assert result.returncode == 2 and "--device cuda" in result.stderr and "Traceback" not in result.stderr


def test_a_result_that_was_corrupted_under_mpirun_is_status_1(tmp_path: Path) -> None:
    script = tmp_path / "corrupting_perf.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "import numpy, securecoll\n"
        "from harness.collectives import ALL_REDUCE\n"
        "from harness.perf import main\n"
        "right = securecoll.Communicator.all_reduce\n"
        "def wrong(self, send, recv=None, *arguments, **options):\n"
        "    right(self, send, recv, *arguments, **options)\n"
        "    if self.rank == 1 and recv is not None:\n"
        "        recv.view(numpy.uint32)[0] ^= 1\n"
        "securecoll.Communicator.all_reduce = wrong\n"
        "sys.exit(main(ALL_REDUCE))\n"
    )
    result = start("mpirun", script, ["-b", "1K", "-e", "1K", "-n", "1"], tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "# Out of bounds values : 3 FAILED" in result.stdout


def test_ranks_with_different_keys_do_not_start(tmp_path: Path) -> None:
    for rank in range(2):
        key = tmp_path / f"{rank}.key"
        key.touch(0o600)
        key.write_bytes(bytes([rank + 1]) * 32)
    script = tmp_path / "two_keys_perf.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
        "from harness.collectives import ALL_REDUCE\n"
        "from harness.launch import detect\n"
        "from harness.perf import main\n"
        f"sys.exit(main(ALL_REDUCE, ['--key', f'{tmp_path}/{{detect().rank}}.key', '--timeout', '20']))\n"
    )
    result = start("mpirun", script, [], tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Out of bounds" not in result.stdout and "rank" in result.stderr
