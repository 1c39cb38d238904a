"""Groups of real processes for tests of the communicator, and what a host could do to their shared memory.

Ranks are forked from a server process that has the package imported: fast, and free of what other tests left in this
process. Each runs a module-level function ``body(comm, *args)`` and reports what it returned or raised.
"""

from __future__ import annotations

import fcntl
import mmap
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import securecoll
from securecoll.communicator import Communicator
from securecoll.shape import Shape

WATCHDOG_SECONDS = 60.0
GROUP_SECONDS = 10.0
SMALL = Shape(slot_bytes=4096, depth=4, wave=2)
"""Small slots, so that small arrays take many records, wrap the lanes and fill waves."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["numpy", "securecoll"])


@dataclass
class Outcome:
    """How a rank ended."""

    value: Any = None
    error: BaseException | None = None
    seconds: float = 0.0
    """From the start of the body."""
    exit_code: int | None = None


def settings() -> dict[str, str]:
    """This process's, for ranks that it starts: the fork server has those of when it was started."""
    return {name: value for name, value in os.environ.items() if name.startswith("SECURECOLL_")}


def configure(settings: dict[str, str]) -> None:
    """Gives this process the settings of the one that started it."""
    for name in [name for name in os.environ if name.startswith("SECURECOLL_")]:
        del os.environ[name]
    os.environ.update(settings)


def _rank(
    rank: int,
    size: int,
    folder: Path,
    key: Path,
    settings: dict[str, str],
    pipe: Any,
    body: Callable[..., Any],
    args: Any,
    options: Any,
) -> None:
    configure(settings)
    exchange = securecoll.DirectoryExchange(folder / "exchange", rank=rank, size=size) if size > 1 else None
    began = time.monotonic()
    options = dict(options)
    try:
        if "prepare" in options:
            options.pop("prepare")(rank, folder)
        if "device" in options:
            options = {**options, "device": options["device"](rank)}
        comm = Communicator.create(exchange, key, **{"timeout": GROUP_SECONDS, **options})
    except Exception as e:
        pipe.send(("done", Outcome(error=e, seconds=time.monotonic() - began)))
        return
    pipe.send(("joined", None))
    began = time.monotonic()
    outcome = Outcome()
    try:
        outcome.value = body(comm, *args)
    except Exception as e:
        outcome.error = e
    outcome.seconds = time.monotonic() - began
    pipe.send(("done", outcome))
    comm.close()


class Group:
    """Running ranks. ``pids`` and ``segments`` are for tests that play the host."""

    def __init__(self, processes: list[Any], pipes: list[Any]) -> None:
        self._processes = processes
        self._pipes = pipes
        self._outcomes: dict[int, Outcome] = {}

    @property
    def pids(self) -> list[int]:
        return [p.pid for p in self._processes]

    def wait_joined(self) -> None:
        """Returns when every rank has joined."""
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(WATCHDOG_SECONDS), f"rank {rank} did not join"
            kind, outcome = pipe.recv()
            if kind == "done":
                self._outcomes[rank] = outcome
                raise AssertionError(f"rank {rank} did not join") from outcome.error

    def kill(self, rank: int, signum: int = signal.SIGKILL) -> None:
        os.kill(self.pids[rank], signum)

    def finish(self) -> list[Outcome]:
        """What every rank reported; a rank that died reports nothing but its exit code."""
        deadline = time.monotonic() + WATCHDOG_SECONDS
        for rank, (process, pipe) in enumerate(zip(self._processes, self._pipes, strict=True)):
            while rank not in self._outcomes:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"rank {rank} hangs")
                try:
                    kind, outcome = pipe.recv()
                except EOFError:
                    break
                if kind == "done":
                    self._outcomes[rank] = outcome
            process.join(max(0.1, deadline - time.monotonic()))
            assert process.exitcode is not None, f"rank {rank} does not exit"
            self._outcomes.setdefault(rank, Outcome()).exit_code = process.exitcode
        return [self._outcomes[rank] for rank in range(len(self._processes))]


@contextmanager
def group(
    size: int, folder: Path, body: Callable[..., Any], *args: Any, per_rank: list[Any] | None = None, **options: Any
) -> Iterator[Group]:
    """Starts ``size`` ranks, with this process's settings. ``per_rank`` gives each rank's further arguments;
    ``options`` go to :meth:`Communicator.create`; there, ``device`` is called with the rank, in its process. So is
    ``prepare``, with the rank and the group's folder, before anything else."""
    (folder / "exchange").mkdir()
    key = folder / "key"
    if not key.exists():  # a test may want one that others have, too
        descriptor = os.open(key, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(descriptor, os.urandom(32))
        os.close(descriptor)
    processes, pipes = [], []
    for rank in range(size):
        ours, theirs = _context.Pipe()
        more = tuple(args) + (tuple(per_rank[rank]) if per_rank else ())
        arguments = (rank, size, folder, key, settings(), theirs, body, more, options)
        process = _context.Process(target=_rank, args=arguments)
        process.start()
        theirs.close()
        processes.append(process)
        pipes.append(ours)
    try:
        yield Group(processes, pipes)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join(10)


def run(size: int, folder: Path, body: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    """Runs ``body`` on ``size`` ranks, and returns what each returned; raises what the first one raised."""
    with group(size, folder, body, *args, **options) as ranks:
        outcomes = ranks.finish()
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
        assert outcome.exit_code == 0
    return [outcome.value for outcome in outcomes]


def segments() -> dict[str, int]:
    """Our segments that have a name in shared memory, and the process that owns each, 0 where none does any more."""
    found = {}
    for name in sorted(os.listdir("/dev/shm")):
        if not name.startswith("securecoll-"):
            continue
        try:
            with Path("/dev/shm", name).open("rb") as file:
                # struct flock: type, whence, start, length, pid
                query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
                kind, *_, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, query))
        except FileNotFoundError:
            continue
        found[name] = 0 if kind == fcntl.F_UNLCK else pid
    return found


