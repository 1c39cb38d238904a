"""The benchmark of joining reports what the handshake costs, and notices what goes wrong in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.handshake_scale import Bystander, Group, fingerprints, main, measure, sample_of
from securecoll._engine import Secret
from securecoll.handshake import Session
from securecoll.handshake.session import root_count

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "handshake_scale.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_one_group_as_other_benchmarks_measure_it() -> None:
    cost = measure(5)
    assert (cost.ranks, cost.sampled) == (5, 5) and 0 < cost.cpu_ms <= cost.slowest_cpu_ms


def test_costs_of_each_group_are_reported(tmp_path: Path) -> None:
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    done = run("--ranks", "2", "8", "--json", str(out), "--plot", str(plot))
    assert done.returncode == 0, done.stderr
    two, eight = json.loads(out.read_text())
    assert (two["ranks"], two["sampled"], eight["ranks"], eight["sampled"]) == (2, 2, 8, 8)
    # hello 164, auth 200 with endpoints of 144, fin 36; rank 0 publishes 48 for each other member beside.
    assert two["published_bytes"] == eight["published_bytes"] == 400
    assert eight["published_bytes_rank_0"] == 400 + 48 * 7
    assert eight["read_bytes"] == 8 * 400 + 48 * 7
    assert eight["handed_out_bytes"] == 8 * eight["read_bytes"]
    # Eight roots for each pair, one for each sender, one for children, in blocks of 64 bytes.
    assert eight["key_bytes"] == 64 * (8 * 7 + 8 + 1) == 64 * root_count(8)
    assert 0 < eight["cpu_ms"] <= eight["slowest_cpu_ms"]
    assert eight["by_round_ms"].keys() == {"hello", "auth", "wrap", "fin", "finish"}
    assert plot.read_text().rstrip().endswith("</svg>")


def test_of_a_large_group_a_sample_verifies_what_everyone_sent(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--ranks", "24", "--sample", "6", "--json", str(out)]) == 0
    (cost,) = json.loads(out.read_text())
    assert (cost["ranks"], cost["sampled"]) == (24, 6)
    assert cost["read_bytes"] == 24 * 400 + 48 * 23
    assert sample_of(24, 6) == [0, 4, 9, 13, 18, 23]
    assert sample_of(3, 16) == [0, 1, 2]


@pytest.mark.parametrize("round", ["auth", "fin"])
def test_a_wrong_message_of_one_that_is_not_sampled_is_noticed(
    round: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = getattr(Bystander, round)

    def wrong(self: Bystander, *args: Any) -> bytes:
        blob: bytes = answer(self, *args)
        return blob if self._rank != 7 else blob[:-1] + bytes((blob[-1] ^ 1,))

    monkeypatch.setattr(Bystander, round, wrong)
    assert main(["--ranks", "9", "--sample", "3"]) == 1
    assert "rank 7 failed" in capsys.readouterr().err


def test_roots_that_differ_between_two_ranks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(session: Session, ranks: list[int]) -> dict[tuple[int, int], bytes]:
        if session.rank == 4:
            session.p2p_tx[0] = Secret.random(32)
        return fingerprints(session, ranks)

    monkeypatch.setattr("benchmarks.handshake_scale.fingerprints", differing)
    with pytest.raises(RuntimeError, match="ranks 0 and 4 of 5 have other roots"):
        Group(5, [0, 2, 4]).run(lambda: None)


def test_a_group_of_one_does_not_join() -> None:
    done = run("--ranks", "1")
    assert done.returncode == 2 and "at least 2 ranks" in done.stderr


@pytest.mark.slow
def test_joining_stays_within_its_budget_up_to_4096_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert main(["--ranks", "512", "4096", "--sample", "16", "--json", str(out)]) == 0
    some, many = json.loads(out.read_text())
    assert some["cpu_ms"] < 150
    assert many["cpu_ms"] < 8 * 150
    assert many["read_bytes"] == 4096 * 400 + 48 * 4095
