"""Whatever goes wrong ends in one error of the tree on every rank, before the deadline, and leaves nothing behind."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securecoll
from securecoll import (
    CollectiveTimeout,
    Communicator,
    CommunicatorClosed,
    ConfigError,
    HandshakeError,
    MismatchError,
    PeerLostError,
    ReduceOp,
    SecureCollError,
)
from tests.engine.relay import sockets_only
from tests.groups import SMALL, configure, group, left_behind, run, segments, settings

F32 = np.float32

over_both = pytest.mark.usefixtures("transport")


def _all_reduce(count: int, dtype: Any = F32, op: ReduceOp = ReduceOp.SUM) -> Callable[[Communicator], object]:
    return lambda c: c.all_reduce(np.zeros(count, dtype), op=op)


MISMATCHES: dict[str, tuple[Callable[[Communicator], object], Callable[[Communicator], object], str, str]] = {
    "count": (_all_reduce(100), _all_reduce(200), "all_reduce(float32[100], sum)", "all_reduce(float32[200], sum)"),
    "large-count": (_all_reduce(40960), _all_reduce(40958), "float32[40960]", "float32[40958]"),
    "dtype-same-bytes": (_all_reduce(4), _all_reduce(4, np.int32), "float32[4]", "int32[4]"),
    "dtype-same-size": (_all_reduce(4), _all_reduce(8, np.float16), "float32[4]", "float16[8]"),
    "op": (_all_reduce(4), _all_reduce(4, op=ReduceOp.MAX), "sum", "max"),
    "root": (
        lambda c: c.reduce(np.zeros(4, F32), root=0),
        lambda c: c.reduce(np.zeros(4, F32), root=1),
        "root=0",
        "root=1",
    ),
    "collective": (_all_reduce(100), lambda c: c.barrier(), "all_reduce(float32[100], sum)", "barrier()"),
    "gather-scatter": (
        lambda c: c.gather(np.zeros(5, F32), root=1),
        lambda c: c.scatter(None, np.zeros(5, F32), root=0),
        "gather(float32[5], root=1)",
        "scatter(float32[5], root=0)",
    ),
    "empty": (_all_reduce(0), _all_reduce(4), "float32[0]", "float32[4]"),
    "all-to-all-edge": (
        lambda c: c.all_to_all(np.zeros(5, F32), np.zeros(4, F32), [2, 3], [2, 2]),
        lambda c: c.all_to_all(np.zeros(4, F32), np.zeros(4, F32), [2, 2], [2, 2]),
        "all_to_all(float32[5])",
        "all_to_all(float32[4])",
    ),
}


ONE_WAY = ("gather-scatter", "all-to-all-edge")


def _mismatch(comm: Communicator, name: str) -> tuple[str, str, str, str]:
    comm.barrier()
    try:
        MISMATCHES[name][comm.rank](comm)  # type: ignore[operator]
        first = ("returned", "")
    except SecureCollError as e:
        first = (type(e).__name__, str(e))
    try:
        comm.barrier()
        return *first, "returned", ""
    except SecureCollError as e:
        return *first, type(e).__name__, str(e)


@over_both
@pytest.mark.parametrize("name", MISMATCHES)
def test_f1_mismatched_calls_name_both(tmp_path: Path, name: str) -> None:
    """Every rank raises within 2 seconds, and its message holds both calls; the communicator is poisoned.

    A rank that only sends (rank 0 in the one-way cases) is done before anyone can tell it: its next call raises.
    """
    with group(2, tmp_path, _mismatch, name, shape=SMALL) as ranks:
        outcomes = ranks.finish()
    for rank, outcome in enumerate(outcomes):
        assert outcome.error is None
        kind, text, later, later_text = outcome.value
        if rank == 0 and name in ONE_WAY and kind == "returned":
            kind, text = later, later_text
        assert kind == "MismatchError", text
        assert MISMATCHES[name][2] in text and MISMATCHES[name][3] in text, text
        assert later == "MismatchError"
        assert outcome.seconds < 2
    assert not left_behind()


def _killed(comm: Communicator, signum: int) -> tuple[str, str, bool, float]:
    x = np.ones(1 << 20, F32)
    for _ in range(3):
        comm.all_reduce(x)
    if comm.rank == 1:
        os.kill(os.getpid(), signum)
    began = time.monotonic()
    try:
        while True:
            x[:] = 1
            comm.all_reduce(x, timeout=3.0)
    except SecureCollError as e:
        return type(e).__name__, str(e), not x.any(), time.monotonic() - began


@over_both
@pytest.mark.parametrize("size", [2, 4])
def test_f2_a_killed_peer_is_noticed_and_named(tmp_path: Path, size: int) -> None:
    with group(size, tmp_path, _killed, signal.SIGKILL) as ranks:
        outcomes = ranks.finish()
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank, outcome in enumerate(outcomes):
        if rank == 1:
            continue
        kind, text, zeroed, seconds = outcome.value
        assert kind == "PeerLostError", text
        assert "rank 1" in text
        assert zeroed
        assert seconds < 2
    assert not left_behind()


@over_both
def test_f2_a_stopped_peer_is_noticed_at_the_deadline(tmp_path: Path) -> None:
    with group(2, tmp_path, _killed, signal.SIGSTOP) as ranks:
        ranks.wait_joined()
        assert ranks._pipes[0].poll(20)
        ranks.kill(1)
        outcomes = ranks.finish()
    kind, text, zeroed, seconds = outcomes[0].value
    assert kind == "CollectiveTimeout"
    assert "rank 1" in text and zeroed
    assert 2.5 < seconds < 4


def _killed_before_a_childs_first_call(comm: Communicator, folder: str) -> tuple[str, str, float]:
    members = (1, 2)
    child = None
    if comm.rank in members:
        exchange = securecoll.DirectoryExchange(folder, rank=members.index(comm.rank), size=2)
        child = Communicator.create(exchange, members=members, parent=comm, timeout=20)
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        while True:
            (child or comm).all_reduce(np.ones(10, F32))
    except SecureCollError as e:
        return type(e).__name__, str(e), time.monotonic() - began


@over_both
def test_f2_a_peer_killed_before_a_childs_first_call_is_noticed_there(tmp_path: Path) -> None:
    (tmp_path / "child").mkdir()
    with group(3, tmp_path, _killed_before_a_childs_first_call, str(tmp_path / "child"), shape=SMALL) as ranks:
        outcomes = ranks.finish()
    for outcome, name in zip(outcomes, ("rank 2", "rank 1"), strict=False):  # rank 2 is the child's rank 1
        kind, text, seconds = outcome.value
        assert kind == "PeerLostError" and name in text, text
        assert seconds < 2
    assert not left_behind()


def _late(comm: Communicator) -> tuple[str, float]:
    if comm.rank == 1:
        time.sleep(1.5)
    began = time.monotonic()
    try:
        comm.all_reduce(np.zeros(10, F32), timeout=0.5)
        return "returned", 0.0
    except SecureCollError as e:
        return type(e).__name__, time.monotonic() - began


@over_both
def test_f3_timeouts_apply_at_their_own_limit(tmp_path: Path) -> None:
    waiting, late = run(2, tmp_path, _late)
    assert waiting[0] == "CollectiveTimeout" and 0.4 < waiting[1] < 1.0
    assert late[0] == "CollectiveTimeout" and late[1] < 0.5  # told at its call, not at its own deadline


def _wait_with_limit(comm: Communicator) -> None:
    if comm.rank == 1:
        time.sleep(0.7)
    x = np.full(10, 1, F32)
    work = comm.all_reduce(x, async_op=True)
    assert work is not None
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match="still in flight"):
            work.wait(0.1)
        assert not work.done()
    work.wait()  # the operation went on
    assert (x == 2).all()


@over_both
def test_a_wait_that_ends_early_leaves_the_operation_going(tmp_path: Path) -> None:
    run(2, tmp_path, _wait_with_limit)


def _abort(comm: Communicator) -> tuple[str, str]:
    if comm.rank == 1:
        time.sleep(0.3)
        comm.abort("the user said so")
    try:
        comm.all_reduce(np.zeros(10, F32))
    except SecureCollError as e:
        return type(e).__name__, str(e)
    return "returned", ""


@over_both
def test_abort_ends_the_group(tmp_path: Path) -> None:
    peer, own = run(2, tmp_path, _abort)
    assert peer[0] == "PeerLostError" and "rank 1 reports an abort" in peer[1]
    assert own[0] == "CommunicatorClosed" and "the user said so" in own[1]


def _abort_from_thread(comm: Communicator) -> tuple[str, float]:
    import threading

    if comm.rank == 1:
        time.sleep(1.0)
        return "idle", 0.0
    threading.Timer(0.3, comm.abort, ("stop",)).start()
    began = time.monotonic()
    with pytest.raises(CommunicatorClosed, match="stop"):
        comm.barrier()
    return "raised", time.monotonic() - began


@over_both
def test_abort_from_another_thread_wakes_a_blocked_call(tmp_path: Path) -> None:
    waiting, _ = run(2, tmp_path, _abort_from_thread)
    assert waiting[0] == "raised" and waiting[1] < 0.8


def _left(comm: Communicator) -> str:
    comm.barrier()
    if comm.rank == 1:
        comm.close()
        return "closed"
    with pytest.raises(PeerLostError, match="rank 1"):
        comm.barrier(timeout=5)
    return "raised"


@over_both
def test_a_peer_that_closed_is_named(tmp_path: Path) -> None:
    assert run(2, tmp_path, _left) == ["raised", "closed"]


def _raises_inside(comm: Communicator) -> str:
    try:
        with comm:
            if comm.rank == 0:
                raise KeyError("mine")
            comm.barrier(timeout=5)
    except KeyError:
        return "own"
    except SecureCollError as e:
        return type(e).__name__
    return "returned"


@over_both
def test_an_exception_in_the_block_reaches_the_peers(tmp_path: Path) -> None:
    assert run(2, tmp_path, _raises_inside) == ["own", "PeerLostError"]


BAD_CALLS: dict[str, tuple[Callable[[Communicator], object], str]] = {
    "strided": (lambda c: c.all_reduce(np.zeros((4, 4), F32)[:, 1]), "C-contiguous"),
    "read-only": (lambda c: c.all_reduce(np.broadcast_to(F32(0), (1,))), "writable"),
    "list": (lambda c: c.all_reduce([1.0, 2.0]), "C-contiguous"),
    "object": (lambda c: c.all_reduce(np.array(["a"], object)), "array"),
    "datetime": (lambda c: c.all_reduce(np.zeros(2, "datetime64[s]")), "array"),
    "dtypes-differ": (lambda c: c.all_reduce(np.zeros(2, F32), np.zeros(2, np.int32)), "float32 and the output int32"),
    "short-output": (lambda c: c.all_gather(np.zeros(4, F32), np.zeros(7, F32)), "must hold 8 elements"),
    "short-input": (lambda c: c.reduce_scatter(np.zeros(7, F32), np.zeros(4, F32)), "must hold 8 elements"),
    "indivisible": (lambda c: c.all_to_all(np.zeros(7, F32), np.zeros(7, F32)), "do not divide"),
    "counts-length": (lambda c: c.all_gather(np.zeros(1, F32), np.zeros(3, F32), counts=[1, 1, 1]), "one entry"),
    "counts-sum": (lambda c: c.all_to_all(np.zeros(4, F32), np.zeros(4, F32), [1, 2], [2, 2]), "must hold 3"),
    "one-sided": (lambda c: c.all_to_all(np.zeros(4, F32), np.zeros(4, F32), [2, 2]), "both directions"),
    "root": (lambda c: c.broadcast(np.zeros(4, F32), root=2), "root 2"),
    "negative-root": (lambda c: c.broadcast(np.zeros(4, F32), root=-1), "root -1"),
    "min-complex": (lambda c: c.all_reduce(np.zeros(4, np.complex64), op=ReduceOp.MIN), "not defined for complex64"),
    "band-float": (lambda c: c.all_reduce(np.zeros(4, F32), op=ReduceOp.BAND), "not defined for float32"),
    "avg-bool": (lambda c: c.all_reduce(np.zeros(4, bool), op=ReduceOp.AVG), "not defined for bool"),
    "overlap": (lambda c: (lambda x: c.all_reduce(x[:8], x[4:12]))(np.zeros(12, F32)), "overlap"),
    "overlap-all-to-all": (lambda c: (lambda x: c.all_to_all(x, x))(np.zeros(12, F32)), "overlap"),
    "overlap-gather": (lambda c: (lambda x: c.all_gather(x[3:7], x))(np.zeros(8, F32)), "overlap"),
    "timeout": (lambda c: c.barrier(timeout=-1), "positive seconds"),
    "algorithm": (lambda c: c.all_reduce(np.zeros(4, F32), algorithm="tree"), "'tree'"),
    "scatter-without-input": (lambda c: c.scatter(None, np.zeros(4, F32), root=c.rank), "must give `send`"),
}


def _bad_calls(comm: Communicator) -> list[str]:
    wrong = []
    for name, (call, text) in BAD_CALLS.items():
        try:
            call(comm)
            wrong.append(f"{name}: accepted")
        except ConfigError as e:
            if text not in str(e) or f"rank {comm.rank}" not in str(e):
                wrong.append(f"{name}: {e}")
    x = np.full(4, comm.rank + 1, F32)
    comm.all_reduce(x)  # nothing was sent: sequence numbers are still in step
    return wrong if (x == 3).all() else [*wrong, "wrong sum afterwards"]


@over_both
def test_bad_arguments_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    """Each refusal names the rank and the fault, and the group still works after all of them."""
    assert run(2, tmp_path, _bad_calls) == [[], []]


def _use_after_fork(comm: Communicator) -> str:
    comm.barrier()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.barrier()
            text = "returned"
        except SecureCollError as e:
            text = f"{type(e).__name__}: {e}"
        segments = [t for t in (os.readlink(f"/proc/self/fd/{f}") for f in _descriptors()) if "securecoll-" in t]
        maps = Path("/proc/self/maps").read_text()
        os.write(write, f"{text}|{len(segments)}|{'securecoll-' in maps}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    comm.barrier()  # the parent's is untouched
    return os.read(read, 4096).decode()


def _descriptors() -> list[str]:
    names = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        names.append(name)
    return names


@over_both
def test_a_forked_child_gets_an_error_and_no_descriptors(tmp_path: Path) -> None:
    for report in run(2, tmp_path, _use_after_fork):
        text, segments, mapped = report.split("|")
        assert text.startswith("CommunicatorClosed") and "fork" in text
        assert segments == "0" and mapped == "False"


def _joins_again_in_child(comm: Communicator, folder: str, key: str) -> None:
    comm.barrier()
    child = os.fork()
    if child == 0:
        try:
            exchange = securecoll.DirectoryExchange(f"{folder}/again", rank=comm.rank, size=comm.size)
            with Communicator.create(exchange, key, timeout=10) as mine:
                x = np.ones(3, F32)
                mine.all_reduce(x)
                work = mine.all_reduce(x, async_op=True)
                assert work is not None
                work.wait()
            os._exit(0 if (x == 4).all() else 3)
        except BaseException as e:
            print(repr(e), file=sys.stderr, flush=True)
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    comm.barrier()


@over_both
def test_a_forked_child_can_join_a_group_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    run(2, tmp_path, _joins_again_in_child, str(tmp_path), str(tmp_path / "key"))


def _other_rank(
    rank: int, folder: Path, key: bytes, size: int, given: dict[str, str], pipe: Any, options: dict[str, Any]
) -> None:
    configure(given)
    path = folder / f"key{rank}"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(descriptor, key)
    os.close(descriptor)
    began = time.monotonic()
    try:
        exchange = securecoll.DirectoryExchange(folder / "exchange", rank=rank, size=size)
        Communicator.create(exchange, path, timeout=5, **options)
        pipe.send(("joined", "", time.monotonic() - began))
    except Exception as e:
        pipe.send((type(e).__name__, str(e), time.monotonic() - began))


def _join_differently(folder: Path, keys: list[bytes], options: list[dict[str, Any]]) -> list[tuple[str, str, float]]:
    from tests.groups import _context

    (folder / "exchange").mkdir()
    results = []
    pairs = []
    for rank, (key, option) in enumerate(zip(keys, options, strict=True)):
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_other_rank, args=(rank, folder, key, len(keys), settings(), theirs, option))
        process.start()
        pairs.append((process, ours))
    for process, pipe in pairs:
        assert pipe.poll(30)
        results.append(pipe.recv())
        process.join(10)
        assert process.exitcode == 0
    assert not left_behind()
    return results


@over_both
def test_e4_keys_that_differ_in_one_bit_do_not_join(tmp_path: Path) -> None:
    key = bytes(range(1, 33))
    other = bytes([key[0] ^ 1]) + key[1:]
    for kind, text, seconds in _join_differently(tmp_path, [key, other], [{}, {}]):
        assert kind == "AuthenticationError" and "authentication" in text
        assert seconds < 5
        assert key.hex() not in text and other.hex() not in text


@over_both
@pytest.mark.parametrize("option", [{"shape": SMALL}, {"job": "other"}], ids=["shape", "job"])
def test_members_that_ask_for_different_things_do_not_join(tmp_path: Path, option: dict[str, Any]) -> None:
    key = bytes(range(1, 33))
    for kind, text, _ in _join_differently(tmp_path, [key, key], [{}, option]):
        assert kind in ("HandshakeError", "AuthenticationError"), text


@over_both
def test_a_peer_that_never_comes_ends_at_the_deadline(tmp_path: Path) -> None:
    (tmp_path / "exchange").mkdir()
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    began = time.monotonic()
    with pytest.raises(HandshakeError, match="1"):
        Communicator.create(securecoll.DirectoryExchange(tmp_path / "exchange", rank=0, size=2), key, timeout=1)
    assert time.monotonic() - began < 5
    assert not left_behind()


def test_rank_and_size_out_of_range(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        securecoll.DirectoryExchange(tmp_path, rank=2, size=2)
    with pytest.raises(ConfigError, match="rank 1 of 4"):
        securecoll.init(exchange=securecoll.DirectoryExchange(tmp_path, rank=0, size=2), rank=1, size=4)


def test_e1_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="keygen"):
        securecoll.init()


@over_both
def test_e1_a_rank_without_a_key_does_not_leave_its_peers_waiting(tmp_path: Path) -> None:
    began = time.monotonic()
    (tmp_path / "exchange").mkdir()
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    errors: list[Exception | None] = [None, None]

    def join(rank: int) -> None:
        exchange = securecoll.DirectoryExchange(tmp_path / "exchange", rank=rank, size=2)
        try:
            Communicator.create(exchange, [key, tmp_path / "none"][rank], timeout=60)
        except securecoll.SecureCollError as e:
            errors[rank] = e

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - began < 20
    assert isinstance(errors[0], securecoll.HandshakeError) and "rank 1" in str(errors[0])
    assert isinstance(errors[1], ConfigError)


_SMALL_SHM = """
import ctypes, os, sys, threading
CLONE_NEWNS = 0x20000
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, 0x44000, None) or \\
   libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m"):
    sys.exit(77)
