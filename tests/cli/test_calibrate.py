"""``securecoll calibrate`` runs as a job and writes a file that its ranks join with."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from securecoll import _engine, calibrate, rates
from securecoll.cli import main
from securecoll.plan.tuner import HOST
from securecoll.suites import Suite

WORDS = [sys.executable, "-c", "from securecoll.cli import main; main()", "calibrate"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    return {**os.environ, "SECURECOLL_KEY_FILE": str(key), "SECURECOLL_TRANSPORT": "tcp", "SECURECOLL_IFNAME": "lo"}


def run_all(words: list[list[str]], environment: dict[str, str]) -> list[tuple[int, str]]:
    running = [
        subprocess.Popen(w, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for w in words
    ]
    return [(p.returncode, said) for p in running for said in [p.communicate(timeout=60)[0]]]


def test_ranks_that_meet_in_a_folder_write_a_file(tmp_path: Path, environment: dict[str, str]) -> None:
    file, meeting = tmp_path / "rates.json", tmp_path / "meeting"
    meeting.mkdir()
    words = [[*WORDS, str(file), "--exchange", str(meeting), "--size", "2", "--rank", str(rank)] for rank in (0, 1)]
    first, second = run_all(words, environment)
    assert (first[0], second) == (0, (0, "")), first[1]
    assert "between hosts" in first[1]
    found = rates.load(file)
    assert found.seal != HOST.seal and found.network.link != HOST.network.link
    assert list(tmp_path.glob(".rates.json*")) == []


@pytest.mark.skipif(not _engine.aead_names(Suite.AEGIS_256X4), reason="this CPU has no AES instructions")
def test_the_cipher_is_that_of_the_suite_asked_for(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, meeting = tmp_path / "rates.json", tmp_path / "meeting"
    meeting.mkdir()
    words = [*WORDS, str(file), "--suite", "aegis-256x4", "--exchange", str(meeting), "--size", "2"]
    results = run_all([[*words, "--rank", str(rank)] for rank in (0, 1)], environment)
    assert [status for status, _ in results] == [0, 0], results
    asked: list[str] = []
    monkeypatch.setattr(calibrate._engine, "aead_rate", lambda name, *_: (asked.append(name), (1.0, 2.0))[1])
    costs = calibrate._local("aegis-256x4")
    assert set(asked) == {_engine.aead_name(Suite.AEGIS_256X4)}
    assert (costs.seal, costs.open) == (1e-9, 0.5e-9)


@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py")
def test_ranks_of_an_mpi_job_write_a_file(tmp_path: Path, environment: dict[str, str]) -> None:
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        pytest.skip("needs mpirun")
    (result,) = run_all([[str(mpirun), "-n", "2", *WORDS, str(tmp_path / "rates.json")]], environment)
    assert result[0] == 0, result[1]
    assert rates.load(tmp_path / "rates.json").seal != HOST.seal


def test_a_rank_alone_is_told_how_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK"):
        monkeypatch.delenv(name, raising=False)
    found = CliRunner().invoke(main, ["calibrate", "x.json"])
    assert found.exit_code == 2 and "once for each rank" in found.output
    found = CliRunner().invoke(main, ["calibrate", "x.json", "--exchange", "."])
    assert found.exit_code == 2 and "--rank and --size" in found.output


def test_ranks_without_a_key_say_so(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("SECURECOLL_")}
    words = [*WORDS, str(tmp_path / "rates.json"), "--exchange", str(tmp_path), "--timeout", "5"]
    results = run_all([[*words, "--size", "2", "--rank", str(rank)] for rank in (0, 1)], bare)
    assert all(status == 1 and "securecoll keygen" in said for status, said in results)
    assert not (tmp_path / "rates.json").exists()
