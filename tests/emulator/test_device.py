"""The emulated device: what it promises of streams and events, and how well it shows what a program forgot."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.emulator.conftest import DeviceMaker
from tests.emulator.device import Device, RefusedError, State
from tests.emulator.emulator import ROOT
from tests.emulator.test_names import args, pack

WORDS = 256
BYTES = 4 * WORDS
SEEDS = range(1, 41)
MOST = 36  # of 40 seeds: how good a trap is, is worth a number


class Host:
    """Pinned host memory."""

    def __init__(self, device: Device, data: bytes) -> None:
        self.address = device.allocate_pinned(len(data))
        self._size = len(data)
        self.data = data

    @property
    def data(self) -> bytes:
        return ctypes.string_at(self.address, self._size)

    @data.setter
    def data(self, data: bytes) -> None:
        ctypes.memmove(self.address, data, len(data))


def add(device: Device, out: int, source: int, amount: int, stream: int = 0) -> None:
    device.launch("probe_add", args(out, source, 0, amount, WORDS), stream=stream)


def words(value: int) -> bytes:
    return pack([value] * WORDS)


def upload(device: Device, data: bytes, stream: int = 0) -> int:
    at = device.allocate(len(data))
    host = Host(device, data)
    device.copy_in(at, host.address, len(data), stream)
    device.synchronize(stream)
    device.release_pinned(host.address)
    return at


def download(device: Device, at: int, size: int = BYTES, stream: int = 0) -> bytes:
    host = Host(device, bytes(size))
    device.copy_out(host.address, at, size, stream)
    device.synchronize(stream)
    data = host.data
    device.release_pinned(host.address)
    return data


def test_nothing_runs_before_someone_asks(make_device: DeviceMaker) -> None:
    device = make_device()
    at = upload(device, words(1))
    host = Host(device, words(0))
    event = device.event()
    add(device, at, at, 1)
    device.copy_out(host.address, at, BYTES)
    device.record(event)
    assert host.data == words(0)
    assert device.finish(event) is State.DONE
    assert host.data == words(2)


def test_a_stream_keeps_its_order(make_device: DeviceMaker) -> None:
    for seed in SEEDS[:10]:
        device = make_device(f"seed={seed}")
        streams = [device.stream() for _ in range(3)]
        cells = [upload(device, words(0)) for _ in streams]
        spare = [device.allocate(BYTES) for _ in streams]
        events = [device.event() for _ in streams]
        for _ in range(5):
            for stream, cell, copy in zip(streams, cells, spare, strict=True):
                add(device, cell, cell, 1, stream)
                device.copy(copy, cell, BYTES, stream)
                device.fill(cell, 0, BYTES, stream)
                add(device, cell, copy, 2, stream)
        for stream, event in zip(streams, events, strict=True):
            device.record(event, stream)
        assert [device.finish(event) for event in events] == [State.DONE] * 3
        assert [download(device, cell) for cell in cells] == [words(15)] * 3, f"seed {seed}"


def consumer_sees_producer(device: Device, waits: bool) -> bool:
    """A kernel on one stream, and a copy of its result on another."""
    first, second = device.stream(), device.stream()
    cell, host = upload(device, words(1)), Host(device, words(0))
    made, done = device.event(), device.event()
    add(device, cell, cell, 41, first)
    device.record(made, first)
    if waits:
        device.wait(second, made)
    device.copy_out(host.address, cell, BYTES, second)
    device.record(done, second)
    device.finish(done)
    return host.data == words(42)


def reader_precedes_writer(device: Device, waits: bool) -> bool:
    """A copy out of a cell on one stream, and the next kernel to write it on another."""
    first, second = device.stream(), device.stream()
    cell, host = upload(device, words(1)), Host(device, words(0))
    read, done = device.event(), device.event()
    device.copy_out(host.address, cell, BYTES, first)
    device.record(read, first)
    if waits:
        device.wait(second, read)
    add(device, cell, cell, 41, second)
    device.synchronize(second)
    device.record(done, first)
    device.finish(done)
    return host.data == words(1)


def chunks_stay_apart(device: Device, waits: bool) -> bool:
    """Chunk after chunk through one buffer, the host polling for each: the little overlap that a careful loop has."""
    seal, move = device.stream(), device.stream()
    cell, host = upload(device, words(0)), Host(device, words(0))
    sealed, moved = device.event(), device.event()
    right = True
    for chunk in range(6):
        add(device, cell, cell, 1, seal)
        device.record(sealed, seal)
        if waits:
            device.wait(move, sealed)
        device.copy_out(host.address, cell, BYTES, move)
        device.record(moved, move)
        device.finish(moved)
        device.finish(sealed)
        right = right and host.data == words(chunk + 1)
    return right


@pytest.mark.parametrize("scene", [consumer_sees_producer, reader_precedes_writer, chunks_stay_apart])
def test_a_dropped_wait_shows_in_most_seeds_and_a_kept_one_never(make_device: DeviceMaker, scene: object) -> None:
    assert callable(scene)
    assert all(scene(make_device(f"seed={seed}"), True) for seed in SEEDS)
    wrong = sum(not scene(make_device(f"seed={seed}"), False) for seed in SEEDS)
    assert wrong >= MOST, f"only {wrong} of {len(SEEDS)} seeds"


def test_a_host_that_reuses_memory_too_early_sends_what_it_wrote_last(make_device: DeviceMaker) -> None:
    for seed in SEEDS:
        device = make_device(f"seed={seed}")
        host, at = Host(device, words(1)), device.allocate(BYTES)
        device.copy_in(at, host.address, BYTES)
        host.data = words(2)
        assert download(device, at) == words(2)


def test_fresh_device_memory_is_garbage_that_depends_on_the_seed(make_device: DeviceMaker) -> None:
    seen = set()
    for seed in SEEDS[:5]:
        device = make_device(f"seed={seed}")
        seen.add(download(device, device.allocate(BYTES)))
        seen.add(download(device, device.allocate(BYTES)))
    assert len(seen) == 10


def test_launch_arguments_are_taken_at_the_call(make_device: DeviceMaker) -> None:
    device = make_device()
    at = upload(device, words(0))
    given = ctypes.create_string_buffer(args(at, at, 0, 5, WORDS))
    library, handle = device._library, device._device
    function = library.device_function(handle, b"probe_add")
    assert library.device_launch(handle, function, 1, 256, 0, ctypes.cast(given, ctypes.c_char_p), 32, None)
    ctypes.memset(given, 0xFF, 32)
    assert download(device, at) == words(5)


def test_events_tell_what_was_recorded_last(make_device: DeviceMaker) -> None:
    device = make_device("latency=4")
    stream, other = device.stream(), device.stream()
    event, never = device.event(), device.event()
    assert device.query(never) is State.DONE  # as CUDA says of an event that was never recorded
    at = upload(device, words(0))
    device.wait(other, never)  # no record to wait for
    for _ in range(3):
        add(device, at, at, 1, stream)
    device.record(event, stream)
    device.finish(event)
    add(device, at, at, 1, stream)
    device.record(event, stream)
    states = [device.query(event)]
    while states[-1] is State.PENDING:
        states.append(device.query(event))
    assert set(states) <= {State.PENDING, State.DONE}
    assert download(device, at, stream=other) == words(4)


def test_an_event_recorded_on_another_stream_tells_of_that_one(make_device: DeviceMaker) -> None:
    """Streams may come to the records in either order; only the last counts, and a wait keeps to the one it saw."""
    for seed in SEEDS[:20]:
        device = make_device(f"seed={seed}")
        first, second, third = (device.stream() for _ in range(3))
        event, done = device.event(), device.event()
        cells = [upload(device, words(0)) for _ in range(3)]
        hosts = [Host(device, words(0)) for _ in range(2)]
        add(device, cells[0], cells[0], 1, first)
        device.record(event, first)
        device.wait(third, event)
        device.copy_out(hosts[0].address, cells[0], BYTES, third)
        device.record(done, third)
        add(device, cells[1], cells[1], 2, second)
        device.copy_out(hosts[1].address, cells[1], BYTES, second)
        device.record(event, second)
        device.finish(event)
        assert hosts[1].data == words(2), f"seed {seed}"
        device.finish(done)
        assert hosts[0].data == words(1), f"seed {seed}"
        assert device.query(event) is State.DONE


def test_a_wait_is_for_the_record_before_it(make_device: DeviceMaker) -> None:
    """What is recorded later must not hold the waiter up: else this would hang."""
    device = make_device()
    first, second = device.stream(), device.stream()
    event, back = device.event(), device.event()
    at = upload(device, words(0))
    add(device, at, at, 1, first)
    device.record(event, first)
    device.wait(second, event)
    add(device, at, at, 1, second)
    device.record(back, second)
    device.wait(first, back)
    device.record(event, first)  # comes after `second`, which must not wait for it
    device.synchronize(second)
    device.synchronize(first)
    assert download(device, at) == words(2)


def test_blocking_copies_are_done_when_they_return(make_device: DeviceMaker) -> None:
    for seed in SEEDS[:10]:
        device = make_device(f"seed={seed} blocking_copies=1")
        stream, other = device.stream(), device.stream()
        host, cell, elsewhere = Host(device, words(7)), device.allocate(BYTES), upload(device, words(0))
        add(device, elsewhere, elsewhere, 1, other)
        device.copy_in(cell, host.address, BYTES, stream)
        host.data = words(0)  # at once
        add(device, cell, cell, 1, stream)
        device.copy_out(host.address, cell, BYTES, stream)
        assert host.data == words(8)


def test_synchronize_leaves_what_was_submitted_to_other_streams(make_device: DeviceMaker) -> None:
    late = 0
    for seed in SEEDS:
        device = make_device(f"seed={seed}")
        stream, other = device.stream(), device.stream()
        cells = [upload(device, words(0)) for _ in range(2)]
        add(device, cells[0], cells[0], 1, other)
        host = Host(device, words(9))
        device.copy_out(host.address, cells[0], BYTES, other)
        add(device, cells[1], cells[1], 1, stream)
        device.synchronize(stream)
        late += host.data == words(9)
    assert late >= MOST


def test_what_nobody_waits_for_is_sometimes_early_and_sometimes_late(make_device: DeviceMaker) -> None:
    late = 0
    for seed in SEEDS:
        device = make_device(f"seed={seed}")
        stream, other = device.stream(), device.stream()
        cell, elsewhere = upload(device, words(1)), upload(device, words(2))
        host, event = Host(device, words(9)), device.event()
        add(device, cell, cell, 1, stream)
        device.record(event, stream)
        device.copy_out(host.address, elsewhere, BYTES, other)
        device.finish(event)
        late += host.data == words(9)
    assert len(SEEDS) / 4 <= late <= 3 * len(SEEDS) / 4, f"{late} of {len(SEEDS)} seeds"


def test_the_same_seed_makes_the_same_schedule(make_device: DeviceMaker) -> None:
    def trace(seed: int) -> list[tuple[State, ...]]:
        device = make_device(f"seed={seed}")
        streams, events = [device.stream() for _ in range(4)], [device.event() for _ in range(4)]
        at = upload(device, words(0))
        for stream, event in zip(streams, events, strict=True):
            add(device, at, at, 1, stream)
            device.record(event, stream)
        return [tuple(device.query(event) for event in events) for _ in range(40)]

    traces = {seed: trace(seed) for seed in (1, 2, 3)}
    assert traces == {seed: trace(seed) for seed in (1, 2, 3)}
    assert traces[1] != traces[2] or traces[2] != traces[3]


def test_memory_runs_out_and_comes_back(make_device: DeviceMaker) -> None:
    device = make_device("memory=1M")
    held = device.allocate(900 << 10)
    with pytest.raises(RefusedError, match=r"no room for 204800 bytes of 1048576"):
        device.allocate(200 << 10)
    device.release(held)
    assert device.allocate(200 << 10) % 256 == 0


def test_allocations_never_overlap(make_device: DeviceMaker) -> None:
    seed = 20260729
    generator = random.Random(seed)
    device = make_device("memory=4M")
    live: dict[int, bytes] = {}
    for _ in range(150):
        if live and generator.random() < 0.5:
            at = generator.choice(sorted(live))
            assert download(device, at, len(live[at])) == live.pop(at), f"seed {seed}"
            device.release(at)
        else:
            data = generator.randbytes(generator.choice([1, 255, 256, 257, 5000, 70000]))
            live[upload(device, data)] = data
    for at, data in live.items():
        assert download(device, at, len(data)) == data, f"seed {seed}"


def test_capture_is_reported_when_the_options_say_so(make_device: DeviceMaker) -> None:
    assert not make_device().capturing()
    assert make_device("capturing=1").capturing()


def test_a_trap_is_an_error_of_all_that_follows(make_device: DeviceMaker) -> None:
    device = make_device("latency=0")
    stream, event = device.stream(), device.event()
    at, host = upload(device, words(1)), Host(device, words(0))
    device.launch("probe_trap", args(a=3), stream=stream)
    device.copy_out(host.address, at, BYTES, stream)
    device.record(event, stream)
    assert device.finish(event) is State.FAILED
    assert device.why_not == "probe_trap, block 0, thread 3: trap"
    assert host.data == words(0)
    for call in (
        lambda: device.synchronize(stream),
        lambda: add(device, at, at, 1),
        lambda: device.allocate(16),
        lambda: device.copy_out(host.address, at, BYTES),
        lambda: device.record(event),
    ):
        with pytest.raises(RefusedError, match="thread 3: trap"):
            call()
    assert device.query(event) is State.FAILED


@pytest.mark.parametrize(
    ("mode", "what"), [("plain", "probe_add: wrote"), ("race", "probe_add, block 0, thread 255: reads 4 bytes at")]
)
def test_a_kernel_that_leaves_its_buffer_fails_the_device(make_device: DeviceMaker, mode: str, what: str) -> None:
    device = make_device(mode=mode)
    at, event = upload(device, words(1)[:-4]), device.event()
    add(device, at, at, 1)
    device.record(event)
    assert device.finish(event) is State.FAILED
    assert device.why_not.startswith(f"{what} 0 bytes past the end of an allocation of 1020 bytes")


def test_copies_out_of_bounds_fail_the_device(make_device: DeviceMaker) -> None:
    for call, why in (
        (lambda d, at, h: d.copy_in(at, h, 1025), "copy to the device of 1025 bytes at byte 0 of an allocation"),
        (lambda d, at, h: d.copy_out(h, at + 8, 1024), "copy from the device of 1024 bytes at byte 8 of"),
        (lambda d, at, h: d.copy(at + 512, at, 513), "copy on the device to of 513 bytes at byte 512 of"),
        (lambda d, at, h: d.fill(at, 0, 2000), "fill of 2000 bytes at byte 0 of"),
        (lambda d, at, h: d.copy_in(at, at, 16), "takes device memory for host memory"),
        (lambda d, at, h: d.copy_out(at, at, 16), "takes device memory for host memory"),
    ):
        device = make_device()
        at, host = device.allocate(BYTES), Host(device, bytes(4096))
        call(device, at, host.address)
        with pytest.raises(RefusedError, match=why):
            device.synchronize()


def test_launches_that_a_gpu_would_refuse_are_refused(make_device: DeviceMaker) -> None:
    device = make_device()
    for call, why in (
        (lambda: device.launch("probe_none", args()), 'no kernel "probe_none"'),
        (lambda: device.launch("probe_add", args() + b"x"), "takes 32 bytes of arguments, not 33"),
        (
            lambda: device.launch("probe_add", args(), block=257),
            "launched with 257 threads a block, and has at most 256",
        ),
        (lambda: device.launch("probe_add", args(), grid=0), "empty grid"),
        (lambda: device.launch("probe_add", args(), shared=1 << 20), "1048576 bytes of shared memory, of 232448"),
        (lambda: device.launch("probe_add", args(), stream=12345), "no such stream"),
    ):
        with pytest.raises(RefusedError, match=why):
            call()
    device.synchronize()  # none of that has failed the device


def test_a_thread_has_to_bind_the_device(make_device: DeviceMaker) -> None:
    device = make_device(bound=False)
    other = make_device()
    with pytest.raises(RefusedError, match="not current in this thread"):
        device.allocate(16)
    device.bind()
    device.allocate(16)
    refused: list[str] = []

    def elsewhere() -> None:
        try:
            device.allocate(16)
        except RefusedError as error:
            refused.append(str(error))
        device.bind()
        device.allocate(16)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(refused) == 1
    with pytest.raises(RefusedError, match="not current"):
        other.allocate(16)  # the second bind() hides the first ...
    device.unbind()
    other.allocate(16)  # ... until it is undone


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_mapped_memory_is_reached_by_kernels(make_device: DeviceMaker, mode: str) -> None:
    device = make_device(mode=mode)
    host = ctypes.create_string_buffer(words(1), BYTES)
    at = device.map(ctypes.addressof(host), BYTES)
    add(device, at, at, 1)
    device.synchronize()
    assert host.raw == words(2)
    device.unmap(ctypes.addressof(host))


def test_memory_mapped_for_reading_is_not_written(make_device: DeviceMaker) -> None:
    device = make_device(mode="race")
    host = ctypes.create_string_buffer(words(1), BYTES)
    at = device.map(ctypes.addressof(host), BYTES, writable=False)
    add(device, device.allocate(BYTES), at, 1)
    device.synchronize()
    add(device, at, at, 1)
    with pytest.raises(RefusedError, match="writes 4 bytes at host memory that is not mapped"):
        device.synchronize()
    assert host.raw == words(1)


def test_without_mapping_there_is_no_mapped_memory(make_device: DeviceMaker) -> None:
    device = make_device("mappable=0", mode="race")
    host = ctypes.create_string_buffer(BYTES)
    with pytest.raises(RefusedError, match="cannot be mapped"):
        device.map(ctypes.addressof(host), BYTES)
    pinned = Host(device, words(1))
    add(device, device.allocate(BYTES), pinned.address, 1)  # pinned memory is no exception then
    with pytest.raises(RefusedError, match="host memory that is not mapped"):
        device.synchronize()


def test_streams_and_events_may_go_before_their_work_is_done(make_device: DeviceMaker) -> None:
    for seed in SEEDS[:10]:
        device = make_device(f"seed={seed}")
        first, second = device.stream(), device.stream()
        made, done = device.event(), device.event()
        at = upload(device, words(0))
        add(device, at, at, 1, first)
        device.record(made, first)
        device.wait(second, made)
        add(device, at, at, 1, second)
        device.record(done, second)
        device.release_event(made)
        device.release_stream(first)
        device.release_stream(second)
        with pytest.raises(RefusedError, match="no such stream"):
            device.record(done, first)
        assert device.finish(done) is State.DONE
        assert download(device, at) == words(2)


def test_threads_may_share_a_device(make_device: DeviceMaker) -> None:
    device = make_device()
    wrong: list[str] = []

    def work(number: int) -> None:
        device.bind()
        stream, event = device.stream(), device.event()
        at = upload(device, words(number), stream)
        for _ in range(20):
            add(device, at, at, 1, stream)
            device.record(event, stream)
            device.finish(event, queries=10_000_000)
        if download(device, at, stream=stream) != words(number + 20):
            wrong.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_device_says_what_it_is(make_device: DeviceMaker) -> None:
    device = make_device("seed=7 multiprocessors=3 capability=100 order=reversed")
    assert (device.name, device.multiprocessors, device.capability) == ("emulated device, seed 7", 3, 100)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("sede=1", 'the emulated device has no option "sede"'),
        ("seed=x", 'seed needs a number, not "x"'),
        ("seed", 'seed needs a number, not ""'),
        ("memory=5X", 'memory needs a number, not "5X"'),
        ("order=shuffled", 'order is in_turn, reversed or random, not "shuffled"'),
        ("multiprocessors=0", "multiprocessors must not be 0"),
    ],
)
def test_bad_options_are_refused_with_a_sentence(make_device: DeviceMaker, options: str, why: str) -> None:
    with pytest.raises(RefusedError, match=f"^{why}$"):
        make_device(options)


@pytest.mark.skipif("ospke" not in Path("/proc/cpuinfo").read_text(), reason="needs protection keys")
def test_a_host_that_touches_device_memory_faults() -> None:
    program = """
import ctypes, resource
from tests.emulator.conftest import PROBE
from tests.emulator.device import Device
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
device = Device(PROBE)
at = device.allocate(64)
print("allocated", flush=True)
ctypes.string_at(at, 64)
print("read", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "allocated\n", done.stderr
    assert done.returncode < 0