def left_behind() -> list[str]:
    """Our segments in shared memory that nobody owns."""
    return [name for name, owner in segments().items() if not owner]


class HostView:
    """A rank's segment, as the host sees it: all of it, to read and to write.

    Mirrors ``SegmentShape`` of kernels/engine/segment.hpp; the test that compares their sizes guards the mirror.
    """

    _PAGE = 4096
    _WORD = 64
    CONTROL_LANE = 32 * 192

    def __init__(self, pid: int, rank: int, size: int, shape: Shape) -> None:
        self.rank, self.size, self.shape = rank, size, shape
        self.stride = self._pages(shape.slot_bytes + 16)
        self.heads_at = 2 * self._PAGE + self._pages(size * self._WORD)
        self.tails_at = self.heads_at + self._pages((4 * size + 1) * self._WORD)
        self.control_at = self.tails_at + self._pages(5 * size * self._WORD)
        self.slots_at = self._pages(self.control_at + size * self.CONTROL_LANE)
        self.messages_at = self.slots_at + size * shape.depth * self.stride
        self.bytes = self.messages_at + 2 * size * shape.depth * self.stride
        self.memory = self._map(pid) if pid else None

    @classmethod
    def _pages(cls, n: int) -> int:
        return (n + cls._PAGE - 1) // cls._PAGE * cls._PAGE

    def _map(self, pid: int) -> mmap.mmap:
        # The name is gone, but the host reaches the file through the process that holds it open; the own segment is
        # the one open for writing.
        for entry in sorted(Path(f"/proc/{pid}/fd").iterdir(), key=lambda p: int(p.name)):
            try:
                target = os.readlink(entry)
                flags = int(Path(f"/proc/{pid}/fdinfo/{entry.name}").read_text().split("flags:")[1].split()[0], 8)
            except OSError:
                continue
            if "/securecoll-" in target and flags & os.O_ACCMODE == os.O_RDWR:
                with entry.open("r+b", buffering=0) as file:
                    return mmap.mmap(file.fileno(), self.bytes)
        raise AssertionError(f"process {pid} has no segment")

    def _word(self, at: int) -> int:
        assert self.memory is not None
        return int.from_bytes(self.memory[at : at + 8], "little")

    def _set_word(self, at: int, value: int) -> None:
        assert self.memory is not None
        self.memory[at : at + 8] = (value % 2**64).to_bytes(8, "little")

    def head_at(self, lane: int) -> int:
        """Of the lane to a rank, with ``lane == size`` to all, or of :meth:`messages` or :meth:`bulk`."""
        return self.heads_at + lane * self._WORD

    def messages(self, peer: int) -> int:
        """The lane for messages to ``peer``."""
        return 2 * self.size + 1 + peer

    def bulk(self, peer: int) -> int:
        """The lane for long messages to ``peer``."""
        return 3 * self.size + 1 + peer

    def tail_at(self, index: int) -> int:
        """Of the lane from a rank, or with ``size + p`` from rank p's lane to all."""
        return self.tails_at + index * self._WORD

    def head(self, lane: int) -> int:
        return self._word(self.head_at(lane))

    def set_head(self, lane: int, value: int) -> None:
        self._set_word(self.head_at(lane), value)

    def tail(self, index: int) -> int:
        return self._word(self.tail_at(index))

    def set_tail(self, index: int, value: int) -> None:
        self._set_word(self.tail_at(index), value)

    def slot_at(self, lane: int, position: int) -> int:
        """Offset of the slot that record ``position`` of a lane takes."""
        if lane > 2 * self.size:
            kind, peer = divmod(lane - 2 * self.size - 1, self.size)
            place = self.size + 2 * peer + kind
        else:
            place = self.rank if lane == self.size else lane
        return self.slots_at + place * self.shape.depth * self.stride + position % self.shape.depth * self.stride

    def flip(self, at: int, bit: int = 0) -> None:
        assert self.memory is not None
        self.memory[at] ^= 1 << bit

    def wait_head(self, lane: int, at_least: int) -> None:
        deadline = time.monotonic() + WATCHDOG_SECONDS / 2
        while self.head(lane) < at_least:
            assert time.monotonic() < deadline, "the record never came"
            time.sleep(0.001)
