"""The comparison across hosts: its arithmetic, and one short run."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hosts
import pytest
from hosts import Case, payload_rate, verdicts
from peers import MIB, Row

LINK = {"rate": 250e6, "payload_rate": 239e6, "plain_rate": 237e6, "plain_rate_unshaped": 1e9}


def case(shaped: bool, ranks: int, nbytes: int, **median_us: float) -> Case:
    return Case(2, Row("all_reduce", nbytes, ranks, "tcp", median_us=median_us), shaped)


def test_a_frame_carries_less_than_its_bytes() -> None:
    assert payload_rate(1514.0) == 1448.0


def test_a_rate_counts_what_enters_a_host_once() -> None:
    assert case(True, 2, 64 * MIB, securecoll=1e6).rate("securecoll") == 64 * MIB
    assert case(True, 4, 64 * MIB, ring=2e6).rate("ring") == 32 * MIB


def test_targets() -> None:
    large = 64 * MIB
    cases = [
        case(False, 2, 8, securecoll=1.0, securecoll_torch=50.0, gloo=100.0),
        case(False, 2, large, securecoll_torch=90e3, securecoll_aegis_torch=80e3, gloo=90e3),
        case(True, 2, large, securecoll=large / 0.9 / 239, securecoll_torch=1.0, gloo=1.0),
        case(True, 4, large, hierarchical=300e3, ring=390e3),
    ]
    found = verdicts(cases, large, LINK, {"cpu_ms": 150.0})
    assert [verdict.met for verdict in found] == [True] * 6
    assert [verdict.reached for verdict in found] == ["1.00x", "1.12x", "2.00x", "0.90", "1.30x", "150 ms"]
    worse = [
        case(False, 2, 8, securecoll_torch=50.0, gloo=99.0),
        case(False, 2, large, securecoll_torch=91e3, securecoll_aegis_torch=91e3, gloo=90e3),
        case(True, 2, large, securecoll=large / 0.89 / 239),
        case(True, 4, large, hierarchical=300e3, ring=389e3),
    ]
    assert not any(verdict.met for verdict in verdicts(worse, large, LINK, {"cpu_ms": 151.0}))
    nothing = verdicts([], large, LINK, None)
    assert len(nothing) == 6 and all(verdict.reached is None and not verdict.met for verdict in nothing)


def test_a_short_run_measures_every_row(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("iproute2 is not installed")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("gloo needs torch")
    file = tmp_path / "out.json"
    words = [sys.executable, hosts.__file__, "--quick", "--size", "1M", "--rounds", "1", "--seconds", "0.01"]
    if importlib.util.find_spec("matplotlib") is not None:
        words += ["--plot", str(tmp_path / "out.svg")]
    done = subprocess.run([*words, "--json", str(file)], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 2 and ("Operation not" in done.stderr or "RTNETLINK" in done.stderr):
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(file.read_text())
    shown = [(case["shaped"], case["row"]["ranks"], case["row"]["bytes"]) for case in document["cases"]]
    pair = [(False, 2, 8), (False, 2, MIB), (True, 2, MIB)]
    assert shown == [*pair, *((True, 4, size) for size in (1 << 10, 1 << 16, MIB))]
    for case_ in document["cases"]:
        assert set(case_["row"]["wrong"].values()) == {0}
        assert all(time > 0 for time in case_["row"]["median_us"].values())
    assert 0 < document["link"]["plain_rate"] <= 1.05 * document["link"]["payload_rate"]
    # A cable's rate is what binds: nobody is faster than it.
    (shaped,) = [c for c in document["cases"] if (c["shaped"], c["row"]["ranks"], c["row"]["bytes"]) == pair[2]]
    least_us = MIB / document["link"]["rate"] * 1e6
    assert min(shaped["row"]["median_us"].values()) > 0.7 * least_us
    assert document["joining"] is None and len(document["verdicts"]) == 6
    if "--plot" in words:
        assert "<svg" in (tmp_path / "out.svg").read_text()


def test_without_root_it_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hosts.main(["--quick"]) == 2
    assert "need root" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [0, 3])
def test_wrong_results_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: int
) -> None:
    """Whoever is fast and wrong fails the run."""
    measured = case(True, 2, MIB, securecoll=1.0)
    measured.row.wrong = {"securecoll": wrong, "gloo": 0}
    document = {
        "cases": [measured],
        "link": LINK,
        "verdicts": [],
        "aead": {"kernel_seal_gbs": 1.0, "kernel_open_gbs": 1.0},
        "machine": {"cpu": "", "cores": 2, "kernel": ""},
        "versions": {},
    }
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(hosts, "run", lambda options: document)
    assert hosts.main(["--quick"]) == (1 if wrong else 0)
    assert ("wrong results by securecoll" in capsys.readouterr().err) == bool(wrong)


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--rate", "0"], ["--size", "8"], ["--plot", "x.pdf"]], ids=str)
def test_what_cannot_be_measured_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        hosts.parse(words)
