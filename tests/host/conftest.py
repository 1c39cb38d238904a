"""Fixtures of the host kernels' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from securecoll import _engine
from tests.host.kernel_sets import FAR, NAMES, NATIVE, Aead, Reference, TestLibrary, suite_of

AeadMaker = Callable[[bytes], Aead]
ReferenceMaker = Callable[[bytes], Reference]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> TestLibrary:
    """The kernel sets that only tests build."""
    folder: Path = tmp_path_factory.mktemp("kernel_sets")
    return TestLibrary(folder)


@pytest.fixture(scope="session", params=NAMES)
def kernels(request: pytest.FixtureRequest) -> str:
    """The name of a kernel set; tests that use this, or what follows, run once for each set of each suite."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def make_aead(kernels: str, request: pytest.FixtureRequest) -> AeadMaker:
    """Makes a key on the kernel set."""
    if kernels in NATIVE + FAR:
        return lambda key: _engine.Aead(kernels, key)
    library: TestLibrary = request.getfixturevalue("library")
    return lambda key: library.aead(kernels, key)


@pytest.fixture(scope="session")
def make_reference(kernels: str) -> ReferenceMaker:
    """Makes a key on another implementation of the kernel set's suite."""
    return lambda key: Reference(suite_of(kernels), key)
