"""The docs are checked, and the check finds what is wrong."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_check", ROOT / "docs" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_check"] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_is_wrong_with_the_docs(check: ModuleType) -> None:
    assert list(check.problems()) == []
    assert ROOT / "README.md" in check.PAGES and len(check.PAGES) > 5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[x](missing.md)", "no such file"),
        ("# Here\n[x](#there)", "no such heading"),
        ("# What is, and why\n[x](#what-is-and-why)", None),
        ("[x](page.md#here)\n# Here", None),
        ("[x](https://example.org/missing)", None),
    ],
)
def test_broken_links_are_found(check: ModuleType, tmp_path: Path, text: str, problem: str | None) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    found = list(check.broken_links(page))
    assert (problem is None and not found) or (problem is not None and problem in found[0])


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make nothing", "no target nothing"),
        ("make test ARGS=-x", None),
        ("securecoll forge", "no command forge"),
        ("A_KEY=1 .venv/bin/securecoll plan all_reduce --ranks 2 --nope", "no option --nope"),
        ("securecoll doctor --json  # says it all", None),
        ("mpirun -n 2 python benchmarks/missing_perf.py", "benchmarks/missing_perf.py does not exist"),
        ("ls; make nothing", "no target nothing"),
        ("torchrun train.py", None),
    ],
)
def test_commands_that_do_not_exist_are_found(
    check: ModuleType, tmp_path: Path, command: str, problem: str | None
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n$ {command}\n```\n")
    found = [check.wrong_command(words, {"test"}) for words in check.commands(page)]
    assert found and next((problem for problem in found if problem), None) == problem