import securecoll
from securecoll.communicator import Communicator
def join(rank):
    try:
        Communicator.create(securecoll.DirectoryExchange(sys.argv[1], rank=rank, size=2), sys.argv[2], timeout=5)
    except securecoll.SecureCollError as e:
        sys.stdout.write(f"{type(e).__name__} {e}\\n")  # in one piece, beside the other thread's
ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
for rank in ranks: rank.start()
for rank in ranks: rank.join()
print("left", [n for n in os.listdir("/dev/shm")])
"""


def test_shared_memory_that_is_too_small(tmp_path: Path) -> None:
    """An error with path, needed and free bytes, and nothing left; never a SIGBUS."""
    (tmp_path / "exchange").mkdir()
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_SHM, str(tmp_path / "exchange"), str(key)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("mounting a small /dev/shm needs a privileged user")
    assert done.returncode == 0, done.stderr
    assert "ConfigError" in done.stdout
    assert "/dev/shm/securecoll-" in done.stdout and "needs" in done.stdout and "free" in done.stdout
    needed = securecoll._engine.segment_bytes(2, 65536, 16, 2)
    free = re.search(r"has (\d+) free", done.stdout)
    assert str(needed) in done.stdout and free is not None and int(free[1]) < 2**20
    assert len(re.findall(r"^(ConfigError|HandshakeError) rank [01]: ", done.stdout, re.MULTILINE)) == 2
    assert "left []" in done.stdout


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _many_groups(comm: Communicator, folder: str, key: str) -> tuple[list[int], list[int], list[int]]:
    descriptors, threads, resident = [], [], []
    for i in range(12):
        path = Path(folder) / f"g{i}"
        path.mkdir(exist_ok=True)
        exchange = securecoll.DirectoryExchange(path, rank=comm.rank, size=2)
        with Communicator.create(exchange, key, timeout=10) as mine:
            mine.all_reduce(np.ones(100_000, F32))
            work = mine.all_reduce(np.ones(1000, F32), async_op=True)
            assert work is not None
            work.wait()
            del work
        exchange.close()
        descriptors.append(_open_descriptors())
        threads.append(len(os.listdir("/proc/self/task")))
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    return descriptors, threads, resident


@over_both
def test_f6_groups_leak_nothing(tmp_path: Path) -> None:
    for descriptors, threads, resident in run(2, tmp_path, _many_groups, str(tmp_path), str(tmp_path / "key")):
        assert len(set(descriptors[1:])) == 1, descriptors
        assert len(set(threads[1:])) == 1, threads
        assert resident[-1] - resident[2] < 4 << 20, resident
    assert not left_behind()


FAILURES: dict[str, Callable[[Communicator], object]] = {
    "mismatch": lambda c: c.all_reduce(np.zeros(3 + c.rank, F32)),
    "timeout": lambda c: time.sleep(0.3) if c.rank else c.all_reduce(np.zeros(9000, F32), timeout=0.1),
    "abort": lambda c: c.abort() if c.rank else c.barrier(),
    "left": lambda c: c.close() if c.rank else c.barrier(),
    "unfinished": lambda c: c.all_reduce(np.zeros(9000, F32), async_op=True) and c.abort(),
}


def _failures(comm: Communicator, folder: str, key: str) -> list[tuple[str, int, int]]:
    held = []
    for i, (name, call) in enumerate([*FAILURES.items()] * 2):
        path = Path(folder) / f"{i}"
        path.mkdir(exist_ok=True)
        exchange = securecoll.DirectoryExchange(path, rank=comm.rank, size=2)
        mine = Communicator.create(exchange, key, timeout=10, shape=SMALL)
        try:
            call(mine)
            mine.all_reduce(np.zeros(3, F32))
            held.append((f"{name}: no error", 0, 0))
        except SecureCollError:
            pass
        mine.close()
        exchange.close()
        held.append((name, _open_descriptors(), len(os.listdir("/proc/self/task"))))
    return held


@over_both
def test_f6_failures_leave_nothing_in_the_process(tmp_path: Path) -> None:
    for held in run(2, tmp_path, _failures, str(tmp_path), str(tmp_path / "key"), shape=SMALL):
        assert [name for name, *_ in held] == [*FAILURES] * 2
        assert len({(descriptors, threads) for _, descriptors, threads in held[len(FAILURES) :]}) == 1, held
        assert held[-1][1:] == held[len(FAILURES) - 1][1:], held
    assert not left_behind()


@over_both
def test_f9_a_killed_job_leaves_nothing(tmp_path: Path) -> None:
    with group(3, tmp_path, _killed_all) as ranks:
        ranks.wait_joined()
        for rank in range(3):
            ranks.kill(rank)
        outcomes = ranks.finish()
    assert [o.exit_code for o in outcomes] == [-signal.SIGKILL] * 3
    assert not left_behind()


def _killed_all(comm: Communicator) -> None:
    while True:
        comm.all_reduce(np.ones(100_000, F32))


def test_f9_a_segment_without_owner_is_swept_and_others_are_not(tmp_path: Path) -> None:
    """A rank killed between making its segment and joining leaves a name; the next process removes it. A segment whose
    owner lives stays, and so does a young one, which may be about to be locked."""
    old, young, foreign = (Path("/dev/shm") / n for n in ("securecoll-0-old", "securecoll-0-young", "other-0-old"))
    for path in (old, young, foreign):
        path.write_bytes(b"x")
    probe = (
        "from securecoll import _engine; import time\n"
        "s = _engine.Mesh(0, 2, 4096, 4, True, []); print('up', flush=True); time.sleep(30)"
    )
    try:
        _age(old, 120)
        _age(foreign, 120)
        owner = subprocess.Popen([sys.executable, "-c", probe], stdout=subprocess.PIPE, text=True)
        try:
            assert owner.stdout is not None and owner.stdout.readline() == "up\n"
            owned = [name for name, pid in segments().items() if pid == owner.pid]
            assert len(owned) == 1
            assert not old.exists()
            assert young.exists() and foreign.exists()
        finally:
            owner.kill()
            owner.wait()
        (Path("/dev/shm") / owned[0]).unlink()
    finally:
        for path in (old, young, foreign):
            path.unlink(missing_ok=True)


def _age(path: Path, seconds: int) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@over_both
def test_f4_a_script_that_never_closes_exits_cleanly(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    script = (
        "import sys, numpy as np, securecoll\n"
        "c = securecoll.init(sys.argv[2], securecoll.DirectoryExchange(sys.argv[1], rank=int(sys.argv[3]), size=2))\n"
        "w = c.all_reduce(np.ones(1000, np.float32), async_op=True)\n"
        "c.barrier()\n"
    )
    (tmp_path / "exchange").mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "exchange"), str(key), str(r)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert not left_behind()


def _in_flight(comm: Communicator) -> None:
    works = []
    for i in range(8):
        x = np.full(20_000 if i % 2 else 3, float(comm.rank + i))
        works.append((x, comm.all_reduce(x, async_op=True)))
    for i, (x, work) in enumerate(works):
        assert work is not None
        work.wait()
        assert all(earlier is not None and earlier.done() for _, earlier in works[:i])
        assert (x == 2 * i + 1).all()


@over_both
def test_f15_calls_in_flight_complete_in_their_order(tmp_path: Path) -> None:
    run(2, tmp_path, _in_flight, shape=SMALL)


def _two_threads(comm: Communicator, folder: str, key: str) -> list[str]:
    def join(name: str) -> Communicator:
        path = Path(folder) / name
        path.mkdir(exist_ok=True)
        return Communicator.create(securecoll.DirectoryExchange(path, rank=comm.rank, size=2), key, timeout=10)

    def drive(mine: Communicator) -> None:
        for step in range(30):
            x = np.full(30_000 if step % 3 else 1, float(comm.rank + step))
            mine.all_reduce(x)
            if not (x == 2 * step + 1).all():
                wrong.append(f"{step}: {x[0]}")

    wrong: list[str] = []
    with join("one") as one, join("two") as two:
        threads = [threading.Thread(target=drive, args=(mine,)) for mine in (one, two)]
        for thread in threads if comm.rank else reversed(threads):
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join()
    return wrong


@over_both
def test_f15_two_groups_from_two_threads_begun_in_opposite_order(tmp_path: Path) -> None:
    assert run(2, tmp_path, _two_threads, str(tmp_path), str(tmp_path / "key")) == [[], []]


def _remove_in_round(which: int, rank: int, folder: Path) -> None:
    real = securecoll.DirectoryExchange.exchange

    def exchange(self: Any, round: int, *args: Any) -> list[bytes]:
        if (rank, round) == (1, which):
            time.sleep(0.2)  # the other is waiting
            shutil.rmtree(folder / "exchange")
        return real(self, round, *args)

    securecoll.DirectoryExchange.exchange = exchange  # type: ignore[method-assign]


@over_both
@pytest.mark.parametrize("which", [1, 2, 4])
def test_a_meeting_place_that_is_removed_while_ranks_join_ends_them_at_once(tmp_path: Path, which: int) -> None:
    with group(2, tmp_path, _late, timeout=20, prepare=partial(_remove_in_round, which)) as ranks:
        outcomes = ranks.finish()
    for outcome in outcomes:
        assert isinstance(outcome.error, HandshakeError), outcome.error
        assert outcome.seconds < 5
    assert not left_behind()


def _removed_afterwards(comm: Communicator, folder: str) -> float:
    if comm.rank == 1:
        shutil.rmtree(folder)
    x = np.ones(100_000, F32)
    comm.all_reduce(x)
    comm.barrier()
    return float(x.sum())


@over_both
def test_a_meeting_place_that_is_removed_afterwards_is_not_missed(tmp_path: Path) -> None:
    assert run(2, tmp_path, _removed_afterwards, str(tmp_path / "exchange")) == [2e5, 2e5]


def _wall_clock_jumps(rank: int, folder: Path) -> None:
    """Rank 1's, by hours, back and forth."""
    if rank != 1:
        return
    real, real_ns, hours = time.time, time.time_ns, 0

    def jump() -> int:
        nonlocal hours
        hours = 5 - hours
        return 3600 * hours

    time.time = lambda: real() + jump()
    time.time_ns = lambda: real_ns() + jump() * 10**9


