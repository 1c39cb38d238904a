"""Joining and leaving again and again, in one process: nothing is left, however often."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import numpy as np
import pytest

import securecoll
from securecoll import Communicator, _engine
from tests import groups
from tests.engine.relay import sockets_only
from tests.groups import GROUP_SECONDS, left_behind, run

SETTLED = 20
"""Cycles after which everything that is made once is there."""


class _MallInfo(ctypes.Structure):
    """Of mallinfo2(3)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def _heap_in_use() -> int:
    """Bytes; 0 where the C library does not tell."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _MallInfo
    return int(ask().uordblks)


def _holdings() -> dict[str, int]:
    """What of the system this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "mappings of segments": sum("securecoll-" in line for line in maps),
        "bytes of secrets": _engine.arena_used_bytes(),
        "heap in use": _heap_in_use(),
        "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
    }


def _cycle(rank: int, folder: str, key: str, number: int) -> None:
    """Every kind of traffic of a group that lives for a moment: blocking, in the background, and a long message."""
    exchange = securecoll.DirectoryExchange(folder, rank=rank, size=2, attempt=f"cycle{number}")
    comm = Communicator.create(exchange, key, timeout=GROUP_SECONDS)
    x = np.full(50_000, rank + 1.0, np.float32)
    comm.all_reduce(x)
    assert (x == 3).all()
    work = comm.all_reduce(x[:100], async_op=True)
    assert work is not None
    work.wait()
    sending = comm.send(x, 1 - rank, async_op=True)
    comm.recv(np.empty_like(x), 1 - rank)
    sending.wait()
    comm.close()
    exchange.close()


def _cycles(comm: Communicator, folder: str, key: str, count: int) -> tuple[dict[str, int], dict[str, int]]:
    """What this process held after some cycles, and after all."""
    for number in range(count):
        if number == SETTLED:
            early = _holdings()
        _cycle(comm.rank, folder, key, number)
    return early, _holdings()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_cycles_of_joining_and_leaving_leave_nothing(
    tmp_path: Path, transport: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "WATCHDOG_SECONDS", count * 0.5)
    (tmp_path / "meeting").mkdir()
    options = {"prepare": sockets_only} if transport == "tcp" else {}
    arguments = str(tmp_path / "meeting"), str(tmp_path / "key"), count
    for early, late in run(2, tmp_path, _cycles, *arguments, **options):
        grown = {what: late[what] - early[what] for what in early}
        # The allocator's: holes between what is in use. What is in use hardly grows.
        assert grown.pop("resident") < 8 << 20, (early, late)
        assert grown.pop("heap in use") < 256 << 10, (early, late)
        assert not any(grown.values()), (early, late)
        print(f"{count} cycles over {transport}: {early}, {late}")
    assert not left_behind()
    assert not list((tmp_path / "meeting").iterdir())
