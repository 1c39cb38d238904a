"""Process groups shared by the tests of the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.torch.ranks import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """Gives the ranks of a world size, started on first use."""
    folder = tmp_path_factory.mktemp("ranks")
    groups: dict[int, Ranks] = {}

    def get(size: int) -> Ranks:
        if size not in groups:
            groups[size] = Ranks(size, folder)
        return groups[size]

    yield get
    for group in groups.values():
        group.stop()