def _other_monotonic_clock(rank: int, folder: Path) -> None:
    """Rank 1's is months ahead, as if its host had been up for longer."""
    sockets_only(rank, folder)
    if rank != 1:
        return
    new_time = 0x80
    libc = ctypes.CDLL(None, use_errno=True)
    before = time.monotonic()
    if libc.unshare(new_time):
        raise NotImplementedError("a time namespace needs root")
    Path("/proc/self/timens_offsets").write_text("monotonic 10000000 0")
    with Path("/proc/self/ns/time_for_children").open("rb") as file:
        if libc.setns(file.fileno(), new_time):
            raise NotImplementedError(f"setns: {os.strerror(ctypes.get_errno())}")
    assert time.monotonic() - before > 9_999_999


def _deadlines(comm: Communicator) -> float:
    for count in (1, 9001, 200_000):
        x = np.full(count, comm.rank + 1, F32)
        comm.all_reduce(x)
        assert (x == 3).all()
    if comm.rank == 0:
        time.sleep(1.3)
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout):
        comm.all_reduce(np.zeros(3), timeout=0.6)
    return time.monotonic() - began


def _hold(deadlines: list[float]) -> None:
    late, waiting = deadlines
    assert 0.5 < waiting < 1.2
    assert late < 0.5  # told that rank 1 gave up


@over_both
def test_a_wall_clock_may_jump(tmp_path: Path) -> None:
    _hold(run(2, tmp_path, _deadlines, prepare=_wall_clock_jumps))


def test_clocks_of_hosts_may_differ(tmp_path: Path) -> None:
    try:
        _hold(run(2, tmp_path, _deadlines, prepare=_other_monotonic_clock))
    except NotImplementedError as e:
        pytest.skip(str(e))


def test_errors_are_one_tree() -> None:
    for kind in (ConfigError, MismatchError, PeerLostError, CollectiveTimeout, CommunicatorClosed, HandshakeError):
        assert issubclass(kind, SecureCollError) and issubclass(kind, RuntimeError)
