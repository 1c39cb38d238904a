"""Fixtures of the host kernels' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from securecoll import _engine
from tests.host.kernel_sets import FAR, NAMES, NATIVE, Aead, TestLibrary

AeadMaker = Callable[[bytes], Aead]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> TestLibrary:
    """The kernel sets that only tests build."""
    folder: Path = tmp_path_factory.mktemp("kernel_sets")
    return TestLibrary(folder)


@pytest.fixture(scope="session", params=NAMES)
def make_aead(request: pytest.FixtureRequest) -> AeadMaker:
    """Makes a key on a kernel set; tests that use this run once for each set."""
    name: str = request.param
    if name in NATIVE + FAR:
        return lambda key: _engine.Aead(name, key)
    library: TestLibrary = request.getfixturevalue("library")
    return lambda key: library.aead(name, key)
