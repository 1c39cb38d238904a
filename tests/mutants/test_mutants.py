"""Every mutant is noticed. `make mutants`: each is built in a copy of the repository, where its tests must fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("kernels", "bindings", "securecoll", "tests", "benchmarks", "build/objects")
FILES = ("setup.py", "pyproject.toml", "README.md")

# The engine alone: the torch binding does not depend on it.
BUILD = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.argv = ["setup.py", "--quiet", "build_ext", "--inplace"]
exec(compile(open("setup.py").read(), "setup.py", "exec"))
"""


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, with what was compiled, so that only what is changed is compiled again."""
    root = tmp_path_factory.mktemp("mutants") / "repository"
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "mutants")
        shutil.copytree(ROOT / part, root / part, ignore=ignored)  # keeps times of files
    for file in FILES:
        shutil.copy2(ROOT / file, root / file)
    _build(root)
    return root


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


def _build(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BUILD], cwd=root, env=_environment(root), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _pytest(root: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=root, env=_environment(root), capture_output=True, text=True, timeout=900)


def test_every_change_applies() -> None:
    """A mutant that no longer finds its place in the source would prove nothing."""
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: {mutant.file} has it {text.count(mutant.old)} times"


@pytest.mark.slow
def test_unchanged_control(copy: Path) -> None:
    """The tests that mutants must fail pass in the copy as it is."""
    done = _pytest(copy, ("tests/cuda/test_order.py", "-k", "overwrite or leaves_it"))
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutants_are_noticed(copy: Path, mutant: Mutant) -> None:
    path = copy / mutant.file
    text, times = path.read_text(), path.stat()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        _build(copy)
        done = _pytest(copy, mutant.tests)
    finally:
        path.write_text(text)
        os.utime(path)  # newer than what was made of the mutant
    # 1: tests ran and some failed. Anything else is not the answer that was asked for.
    assert done.returncode == 1, f"survived, or did not run ({done.returncode}):\n{done.stdout[-3000:]}"
    assert times.st_size == path.stat().st_size
