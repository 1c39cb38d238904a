"""The run that a GPU gets, on the emulated device: to its end, with a complete report that tells failures."""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from gpu_check import aesgcm
from gpu_check.__main__ import STEPS, Step, main
from gpu_check.cubins import sources
from gpu_check.findings import Content, Findings, Skipped
from gpu_check.report import Entry, Report

EMULATED = ["--emulate", "--smallest", "--out"]

PLANTED = """
import time

def fails(target, findings):
    findings.note("it began")
    raise RuntimeError("planted")

def fails_a_check(target, findings):
    with findings.check("a wrong one"):
        assert 1 == 2, "planted, too"
    with findings.check("a right one"):
        pass

def hangs(target, findings):
    findings.note("it began")
    time.sleep(600)

def passes(target, findings):
    findings.note("it was run")
"""


def run(folder: Path, steps: tuple[Step, ...], *options: str) -> tuple[int, dict[str, Any], str]:
    """Exit status, JSON and Markdown."""
    status = main([*EMULATED, str(folder), *options], steps)
    (document,), (text,) = folder.glob("*.json"), folder.glob("*.md")
    return status, json.loads(document.read_text()), text.read_text()


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a report; steps find the module ``planted``."""
    (tmp_path / "planted.py").write_text(PLANTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "out"


def test_every_step_runs_to_its_end_on_the_emulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    status, document, text = run(tmp_path, STEPS)
    results = {step["name"]: step["result"] for step in document["steps"]}
    assert status == 0 and set(results.values()) == {"passed"}, text
    assert list(results) == [step.name for step in STEPS]
    assert document["complete"] and "cut off" not in text
    steps = {step["name"]: step["content"] for step in document["steps"]}
    checks = {name: {check["name"] for check in content["checks"]} for name, content in steps.items()}
    assert len(checks["probes"]) >= 10 and len(checks["answers"]) >= 4
    assert {f"{way}, {ranks} ranks" for way in ("gloo", "staged", "mapped") for ranks in (2, 4)} == checks[
        "collectives"
    ]
    assert any("captured" in note for note in steps["capture"]["notes"])
    kernels = {row[0] for row in steps["rates"]["tables"][0]["rows"]}
    assert kernels == {"sc_seal", "sc_verify", "sc_commit", "sc_commit_seal", "verify, then commit"}
    assert sum("trap" in note or "AuthenticationError" in note for note in steps["tampering"]["notes"]) == 4
    for step in STEPS:
        assert f"## {step.title}\n" in text


def test_a_failure_is_told_and_the_steps_behind_it_run(planted: Path) -> None:
    steps = (
        Step("one", "One", "planted:fails", 20),
        Step("two", "Two", "planted:fails_a_check", 20),
        Step("three", "Three", "planted:passes", 20),
        Step("four", "Four", "planted:no_such_function", 20),
    )
    status, document, text = run(planted, steps)
    assert status == 1
    assert [step["result"] for step in document["steps"]] == ["failed", "failed", "passed", "failed"]
    assert [step["reason"] for step in document["steps"]][:3] == ["RuntimeError: planted", "a wrong one", ""]
    assert document["steps"][0]["content"]["notes"] == ["it began"]
    assert "| a wrong one | failed |" in text and "AssertionError: planted, too" in text
    assert "| a right one | passed |" in text and "no_such_function" in text


def test_a_step_that_hangs_is_ended_and_what_it_found_is_kept(planted: Path) -> None:
    # On the emulated device each step has four times its seconds, all of them no more than --minutes.
    steps = (Step("hang", "Hang", "planted:hangs", 30), Step("late", "Late", "planted:passes", 30))
    status, document, _ = run(planted, steps, "--minutes", "0.15")
    hang, late = document["steps"]
    assert status == 1 and hang["result"] == "failed" and hang["reason"] == "not done after 9 s"
    assert hang["content"]["notes"] == ["it began"]
    assert (late["result"], late["reason"]) == ("skipped", "no time was left")


def test_a_run_that_is_cut_off_leaves_what_it_had(tmp_path: Path) -> None:
    report = Report(tmp_path / "cut", "A run", "today")
    report.entries.append(Entry("one", "One", "passed", content=Content(notes=["a | b\nc"])))
    report.entries.append(Entry("two", "Two", "running", reason="a | b\nc"))
    report.write()
    text = (tmp_path / "cut.md").read_text()
    assert "cut off" in text and "| Two | running | 0.0 | a \\| b / c |" in text
    assert json.loads((tmp_path / "cut.json").read_text())["complete"] is False


def test_findings_are_on_disk_after_each_addition(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    findings = Findings(file)
    table = findings.table("Numbers", "a", "b")
    findings.row(table, 1, "x")
    with findings.check("right"):
        pass
    with findings.check("elsewhere"):
        raise Skipped("not here")
    with findings.check("wrong"):
        raise ValueError("why")
    content = Content.read(file)
    assert content.tables[0].rows == [[1, "x"]]
    assert [(c.name, c.result, c.detail) for c in content.checks] == [
        ("right", "passed", ""),
        ("elsewhere", "skipped", "not here"),
        ("wrong", "failed", "ValueError: why"),
    ]


def test_machine_code_of_different_sources_has_different_names() -> None:
    all_of_them = {source for kind in ("tensor", "portable", "names") for source in sources(kind)}
    assert len({source.stem for source in all_of_them}) == len(all_of_them) >= 5
    assert all(source.exists() for source in all_of_them)


def test_what_stands_in_for_cryptography_seals_alike() -> None:
    generator = random.Random(seed := secrets.randbits(32))
    print(f"seed {seed}")
    for size in (0, 1, 15, 16, 1000):
        key, nonce, text = (generator.randbytes(n) for n in (32, 12, size))
        for data in (None, generator.randbytes(32)):
            assert aesgcm.AESGCM(key).encrypt(nonce, text, data) == AESGCM(key).encrypt(nonce, text, data)
