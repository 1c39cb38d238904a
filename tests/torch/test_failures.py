"""Failures as a training script meets them: deadlines, a rank that gives up, groups made and destroyed, threads."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from securecoll.communicator import Communicator
from securecoll.errors import CollectiveTimeout, SecureCollError
from tests.groups import left_behind
from tests.torch.ranks import on_ranks

SLACK = 0.5
"""Seconds that a deadline may be missed by."""


def raises_after(seconds: float, call: object) -> None:
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout):
        call()  # type: ignore[operator]
    assert seconds - SLACK < time.monotonic() - began < seconds + SLACK


@on_ranks(2, over_both=True)
def test_f3_each_timeout_holds_at_its_own_limit(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/pull/167052: set on a group, for a wait, and changed later."""
    x = torch.ones(4)
    made = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    changed = dist.new_group([0, 1], timeout=timedelta(seconds=15))
    changed.set_timeout(timedelta(seconds=1))
    dist.barrier()
    if rank == 0:
        raises_after(1.0, lambda: dist.all_reduce(x, group=made))
        raises_after(1.0, lambda: dist.all_reduce(x, group=changed))
        late = dist.all_reduce(x, async_op=True)
        raises_after(0.2, lambda: late.wait(timedelta(milliseconds=200)))
        late.wait()
    else:
        time.sleep(3)
        dist.all_reduce(x)
    dist.barrier()


@on_ranks(1)
def test_f3_torchs_own_setter_says_that_it_does_nothing(rank: int, size: int) -> None:
    """It knows gloo and nccl by their classes. The group's own method is the one to call."""
    with pytest.warns(UserWarning, match="only supported for either nccl or gloo"):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))


@on_ranks(2, over_both=True)
def test_f4_a_rank_that_fails_destroys_its_group_and_the_other_learns_of_it(rank: int, size: int) -> None:
    """https://github.com/pytorch/torchtitan/pull/1342"""
    group = dist.new_group([0, 1])
    x = torch.ones(100_000)
    dist.all_reduce(x, group=group)
    began = time.monotonic()
    if rank == 0:
        with pytest.raises(ValueError, match="on purpose"):
            try:
                time.sleep(0.3)  # the other is in its all_reduce by now
                raise ValueError("on purpose")
            finally:
                closing = time.monotonic()
                dist.destroy_process_group(group)
                assert time.monotonic() - closing < 2
    else:
        with pytest.raises(SecureCollError, match="rank 0"):
            dist.all_reduce(x, group=group)
        assert time.monotonic() - began < 2.3
        dist.destroy_process_group(group)
    dist.barrier()


