"""send, recv and what is built on them, through torch.distributed."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from securecoll.errors import MismatchError
from tests.torch.ranks import on_ranks


def _numbers(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@on_ranks(2)
def test_c20_tags_in_any_order(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/94819"""
    if rank == 0:
        dist.send(torch.full((5,), 2.0), 1, tag=0)
        dist.send(torch.ones(5), 1, tag=1)
        works = [dist.isend(torch.full((70_000,), float(tag)), 1, tag=tag) for tag in range(3)]
        for work in works:
            work.wait()
        return
    x = torch.zeros(5)
    dist.recv(x, 0, tag=1)
    assert torch.equal(x, torch.ones(5))
    dist.recv(x, 0, tag=0)
    assert torch.equal(x, torch.full((5,), 2.0))
    buffers = [torch.zeros(70_000) for _ in range(3)]
    works = [dist.irecv(buffers[tag], 0, tag=tag) for tag in (2, 1, 0)]
    for work in works:
        work.wait()
        assert work.is_completed()
    assert [float(b.mean()) for b in buffers] == [0, 1, 2]


@on_ranks(2)
def test_c22_large_messages_both_ways(rank: int, size: int) -> None:
    """https://github.com/meta-pytorch/torchcomms/pull/2992"""
    count = 4 << 20
    mine, theirs = _numbers(rank, count), torch.zeros(count)
    send = dist.isend(mine, 1 - rank)
    receive = dist.irecv(theirs, 1 - rank)
    send.wait()
    receive.wait()
    assert torch.equal(theirs, _numbers(1 - rank, count))
    theirs.zero_()
    operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    works = dist.batch_isend_irecv(operations)
    assert len(works) == 2
    for work in works:
        work.wait()
    assert torch.equal(theirs, _numbers(1 - rank, count))


@on_ranks(2)
def test_c22_both_send_first(rank: int, size: int) -> None:
    """A short message needs no receive to be sent."""
    theirs = torch.zeros(1000)
    dist.send(_numbers(rank, 1000), 1 - rank)
    dist.recv(theirs, 1 - rank)
    assert torch.equal(theirs, _numbers(1 - rank, 1000))


