"""What tests of several folders share."""

from __future__ import annotations

import pytest

from securecoll import config


@pytest.fixture(params=["shared memory", "sockets"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a test over both. Ranks that it starts (tests/groups.py) get this process's settings."""
    if request.param == "sockets":
        monkeypatch.setenv("SECURECOLL_TRANSPORT", "tcp")
        monkeypatch.setenv("SECURECOLL_IFNAME", "lo")
    monkeypatch.setattr(config, "_current", None)  # read again
    name: str = request.param
    return name
