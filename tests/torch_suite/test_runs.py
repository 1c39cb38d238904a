"""The runner of torch's suite notices what it should."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import time
import unittest
from pathlib import Path

import pytest

from tests.torch.ranks import key_for
from tests.torch_suite import exceptions, run, runs
from tests.torch_suite.exceptions import EXCEPTED, Excepted
from tests.torch_suite.runs import SETTINGS, Outcome, Setting, Status

ROOT = Path(__file__).resolve().parents[2]
HERE = Setting("securecoll", 2)
PASSED, SKIPPED, FAILED = (Outcome(status, why=f"{status.value} because") for status in Status)


class Example(unittest.TestCase):
    """Not collected: its methods are run by name."""

    __test__ = False

    def passes(self) -> None:
        os.write(1, b"said on the way\n")

    def skips(self) -> None:
        self.skipTest("not here")

    def fails(self) -> None:
        self.assertEqual(1, 2)

    def dies(self) -> None:
        os._exit(3)

    def hangs_with_a_child(self) -> None:
        if os.fork() == 0:
            Path(os.environ["CHILD"]).write_text(str(os.getpid()))
        time.sleep(600)


@pytest.mark.parametrize(
    ("name", "status", "why"),
    [
        ("passes", Status.PASSED, ""),
        ("skips", Status.SKIPPED, "not here"),
        ("fails", Status.FAILED, "AssertionError: 1 != 2"),
        ("dies", Status.FAILED, "the process that runs the test died"),
    ],
)
def test_how_a_test_ended_is_told(name: str, status: Status, why: str) -> None:
    outcome = runs._run(Example(name), 60)
    assert (outcome.status, outcome.reason) == (status, why)
    assert outcome.output == ("said on the way\n" if name == "passes" else "")


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "child"
    monkeypatch.setenv("CHILD", str(note))
    outcome = runs._run(Example("hangs_with_a_child"), 2)
    assert (outcome.status, outcome.reason) == (Status.FAILED, "still running after 2 s")
    state = Path("/proc", note.read_text(), "stat")
    deadline = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the child is still there"
        time.sleep(0.01)


def impersonate(key: Path) -> None:
    """In a process of its own, as a run."""
    os.environ.update(BACKEND="gloo", GROUPS="securecoll", WORLD_SIZE="1", SECURECOLL_KEY_FILE=str(key))
    from tests.torch_suite import suite

    dist = suite.dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for group in (dist.group.WORLD, dist.new_group([0]), dist.new_group([0], backend="gloo")):
        assert dist.get_backend(group) == "gloo"
        assert group._get_backend(suite.torch.device("cpu")).name() == "securecoll"
    with pytest.raises(AssertionError, match="a group of gloo was made in a run over securecoll"):
        dist.new_group([0], backend="cpu:gloo")
    suite.GROUPS = "gloo"
    with pytest.raises(AssertionError, match="the default group is made of securecoll, not of gloo"):
        suite.Suite("test_get_rank").run_test("test_get_rank", None)


def test_groups_that_the_suite_takes_for_gloos_are_securecolls(tmp_path: Path) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=impersonate, args=(key_for(tmp_path),))
    process.start()
    try:
        process.join(60)
        assert process.exitcode == 0, "see its traceback"
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize(
    ("outcome", "reference", "expected"),
    [
        (PASSED, PASSED, []),
        (SKIPPED, SKIPPED, []),
        (FAILED, PASSED, ["failed because"]),
        (FAILED, SKIPPED, ["failed because"]),
        (SKIPPED, PASSED, ["runs for the reference, and did not run: skipped because"]),
        (SKIPPED, FAILED, ["runs for the reference, and did not run: skipped because"]),
    ],
)
def test_what_counts_as_wrong(outcome: Outcome, reference: Outcome, expected: list[str]) -> None:
    assert [problem for _, problem in run.judge(HERE, {"test_a": outcome}, {"test_a": reference})] == expected


@pytest.mark.parametrize(
    ("excepted", "outcome", "expected"),
    [
        (Excepted("test_a", ("securecoll",), "why"), FAILED, []),
        (Excepted("test_a", ("gloo",), "why"), FAILED, ["failed because"]),
        (Excepted("test_b", ("securecoll",), "why"), FAILED, ["failed because"]),
        (Excepted("test_a", ("securecoll",), "why"), PASSED, ["passed, and need not be excepted any more"]),
        (Excepted("test_a", ("gloo",), "why"), PASSED, []),
        (Excepted("test_a", ("securecoll",), "why", only_under_load=True), PASSED, []),
        (Excepted("test_a", ("securecoll",), "why"), SKIPPED, ["is excepted, and does not run: skipped because"]),
    ],
)
def test_what_an_exception_excuses(
    excepted: Excepted, outcome: Outcome, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exceptions, "EXCEPTED", (excepted,))
    assert [problem for _, problem in run.judge(HERE, {"test_a": outcome}, {})] == expected


def test_the_docs_show_the_exceptions() -> None:
    assert f"\n\n{exceptions.table()}\n" in (ROOT / "docs" / "torch.md").read_text()


def test_exceptions_name_tests_of_the_suite() -> None:
    torch = importlib.util.find_spec("torch")  # does not import it
    assert torch is not None and torch.origin is not None
    text = Path(torch.origin).with_name("testing").joinpath("_internal/distributed/distributed_test.py").read_text()
    for excepted in EXCEPTED:
        assert f"def {excepted.test}(" in text
        assert excepted.names and set(excepted.names) <= {setting.name for setting in SETTINGS}
    assert len({excepted.test for excepted in EXCEPTED}) == len(EXCEPTED)