@on_ranks(2, over_both=True)
def test_f5_destroying_and_joining_again_over_one_store(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/55967: and no session is ever the same."""
    folder = Path(os.environ["SECURECOLL_KEY_FILE"]).parent
    sessions: list[bytes] = []
    create = Communicator.create

    def recorded(*args: object, **options: object) -> Communicator:
        comm = create(*args, **options)  # type: ignore[arg-type]
        sessions.append(comm.session_id)
        return comm

    port = [0]
    if rank == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [server.port]
    dist.broadcast_object_list(port)
    tcp = server if rank == 0 else dist.TCPStore("127.0.0.1", port[0], is_master=False)
    dist.destroy_process_group()
    with mock.patch.object(Communicator, "create", recorded):
        for store in (dist.FileStore(str(folder / os.environ.get("SECURECOLL_TRANSPORT", "f5")), size), tcp):
            for _ in range(5):
                dist.init_process_group(
                    "securecoll", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20)
                )
                x = torch.ones(2)
                dist.all_reduce(x)
                assert (x == size).all()
                dist.destroy_process_group()
    assert len(set(sessions)) == 10
    dist.init_process_group("securecoll", store=tcp, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    everyone: list[list[bytes]] = [[], []]
    dist.all_gather_object(everyone, sessions)
    assert everyone[0] == everyone[1]


@on_ranks(2, over_both=True)
def test_f12_ranks_meet_by_every_name_of_loopback(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/135355"""
    names = [name for name in ("127.0.0.1", "::1", "localhost") if ":" not in name or _has_ipv6()]
    ports = [0] * len(names)
    servers = []
    if rank == 0:
        servers = [dist.TCPStore(name, 0, is_master=True, wait_for_workers=False) for name in names]
        ports = [server.port for server in servers]
    dist.broadcast_object_list(ports)
    dist.destroy_process_group()
    for i, (name, port) in enumerate(zip(names, ports, strict=True)):
        store = servers[i] if rank == 0 else dist.TCPStore(name, port, is_master=False, wait_for_workers=False)
        dist.init_process_group("securecoll", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        x = torch.ones(2)
        dist.all_reduce(x)
        assert (x == size).all()
        if name != names[-1]:
            dist.destroy_process_group()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def holdings() -> dict[str, int]:
    """What of the system this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "segments": sum("securecoll-" in line for line in maps.splitlines()),
        "names without owner": len(left_behind()),
        "resident KiB": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024,
    }


@on_ranks(2, over_both=True)
def test_f6_groups_leave_nothing_behind(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/129868"""
    x, first, last = torch.ones(50_000), 2, 102
    after: dict[int, dict[str, int]] = {}
    for i in range(1, last + 1):
        group = dist.new_group([0, 1])
        dist.all_reduce(x, group=group)
        dist.all_reduce(x, group=group, async_op=True).get_future().wait()
        work = dist.isend(x, 1 - rank, group=group)  # long enough to be announced
        dist.recv(torch.empty_like(x), 1 - rank, group=group)
        work.wait()
        del work
        dist.destroy_process_group(group)
        del group
        if i in (first, last):
            after[i] = holdings()
    grown = {what: after[last][what] - after[first][what] for what in after[first]}
    # Whatever torch makes once, and a FileStore keeps a copy of all that was ever written to it, a few KiB a group.
    # A segment has 2 MiB.
    assert grown.pop("resident KiB") < 100 * (last - first), after
    assert not any(grown.values()), after


@on_ranks(2, over_both=True)
def test_f15_works_of_one_group_complete_in_the_order_of_their_calls(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/pull/131895"""
    counts = [500_000, 1, 70_000, 3, 0, 17, 100_000, 9]
    for late in range(size):
        done: list[int] = []
        dist.barrier()
        if rank == late:
            time.sleep(0.2)  # so that on the other rank no work is done before all callbacks are there
        tensors = [torch.full((n,), float(rank + i)) for i, n in enumerate(counts)]
        works = [dist.all_reduce(t, async_op=True) for t in tensors]
        for i, work in enumerate(works):
            work.get_future().add_done_callback(lambda _, i=i, done=done: done.append(i))
        for work in works:
            work.get_future().wait()
        if rank != late:
            last = len(counts) - 1  # its callback may still run
            assert done[:last] == list(range(last))
        for i, t in enumerate(tensors):
            assert (t == 2 * i + 1).all()


@on_ranks(2, over_both=True)
def test_f15_four_threads_drive_four_groups_each_rank_starting_with_another(rank: int, size: int) -> None:
    """https://github.com/pytorch/gloo/issues/35"""
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    wrong: list[object] = []

    def drive(i: int) -> None:
        try:
            for step in range(20):
                works = [
                    dist.all_reduce(torch.full((n,), float(rank + step)), group=groups[i], async_op=True)
                    for n in (3, 20_000, 1)
                ]
                for work in works:
                    work.wait()
                    if not (work.result()[0] == 2 * step + 1).all():
                        wrong.append((i, step))
        except BaseException as e:
            wrong.append(e)

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(4)]
    for thread in threads if rank == 0 else reversed(threads):
        thread.start()
        time.sleep(0.01)
    for thread in threads:
        thread.join()
    assert not wrong, wrong
