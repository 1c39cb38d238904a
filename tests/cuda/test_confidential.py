"""What the host can read while devices work: no payload byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from securecoll import Communicator
from tests.attack.test_confidential import CANARY, watch, works
from tests.cuda.groups import devices
from tests.cuda.on_device import OnDevice
from tests.groups import SMALL, group


def _on_device(comm: Communicator, seconds: float) -> int:
    on_device: Any = OnDevice(comm)
    return works(on_device, seconds, messages=False)


@pytest.mark.parametrize("mapped", [False, True], ids=["staged", "mapped"])
def test_no_payload_in_what_the_host_can_read(tmp_path: Path, mapped: bool) -> None:
    """Also mapped, where kernels write the slots themselves: what is in a slot is never plaintext, not even for a
    moment."""
    with group(2, tmp_path, _on_device, 3.0, shape=SMALL, device=devices(mapped=mapped), timeout=60.0) as ranks:
        ranks.wait_joined()
        watch(ranks, SMALL, CANARY)
        outcomes = ranks.finish()
    assert all(outcome.error is None and outcome.value > 0 for outcome in outcomes), outcomes
