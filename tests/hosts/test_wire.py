"""What a network between two hosts gets to see: every packet is recorded, and none shows a known pattern."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securecoll import Communicator
from tests.groups import run
from tests.hosts.lab import PACKETS, Lab, enter, hosts

CANARY = bytes(range(0x61, 0x71))
COUNT = 1 << 19
"""Bytes of an array of canaries."""
ALL_PROTOCOLS = 3
RECEIVE_BUFFER_ANYWAY = 33  # SO_RCVBUFFORCE


@contextmanager
def recorded(made: Lab, number: int) -> Iterator[list[bytes]]:
    """All packets on a host's cable, both ways."""
    packets: list[bytes] = []
    ready, done = threading.Event(), threading.Event()

    def record() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", made.hub).open("rb") as file:
            if libc.setns(file.fileno(), 0x40000000):  # this thread alone
                return
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS)) as tap:
            tap.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_ANYWAY, 64 << 20)
            tap.bind((f"port{number}", ALL_PROTOCOLS))
            tap.settimeout(0.1)
            ready.set()
            while True:
                try:
                    packets.append(tap.recv(1 << 17))
                except TimeoutError:
                    if done.is_set():
                        return

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    assert ready.wait(10), "cannot listen on the cable"
    try:
        yield packets
    finally:
        done.set()
        thread.join()


def shows(packets: list[bytes], pattern: bytes) -> int:
    """How many packets show any eight bytes in a row of a repeated pattern."""
    twice = 2 * pattern
    windows = {twice[i : i + 8] for i in range(len(pattern))}
    return sum(any(window in packet for window in windows) for packet in packets)


def _patterns(rank: int) -> tuple[Any, Any]:
    mine = np.frombuffer(CANARY * (COUNT // len(CANARY)), np.uint8).copy()
    return mine, np.where(rank == 0, mine, 0).astype(np.uint8)  # whose sum is the pattern


def _sealed(comm: Communicator) -> bool:
    mine, share = _patterns(comm.rank)
    out = np.zeros(COUNT * comm.size, np.uint8)
    comm.all_gather(mine, out)
    comm.all_reduce(share)
    comm.broadcast(mine)
    comm.all_to_all(out, np.zeros_like(out))
    work = comm.send(mine, 1 - comm.rank, async_op=True)
    comm.recv(np.zeros_like(mine), 1 - comm.rank)
    work.wait()
    return bool((out[:COUNT] == out[COUNT:]).all() and (share == mine).all())


def _plain(rank: int, folder: Path) -> None:
    """Over gloo."""
    import torch
    import torch.distributed as dist

    enter(rank, folder)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    share = torch.from_numpy(_patterns(rank)[1])
    dist.all_reduce(share)
    assert bytes(share[:16].tolist()) == CANARY
    dist.destroy_process_group()


def test_no_packet_shows_a_pattern_and_over_gloo_many_do(tmp_path: Path) -> None:
    with hosts(2, (4,), *PACKETS) as made:
        made.describe(tmp_path, (0, 1))
        with recorded(made, 1) as packets:
            assert run(2, tmp_path, _sealed, prepare=enter) == [True, True]
            time.sleep(0.2)
        # Each way: the others' part of the gather, half of the sum and its result, the all_to_all and the message.
        assert sum(map(len, packets)) > 6 * COUNT
        assert shows(packets, CANARY) == 0

        pytest.importorskip("torch")
        from tests.torch.ranks import _context

        with recorded(made, 1) as packets:
            processes = [_context.Process(target=_plain, args=(rank, tmp_path)) for rank in range(2)]
            for process in processes:
                process.start()
            for process in processes:
                process.join(60)
            assert [process.exitcode for process in processes] == [0, 0]
        assert shows(packets, CANARY) > 100
