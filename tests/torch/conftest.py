"""Process groups shared by the tests of the torch backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.torch.ranks import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int, str], Ranks]]:
    """Gives the ranks of a world size over a transport, started on first use."""
    folder = tmp_path_factory.mktemp("ranks")
    groups: dict[tuple[int, str], Ranks] = {}

    def get(size: int, over: str) -> Ranks:
        if (size, over) not in groups:
            groups[size, over] = Ranks(size, folder, over)
        return groups[size, over]

    yield get
    for group in groups.values():
        group.stop()
