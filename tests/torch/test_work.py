"""Works and futures: when results are final, who runs callbacks, and how errors and timeouts come out."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from securecoll.errors import CollectiveTimeout, CommunicatorClosed, MismatchError, SecureCollError
from tests.torch.ranks import on_ranks


def meet() -> None:
    dist.barrier()


@on_ranks(2)
def test_c29_an_asynchronous_result_is_final_when_wait_returns(rank: int, size: int) -> None:
    meet()
    if rank == 1:
        time.sleep(0.3)
    x = torch.full((100_000,), float(rank + 1))
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        assert not work.is_completed()
        assert not work.get_future().done()
    work.wait()
    assert work.is_completed() and work.is_success()
    assert (x == 3).all()


@on_ranks(2)
def test_a_future_gives_the_list_of_outputs(rank: int, size: int) -> None:
    x = torch.full((4,), float(rank + 1))
    future = dist.all_reduce(x, async_op=True).get_future()
    (value,) = future.wait()
    assert value.data_ptr() == x.data_ptr() and (value == 3).all()
    outs = [torch.zeros(1), torch.zeros(1)]
    values = dist.all_gather(outs, torch.tensor([float(rank)]), async_op=True).get_future().wait()
    assert [v.item() for v in values] == [0.0, 1.0]
    assert dist.barrier(async_op=True).get_future().wait() == []
    done = dist.all_reduce(x, async_op=True)
    done.wait()
    assert (done.get_future().wait()[0] == 6).all()  # asked for after the end
    assert done.get_future().done()


@on_ranks(2)
def test_a_future_is_set_only_after_strided_outputs_are(rank: int, size: int) -> None:
    for _ in range(50):
        grid = torch.full((64, 64), float(rank + 1))
        seen = dist.all_reduce(grid[:, 3], async_op=True).get_future().then(lambda f: f.value()[0].clone()).wait()
        assert (seen == 3).all(), seen


@on_ranks(2)
def test_tensors_stay_alive_until_the_operation_is_final(rank: int, size: int) -> None:
    meet()
    if rank == 1:
        time.sleep(0.2)
    send = torch.full((300_000,), float(rank + 1))
    strided = torch.zeros(2, 300_000)
    outs = [torch.zeros(300_000), strided.t()[:, 0]]
    work = dist.all_gather(outs, send, async_op=True)
    first = outs[0]
    del send, outs
    noise = [torch.full((300_000,), 9.0) for _ in range(4)]  # would land in freed memory
    work.wait()
    del noise
    assert (first == 1).all() and (strided[0] == 2).all()


@on_ranks(2)
def test_a_callback_may_issue_collectives_and_wait_for_the_gil(rank: int, size: int) -> None:
    x, y = torch.ones(4), torch.full((4,), float(rank))

    def more(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        time.sleep(0.05)  # gives the GIL away
        dist.all_reduce(y)
        return future.value()[0] + y

    chained = dist.all_reduce(x, async_op=True).get_future().then(more)
    spin = time.monotonic() + 0.1
    while time.monotonic() < spin:  # holds the GIL most of the time
        pass
    assert (chained.wait() == 3).all()


@on_ranks(2)
def test_callbacks_run_on_a_thread_of_their_own(rank: int, size: int) -> None:
    meet()
    if rank == 1:
        time.sleep(0.1)
    where = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda f: threading.get_native_id())
    if rank == 0:
        assert where.wait() not in {os.getpid(), threading.get_native_id()}
    else:
        where.wait()


@on_ranks(2, 4)
def test_many_operations_in_flight(rank: int, size: int) -> None:
    tensors = [torch.full((n,), float(rank + i)) for i, n in enumerate([1, 70_000, 3, 0, 500_000, 17, 9, 100_000])]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    dist.all_reduce(torch.ones(1))  # a blocking call behind asynchronous ones
    for work in reversed(works):
        work.wait()
    for i, t in enumerate(tensors):
        assert (t == size * i + sum(range(size))).all(), i


@on_ranks(2)
def test_two_threads_drive_two_groups_in_opposite_order(rank: int, size: int) -> None:
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    failures: list[BaseException] = []

    def drive(i: int) -> None:
        try:
            time.sleep(0.05 * (i == rank))
            for step in range(20):
                x = torch.full((1000,), float(rank + step))
                dist.all_reduce(x, group=groups[i])
                assert (x == 2 * step + 1).all()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


@on_ranks(2)
def test_the_profiler_sees_collectives_by_name(rank: int, size: int) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0, async_op=True).wait()
    names = {event.name for event in profile.events()}
    assert {"securecoll:all_reduce", "securecoll:broadcast"} <= names, names


# --- errors and timeouts ----------------------------------------------------------------------------------------


@on_ranks(2)
def test_waiting_less_than_the_operation_takes(rank: int, size: int) -> None:
    meet()
    x = torch.full((4,), float(rank))
    if rank == 1:
        time.sleep(0.8)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(CollectiveTimeout, match=r"rank 0: ALLREDUCE .* 200 ms"):
            work.wait(timedelta(milliseconds=200))
        assert 0.15 < time.monotonic() - start < 0.7
    work.wait(timedelta(seconds=10))  # it was only the wait that ended
    assert (x == 1).all()


@on_ranks(2)
def test_the_timeout_of_a_group_holds(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=10))
    fast = dist.new_group([0, 1], timeout=timedelta(seconds=1))
    x = torch.ones(4)
    dist.all_reduce(x, group=fast)
    start = time.monotonic()
    if rank == 0:
        with pytest.raises(CollectiveTimeout):
            dist.all_reduce(x, group=fast)
        assert 0.5 < time.monotonic() - start < 2.5
        with pytest.raises(SecureCollError):
            dist.all_reduce(x, group=fast)
        assert time.monotonic() - start < 3.0
    dist.all_reduce(x, group=group)  # the other group is not touched


@on_ranks(2)
def test_set_timeout_changes_a_group(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], timeout=timedelta(seconds=15))
    backend = group._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(seconds=1))
    if rank == 0:
        start = time.monotonic()
        with pytest.raises(CollectiveTimeout):
            dist.all_reduce(torch.ones(4), group=group)
        assert time.monotonic() - start < 3.0
    meet()


@on_ranks(2, over_both=True)
def test_f1_mismatched_calls_raise_in_wait_future_and_callback(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    x = torch.ones(100 + 100 * rank)
    work = dist.all_reduce(x, group=group, async_op=True)
    future = work.get_future()
    derived = future.then(lambda f: f.value())
    with pytest.raises(MismatchError):
        work.wait()
    with pytest.raises(MismatchError):
        future.wait()
    with pytest.raises(RuntimeError, match="MismatchError"):
        derived.wait()  # torch wraps what a callback raises
    with pytest.raises(MismatchError):
        work.get_future().value()
    assert work.is_completed() and not work.is_success()
    with pytest.raises(SecureCollError):
        dist.all_reduce(torch.ones(1), group=group)
    meet()


@on_ranks(2, over_both=True)
def test_an_aborted_group_raises_and_tells_the_peer(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(1), group=group)
    start = time.monotonic()
    if rank == 0:
        time.sleep(0.2)
        group.abort()
        with pytest.raises(SecureCollError):
            dist.all_reduce(torch.ones(1), group=group)
    else:
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        with pytest.raises(SecureCollError):
            work.wait()
    assert time.monotonic() - start < 5
    meet()


@on_ranks(2)
def test_a_destroyed_group_raises_at_once(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    backend = group._get_backend(torch.device("cpu"))
    dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
    dist.destroy_process_group(group)
    with pytest.raises(CommunicatorClosed):
        backend.allreduce([torch.ones(1)])
    meet()


@on_ranks(2)
def test_destroying_waits_for_what_is_in_flight(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    x = torch.full((50_000,), float(rank))
    if rank == 1:
        time.sleep(0.2)
    work = dist.all_reduce(x, group=group, async_op=True)
    seen: list[float] = []
    work.get_future().add_done_callback(lambda f: seen.append(f.value()[0][0].item()))
    dist.destroy_process_group(group)
    assert work.is_completed() and (x == 1).all() and seen == [1.0]
    meet()


@on_ranks(2)
def test_a_callback_may_drop_the_last_reference_to_its_group(rank: int, size: int) -> None:
    for _ in range(3):
        held = [dist.new_group([0, 1])]
        future = dist.all_reduce(torch.ones(1), group=held[0], async_op=True).get_future()
        dist.destroy_process_group(held[0])
        future.then(lambda f, held=held: held.clear()).wait()
        meet()


@on_ranks(2)
def test_a_forked_child_gets_an_error_and_the_parent_goes_on(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    x = torch.full((4,), float(rank))
    if rank == 1:
        dist.barrier(group)  # until rank 0 has forked, with the operation in flight, and its child is gone
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        pid = os.fork()
        if pid == 0:
            status = 0
            for use in (lambda: dist.all_reduce(torch.ones(1)), work.wait, lambda: dist.barrier(async_op=True)):
                try:
                    use()
                    status = 1
                except CommunicatorClosed:
                    pass
                except BaseException:
                    status = 2
            del work
            dist.destroy_process_group()
            os._exit(status)
        deadline = time.monotonic() + 20
        done, status = 0, 0
        while not done and time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.02)
        if not done:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        assert done and os.waitstatus_to_exitcode(status) == 0, (done, status)
        dist.barrier(group)
    work.wait()
    assert (x == 1).all()
    meet()
