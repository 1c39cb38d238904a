"""The comparison with peers: its arithmetic, and one short run."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import peers
import pytest
from peers import MIB, ContenderError, Group, Kind, Row, Verdict, durations, plan, verdicts

from securecoll import _engine

AEAD = {"seal_gbs": 10.0, "open_gbs": 9.0, "cryptography_seal_gbs": 10.0, "cryptography_open_gbs": 10.0}
MEMORY = {"securecoll_torch": {"total_bytes": 40 * MIB}}


def large(**median_us: float) -> Row:
    return Row("all_reduce", 64 * MIB, 2, floor_us=14_000.0, median_us=median_us)


def small(**median_us: float) -> Row:
    return Row("all_reduce", 8, 2, median_us=median_us)


def test_an_iteration_lasts_from_the_last_rank_in_to_the_last_rank_out() -> None:
    early = {"begun": [1.0, 10.0], "ended": [5.0, 12.0]}
    late = {"begun": [3.0, 10.0], "ended": [4.0, 15.0]}
    assert durations([early, late]) == [(2.0, 4.0), (5.0, 5.0)]


def test_ratios_compare_with_the_faster_peer_and_say_nothing_without_one() -> None:
    row = large(securecoll=10.0, mpich=30.0, openmpi=20.0)
    assert row.ratio(["mpich", "openmpi"], "securecoll") == 2.0
    assert row.ratio(["gloo"], "securecoll") is None
    assert row.ratio(["mpich"], "securecoll_torch") is None


def test_the_fraction_of_the_floor_is_one_when_nothing_but_the_cipher_takes_time() -> None:
    assert large(securecoll=14_000.0).fraction == 1.0
    assert large(securecoll=28_000.0).fraction == 0.5
    assert large(gloo=1.0).fraction is None


def test_each_suite_has_a_floor_of_its_own() -> None:
    row = large(securecoll=28_000.0, securecoll_aegis=14_000.0)
    row.aegis_floor_us = 7_000.0
    assert row.fraction == row.aegis_fraction == 0.5
    del row.median_us["securecoll_aegis"]
    assert row.aegis_fraction is None


def test_the_first_collective_runs_every_size_and_the_others_the_largest() -> None:
    options = peers.parse(["--ops", "all_reduce,reduce", "--sizes", "64K,8"])
    assert list(plan(options)) == [("all_reduce", 8), ("all_reduce", 65536), ("reduce", 65536)]


def by_name(found: list[Verdict]) -> dict[str, Verdict]:
    return {verdict.what: verdict for verdict in found}


def test_two_ranks_are_held_to_their_targets() -> None:
    rows = [
        large(
            securecoll=16_000.0,
            securecoll_torch=16_000.0,
            securecoll_aegis_torch=16_000.0,
            gloo=40_000.0,
            mpich=30_000.0,
            openmpi=24_000.0,
        ),
        small(securecoll_torch=20.0, gloo=160.0),
    ]
    found = verdicts(rows, AEAD, MEMORY, 2)
    missed = [verdict.what for verdict in found if not verdict.met]
    assert len(found) == 9 and missed == ["AEAD open at 64 KiB over cryptography's"]
    rows = [
        large(securecoll=16_500.0, securecoll_torch=16_100.0, gloo=40_000.0, mpich=30_000.0, openmpi=24_000.0),
        small(securecoll_torch=20.1, gloo=160.0),
    ]
    found = verdicts(rows, AEAD, {"securecoll": {"total_bytes": 48 * MIB + 1}}, 2)
    assert [verdict.met for verdict in found] == [True] + [False] * 8


def test_four_ranks_are_held_to_theirs() -> None:
    rows = [
        large(securecoll_torch=50_000.0, securecoll_aegis_torch=50_100.0, gloo=100_000.0),
        small(securecoll_torch=150.0, gloo=740.0),
    ]
    found = by_name(verdicts(rows, AEAD, MEMORY, 4))
    assert found["all_reduce 64 MiB, gloo's time over ours, both through torch"].met
    assert not found["all_reduce 64 MiB, gloo's time over ours, both through torch, in suite aegis-256x4"].met
    assert not found["all_reduce 8 B, gloo's time over ours, both through torch"].met


def test_over_tcp_gloo_alone_is_a_peer() -> None:
    rows = [large(securecoll_torch=40_000.0, gloo=40_000.0, mpich=1.0), small(securecoll_torch=20.0, gloo=39.0)]
    found = peers.verdicts_over_tcp(rows, AEAD, MEMORY, 2)
    assert [(verdict.reached, verdict.met) for verdict in found] == [("1.00x", True), ("1.95x", False)]
    assert peers.verdicts_over_tcp(rows, AEAD, MEMORY, 4) == []
    assert all(verdict.reached is None and not verdict.met for verdict in peers.verdicts_over_tcp([], {}, {}, 2))


def test_a_short_run_over_tcp_shares_no_memory(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    command = [sys.executable, peers.__file__, "--transport", "tcp", "--contenders", "securecoll", "--sizes", "8,64K"]
    command += ["--ops", "all_reduce", "--rounds", "1", "--seconds", "0.02", "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(file.read_text())
    assert [row["transport"] for row in document["rows"]] == ["tcp", "tcp"]
    assert document["memory"]["securecoll"]["shared_bytes"] == 0


def test_what_was_not_measured_is_not_met() -> None:
    found = verdicts([], {}, {}, 2)
    assert len(found) == 9
    assert all(verdict.reached is None and not verdict.met for verdict in found)


def test_a_contender_that_is_not_installed_is_named(tmp_path: Path) -> None:
    reason = Kind("openmpi", tmp_path, mpi=True).missing()
    assert reason is not None and str(tmp_path) in reason


def test_a_contender_that_dies_is_an_error_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such luck')"]
    monkeypatch.setattr(Kind, "commands", lambda *_: [command, command])
    with pytest.raises(ContenderError, match=r"(?s)gloo did not start.*no such luck"):
        Group(Kind("gloo", tmp_path), 2, tmp_path, {}, 20.0)


def test_a_short_run_measures_and_checks_every_contender(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    names = ["securecoll"]
    if _engine.aead_names(4):
        names.append("securecoll_aegis")
    if importlib.util.find_spec("torch") is not None:
        names.append("gloo")
    if importlib.util.find_spec("mpi4py") is not None and Path(sys.executable).with_name("mpirun").exists():
        names.append("mpich")
    command = [sys.executable, peers.__file__, "--ranks", "2", "--contenders", ",".join([*names, "openmpi"])]
    command += ["--openmpi", str(tmp_path), "--sizes", "8,64K", "--ops", "all_reduce,all_gather"]
    command += ["--rounds", "2", "--seconds", "0.02", "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without openmpi: no mpirun in" in result.stdout
    document = json.loads(file.read_text())
    assert [(row["op"], row["bytes"]) for row in document["rows"]] == [
        ("all_reduce", 8),
        ("all_reduce", 65536),
        ("all_gather", 65536),
    ]
    for row in document["rows"]:
        assert row["ranks"] == 2 and row["transport"] == "shm" and row["floor_us"] > 0
        assert set(row["median_us"]) == set(names) and all(time > 0 for time in row["median_us"].values())
        assert all(row["slowest_us"][name] > 0 for name in names)
        assert set(row["wrong"].values()) == {0}
        assert min(row["sealed"]) > 0 and min(row["opened"]) > 0
        if "securecoll_aegis" in names:
            assert row["aegis_floor_us"] > 0 and min(row["aegis_sealed"]) > 0 and min(row["aegis_opened"]) > 0
    assert set(document["aead"]) == {*AEAD, "kernels", "kernel_seal_gbs", "kernel_open_gbs"}
    if "securecoll_aegis" in names:
        assert document["versions"]["securecoll_aegis"].endswith("aegis-256x4")
        assert document["versions"]["securecoll"].endswith("aes-256-gcm")
        assert set(document["aegis"]) == {"seal_gbs", "open_gbs", "kernels", "kernel_seal_gbs", "kernel_open_gbs"}
        assert document["aegis"]["kernels"] == _engine.aead_name(4)
    assert document["memory"]["securecoll"]["shared_bytes"] > 0
    assert document["machine"]["cores"] >= 1
