"""``securecoll plan`` shows the plan that the engine would run, what was proven of it, and a picture."""

from __future__ import annotations

import json
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from securecoll import plan as plans
from securecoll.cli import main, survey
from securecoll.cli import plan as command
from securecoll.cli.fabric import FabricType
from securecoll.cli.units import sized
from securecoll.codes import Collective
from securecoll.plan import tuner


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments])


def shown(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_ring_seals_once_and_forwards() -> None:
    plan = shown("all_reduce", "--ranks", "8", "--bytes", "1M", "--algorithm", "ring")
    assert plan["proof"]["bytes"] == plan["bytes"] == 1 << 20
    assert plan["proof"]["sealed"] == plan["sealed_bytes"] == [1 << 20] * 8
    assert plan["proof"]["opened"] == plan["opened_bytes"] == [2 * (1 << 20) * 7 // 8] * 8
    assert [step["op"] for step in plan["steps"]] == ["SEAL", *["REDUCE"] * 7, *["FORWARD"] * 6, "OPEN"]
    assert 0 < plan["predicted_seconds"] < 1


@pytest.mark.parametrize("collective", [collective.name.lower() for collective in Collective])
def test_every_collective_is_proven_with_each_of_its_algorithms(collective: str) -> None:
    for algorithm in plans.ALGORITHMS[Collective[collective.upper()]]:
        plan = shown(collective, "--ranks", "3", "--bytes", "64K", "--algorithm", algorithm)
        assert plan["algorithm"] == algorithm
        assert len(plan["proof"]["sealed"]) == 3
        result = run(collective, "--ranks", "3", "--bytes", "64K", "--algorithm", algorithm)
        assert result.exit_code == 0 and "no deadlock" in result.output


def test_the_plan_shown_is_the_one_that_the_communicator_would_run() -> None:
    name, chunk, wave = tuner.choose(Collective.ALL_REDUCE, 4, 1 << 20)
    made = plans.plan(Collective.ALL_REDUCE, 2, 4, nbytes=1 << 20, itemsize=1, chunk=chunk, wave=wave, algorithm=name)
    plan = shown("all_reduce", "--ranks", "4", "--bytes", "1M", "--rank", "2")
    assert plan["identity"] == made.identity.hex()
    assert (plan["rank"], len(plan["steps"])) == (2, len(made.steps))


@pytest.mark.parametrize("where", [["--ranks", "4", "--bytes", "256K"], ["--topology", "hosts=8,gpus=4"]])
def test_a_suite_is_priced_by_its_own_rates(where: list[str]) -> None:
    suite = ["--suite", "aegis-256x4"]
    usual, other = shown("all_reduce", *where), shown("all_reduce", *where, *suite)
    if "rows" in usual:
        seconds = [min(row["seconds"] for row in plan["rows"]) for plan in (usual, other)]
    else:
        seconds = [plan["predicted_seconds"] for plan in (usual, other)]
        choice = tuner.choose(Collective.ALL_REDUCE, 4, 256 << 10, rates=tuner.AEGIS_HOST)
        assert (other["algorithm"], other["chunk_bytes"]) == (choice.algorithm, choice.chunk)
    assert seconds[1] < seconds[0]
    rates = tuner.AEGIS_HOST
    said = f"seals {rates.seal / 1e9:g} and opens {rates.open / 1e9:g} GB/s"
    assert said in " ".join(run("all_reduce", *where, *suite).stdout.split())
    assert run("all_reduce", *where, "--suite", "rot13").exit_code == 2


def test_a_call_too_large_to_prove_at_once_is_proven_smaller_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "MOST_PROVEN", 100)
    plan = shown("all_reduce", "--ranks", "4", "--bytes", "64M")
    assert plan["bytes"] == 64 << 20
    assert plan["proof"]["bytes"] < 64 << 20 and plan["proof"]["chunks"] <= 100
    assert plan["sealed_bytes"] == [64 << 20] * 4
    assert f"at {sized(plan['proof']['bytes'])}" in run("all_reduce", "--ranks", "4", "--bytes", "64M").output


def test_a_chunk_is_taken_as_given() -> None:
    assert shown("all_gather", "--ranks", "2", "--bytes", "1M", "--chunk", "4K")["chunk_bytes"] == 4096


def test_the_picture_is_well_formed_and_names_every_rank(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    result = run("all_reduce", "--ranks", "8", "--algorithm", "ring", "--svg", str(path))
    assert result.exit_code == 0 and str(path) in result.output
    texts = {element.text for element in ET.fromstring(path.read_text()).iter() if element.text}
    assert {f"rank {rank}" for rank in range(8)} <= texts


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tree_reduce", "--ranks", "2"], "tree_reduce"),
        (["all_reduce"], "--ranks"),
        (["all_reduce", "--ranks", "0"], "--ranks"),
        (["all_reduce", "--ranks", "65"], "--ranks"),
        (["all_reduce", "--ranks", "2", "--bytes", "many"], "is not a number of bytes"),
        (["all_reduce", "--ranks", "2", "--bytes", "-1"], "is not a number of bytes"),
        (["all_reduce", "--ranks", "2", "--algorithm", "tree"], "one_shot, direct, ring"),
        (["--ranks", "2"], "Missing argument 'COLLECTIVE'"),
        (["all_reduce", "--ranks", "2", "--hosts", "3"], "--hosts 3 are more than 2 ranks"),
        (["--topology", "hosts=2"], "needs hosts and gpus"),
        (["--topology", "hosts=2,gpus=2,nodes=3"], "knows nothing of 'nodes'"),
        (["--topology", "hosts=0,gpus=2"], "hosts=0 is not a number of hosts"),
        (["--topology", "hosts=2,gpus=x"], "gpus=x is not a number of gpus"),
        (["--topology", "hosts=99999,gpus=8"], "are more than the 65536"),
        (["--topology", "hosts=2,gpus=2,net=fast"], "net=fast is not a rate"),
        (["--topology", "hosts=2,gpus=2,net=1.2.3GB/s"], "net=1.2.3GB/s is not a rate"),
        (["--topology", "hosts=2,gpus=2,hop=0us"], "hop=0us is not a time"),
        (["--topology", "hosts=2,gpus=2", "--ranks", "4"], "--topology goes with"),
        (["--topology", "hosts=2,gpus=2", "--algorithm", "ring"], "--algorithm needs a COLLECTIVE"),
        (["gather", "--topology", "hosts=2,gpus=2", "--algorithm", "ring"], "gather has the algorithms one_shot"),
        (["--topology", "hosts=2,gpus=2", "--svg", "/no/such/folder/plan.svg"], "No such file"),
        (["all_reduce", "--ranks", "2", "--chunk", "100"], "multiple of 64"),
        (["broadcast", "--ranks", "2", "--root", "2"], "root must be"),
        (["broadcast", "--ranks", "2", "--rank", "2"], "--rank 2"),
        (["all_reduce", "--ranks", "2", "--svg", "/no/such/folder/plan.svg"], "No such file"),
    ],
)
def test_wrong_arguments_are_one_readable_error(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert words in result.output
    assert not result.stdout or "Traceback" not in result.output


def test_a_plan_across_hosts_says_what_it_carries() -> None:
    plan = shown("all_reduce", "--ranks", "4", "--hosts", "2", "--bytes", "1M", "--algorithm", "hierarchical")
    assert plan["carried_bytes"] == plan["proof"]["carried"] == [1 << 19] * 4
    result = run("all_reduce", "--ranks", "4", "--hosts", "2", "--bytes", "1M", "--algorithm", "hierarchical")
    assert "carries 512 KiB to other hosts" in result.output


# Groups that need not exist

FABRIC = "hosts=512,gpus=8,net=50GB/s"


def test_4096_ranks_are_priced_in_seconds() -> None:
    start = time.perf_counter()
    survey = shown("--topology", FABRIC)
    assert time.perf_counter() - start < 20
    assert [row["collective"] for row in survey["rows"]] == [collective.name.lower() for collective in Collective]
    assert all(row["default"] and row["seconds"] > 0 for row in survey["rows"])
    assert (survey["sockets"], survey["socket_bytes"]) == (17, 17 * 2 * 64 * (65536 + 16))


def test_a_survey_of_a_collective_compares_its_algorithms() -> None:
    rows = {row["algorithm"]: row for row in shown("all_reduce", "--topology", FABRIC)["rows"]}
    assert set(rows) == set(plans.ALGORITHMS[Collective.ALL_REDUCE])
    assert [name for name, row in rows.items() if row["default"]] == ["hierarchical"]
    whole = 64 << 20
    assert rows["hierarchical"]["sealed_bytes"] == rows["ring"]["sealed_bytes"] == [whole, whole]
    assert rows["hierarchical"]["link_bytes"] == 2 * whole * 511 // 512
    assert rows["ring"]["link_bytes"] == 2 * whole * 4095 // 4096
    assert (rows["hierarchical"]["sockets"], rows["one_shot"]["sockets"]) == (2, 4088)
    assert rows["hierarchical"]["seconds"] < rows["ring"]["seconds"]


def test_a_survey_agrees_with_the_proof_where_both_can_be_had() -> None:
    (row,) = shown("all_reduce", "--topology", "hosts=4,gpus=2", "--algorithm", "hierarchical")["rows"]
    plan = shown("all_reduce", "--ranks", "8", "--hosts", "4", "--algorithm", "hierarchical")
    for name in ("sealed_bytes", "opened_bytes", "carried_bytes"):
        assert row[name] == [min(plan[name]), max(plan[name])]


def test_a_survey_reads_well() -> None:
    result = run("broadcast", "--topology", "hosts=4,gpus=2,net=25Gbit/s,hop=10us", "--bytes", "1M")
    assert result.exit_code == 0
    assert "8 ranks, 2 on each of 4 hosts; a link of 3.125 GB/s for each host, 10 µs a hop; 1 MiB" in result.output
    assert "hierarchical" in result.output and "sockets a rank" in result.output


def test_the_picture_of_a_survey_has_a_curve_for_each_algorithm(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "cost.svg"
    result = run("all_reduce", "--topology", FABRIC, "--svg", str(path))
    assert result.exit_code == 0 and str(path) in result.output
    drawing = ET.fromstring(path.read_text())
    lines = [e for e in drawing.iter("{http://www.w3.org/2000/svg}g") if e.get("id", "").startswith("line2d")]
    assert len(lines) >= len(plans.ALGORITHMS[Collective.ALL_REDUCE])
    drawn = survey.curves(FabricType().convert(FABRIC, None, None), Collective.ALL_REDUCE, 1 << 20)
    for ranks, seconds in drawn.values():
        assert ranks == [8 << bit for bit in range(10)]
        assert all(0 < second < 1000 for second in seconds)


@pytest.mark.parametrize(
    ("text", "count"), [("8", 8), ("64K", 65536), ("64k", 65536), ("3M", 3 << 20), ("1G", 1 << 30), ("0", 0)]
)
def test_sizes_are_read_as_nccl_tests_reads_them(text: str, count: int) -> None:
    assert command.Size().convert(text, None, None) == count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (64 << 20, "64 MiB")]
)
def test_sizes_are_spelled_exactly_where_they_can_be(count: int, text: str) -> None:
    assert sized(count) == text