@on_ranks(4)
def test_c22_a_ring(rank: int, size: int) -> None:
    x = torch.zeros(50_000)
    operations = [
        dist.P2POp(dist.irecv, x, (rank - 1) % size),
        dist.P2POp(dist.isend, _numbers(rank, 50_000), (rank + 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert torch.equal(x, _numbers((rank - 1) % size, 50_000))


@on_ranks(2)
def test_c23_teardown_sends_what_is_queued(rank: int, size: int) -> None:
    """https://github.com/pytorch/pytorch/issues/75512"""
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.isend(_numbers(1, 1 << 18), 1, group=group)
        dist.isend(_numbers(2, 3), 1, tag=1, group=group)
    else:
        time.sleep(1)
        x, y = torch.zeros(1 << 18), torch.zeros(3)
        dist.recv(y, 0, tag=1, group=group)
        dist.recv(x, 0, group=group)
        assert torch.equal(x, _numbers(1, 1 << 18)) and torch.equal(y, _numbers(2, 3))
    dist.destroy_process_group(group)


@on_ranks(3)
def test_a_receive_from_any_rank_says_which(rank: int, size: int) -> None:
    if rank != 0:
        dist.send(torch.full((4,), float(rank)), 0)
        return
    got = {}
    for _ in range(2):
        x = torch.zeros(4)
        got[dist.recv(x)] = x
    assert {source: float(x[0]) for source, x in got.items()} == {1: 1.0, 2: 2.0}


@on_ranks(4)
def test_ranks_of_a_group_and_of_the_world(rank: int, size: int) -> None:
    group = dist.new_group([1, 3])
    if rank == 1:
        dist.send(torch.ones(3), 3, group=group)
        dist.send(torch.ones(3) * 2, group=group, group_dst=1)
        x = torch.zeros(3)
        assert dist.recv(x, group=group) == 3
        assert float(x[0]) == 5
    if rank == 3:
        x = torch.zeros(3)
        dist.recv(x, 1, group=group)
        assert float(x[0]) == 1
        dist.recv(x, group=group, group_src=0)
        assert float(x[0]) == 2
        dist.send(torch.ones(3) * 5, 1, group=group)
    dist.barrier()


@on_ranks(2)
def test_every_kind_of_tensor(rank: int, size: int) -> None:
    base = torch.arange(24).view(4, 6)
    kinds: list[torch.Tensor] = [
        base.t(),
        base[:, 1],
        base[1:3],
        torch.tensor(7),
        torch.zeros(0, 3),
        torch.arange(5, dtype=torch.int16),
        torch.arange(5).to(torch.uint32),
        torch.arange(5).to(torch.float8_e4m3fn),
        torch.arange(5).to(torch.bfloat16),
        torch.tensor([True, False]),
        torch.arange(40_000).to(torch.complex64),
    ]
    for x in kinds:
        if rank == 0:
            dist.send(x, 1)
        else:
            got = torch.zeros_like(x)
            dist.recv(got, 0)
            assert got.tolist() == x.tolist()
    # Into a strided tensor: nothing else of its memory changes.
    if rank == 0:
        dist.send(torch.arange(4.0), 1)
    else:
        room = torch.full((4, 3), -1.0)
        dist.recv(room[:, 1], 0)
        assert room[:, 1].tolist() == [0, 1, 2, 3]
        assert (room[:, 0] == -1).all() and (room[:, 2] == -1).all()


@on_ranks(2)
def test_wrong_calls_are_refused_and_the_group_goes_on(rank: int, size: int) -> None:
    with pytest.raises(ValueError):
        dist.send(torch.ones(1), rank)
    with pytest.raises((ValueError, RuntimeError)):
        dist.send(torch.ones(1), 5)
    with pytest.raises(RuntimeError, match=f"rank {rank}: send: a tag must not be negative"):
        dist.send(torch.ones(1), 1 - rank, tag=-3)
    dist.barrier()


@on_ranks(2)
def test_objects(rank: int, size: int) -> None:
    if rank == 0:
        dist.send_object_list([{"a": 1}, "two", 3.0], 1)
        return
    objects: list[Any] = [None, None, None]
    assert dist.recv_object_list(objects, 0) == 0
    assert objects == [{"a": 1}, "two", 3.0]


@on_ranks(2)
def test_a_coalesced_block_with_a_device_is_one_work(rank: int, size: int) -> None:
    sums = [torch.full((n,), float(rank + 1)) for n in (1, 1000, 40_000)]
    theirs = torch.zeros(100)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as block:
        for x in sums:
            dist.reduce(x, 0)
        dist.isend(torch.full((100,), float(rank)), 1 - rank)
        dist.irecv(theirs, 1 - rank)
    block.wait()
    if rank == 0:
        assert all((x == 3).all() for x in sums)
    assert (theirs == 1 - rank).all()
    (work,) = block.works
    assert work.is_completed() and len(work.get_future().value()) == 4


@on_ranks(2)
def test_a_receive_that_waits_does_not_hold_up_collectives(rank: int, size: int) -> None:
    x = torch.zeros(10)
    work = dist.irecv(x, 1 - rank, tag=3)
    y = torch.ones(1000)
    dist.all_reduce(y)
    assert (y == 2).all() and not work.is_completed()
    with pytest.raises(RuntimeError, match="not done after wait"):
        work.wait(timedelta(milliseconds=50))
    dist.barrier()
    dist.send(torch.full((10,), 4.0), 1 - rank, tag=3)
    future = work.get_future()
    work.wait()
    assert (x == 4).all()
    assert torch.equal(future.wait()[0], x)


@on_ranks(2)
def test_a_profiler_sees_messages_with_names_and_sizes(rank: int, size: int) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as trace:
        if rank == 0:
            dist.send(torch.ones(3, 5), 1)
        else:
            dist.recv(torch.ones(3, 5), 0)
    name = "securecoll:send" if rank == 0 else "securecoll:recv"
    (event,) = [e for e in trace.events() if e.name == name]
    assert event.input_shapes == [[3, 5]]


def _pipeline(rank: int, size: int, schedule: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.manual_seed(5)
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(size)]
    data, target = torch.randn(12, 8), torch.randn(12, 8)
    loss = torch.nn.functional.mse_loss
    whole = torch.nn.Sequential(*layers)
    whole.zero_grad()
    for x, y in zip(data.chunk(4), target.chunk(4), strict=True):
        (loss(whole(x), y) / 4).backward()
    expected = [p.grad.clone() for p in layers[rank].parameters()]  # type: ignore[union-attr]
    whole.zero_grad()

    stage = PipelineStage(layers[rank], rank, size, torch.device("cpu"))
    kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
    run = kind(stage, n_microbatches=4, loss_fn=loss)
    if rank == 0:
        run.step(data)
    elif rank == size - 1:
        run.step(target=target)
    else:
        run.step()
    for parameter, gradient in zip(layers[rank].parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@on_ranks(2, 4)
def test_pipelining_with_gpipe(rank: int, size: int) -> None:
    _pipeline(rank, size, "gpipe")


@on_ranks(4)
def test_pipelining_with_1f1b(rank: int, size: int) -> None:
    _pipeline(rank, size, "1f1b")


@on_ranks(2, over_both=True)
def test_f1_a_send_and_a_receive_that_differ_end_both(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    began = time.monotonic()
    with pytest.raises(MismatchError) as error:
        if rank == 0:
            dist.send(torch.ones(3), 1, group=group)
            dist.barrier(group)
        else:
            dist.recv(torch.ones(4), 0, group=group)
    assert time.monotonic() - began < 2
    for text in ("float32[3]", "float32[4]"):
        assert text in str(error.value)
