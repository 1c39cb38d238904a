"""One rank of one contender of peers.py or hosts.py, which starts it and tells it over a socket what to run.

The buffers, inputs and checks are the same for all (harness/). Each library is called as its users call it, with its
default settings: torch in place where it only has that, MPI from one buffer into another.
"""

from __future__ import annotations

import argparse
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    COLLECTIVES,
    REDUCE,
    REDUCE_SCATTER,
    Case,
    Collective,
)
from harness.control import Channel, Message
from harness.floor import AEGIS, GCM
from harness.memory import owned_shared_bytes, private_bytes
from harness.pattern import ELEMENTS, Array, Pattern

ELEMENT = ELEMENTS["float"]

DIRECT = {"securecoll": GCM, "securecoll_aegis": AEGIS}
THROUGH_TORCH = {"securecoll_torch": GCM, "securecoll_aegis_torch": AEGIS}
"""Our contenders, and the suite of each."""


class Contender(ABC):
    """A library among whose ranks this process is one."""

    rank: int
    size: int
    in_place: frozenset[Collective] = frozenset({BROADCAST})
    """Collectives whose result replaces the input."""

    @abstractmethod
    def version(self) -> str:
        """The library and its release."""

    @abstractmethod
    def barrier(self) -> None:
        """Waits for all ranks."""

    @abstractmethod
    def bind(self, collective: Collective, send: Array, recv: Array) -> Callable[[], object]:
        """One call of the collective on these buffers, as a function; it returns when the result is there."""

    def ciphered(self) -> tuple[int, int]:
        """Bytes that this rank has sealed and opened so far."""
        return 0, 0

    @abstractmethod
    def close(self) -> None:
        """Leaves the group."""


class SecureColl(Contender):
    """securecoll through its own API, on NumPy arrays."""

    in_place = frozenset({ALL_REDUCE, BROADCAST, REDUCE})

    def __init__(self, options: argparse.Namespace, suite: str) -> None:
        import securecoll
        from securecoll.rendezvous import DirectoryExchange

        self.rank, self.size = options.rank, options.size
        exchange = DirectoryExchange(options.meet, options.rank, options.size)
        self._communicator = securecoll.init(exchange=exchange, timeout=60.0, suite=suite)
        self._algorithm = options.algorithm

    def version(self) -> str:
        import securecoll

        return f"securecoll {securecoll.__version__}, {self._communicator.suite}"

    def barrier(self) -> None:
        self._communicator.barrier()

    def bind(self, collective: Collective, send: Array, recv: Array) -> Callable[[], object]:
        c = self._communicator
        return {
            ALL_REDUCE: lambda: c.all_reduce(send, algorithm=self._algorithm),
            ALL_GATHER: lambda: c.all_gather(send, recv),
            REDUCE_SCATTER: lambda: c.reduce_scatter(send, recv),
            BROADCAST: lambda: c.broadcast(send, root=0),
            REDUCE: lambda: c.reduce(send, root=0),
            ALL_TO_ALL: lambda: c.all_to_all(send, recv),
        }[collective]

    def ciphered(self) -> tuple[int, int]:
        stats = self._communicator.stats()
        return stats.bytes_sealed, stats.bytes_opened

    def close(self) -> None:
        self._communicator.close()


class Torch(Contender):
    """A backend of torch.distributed, on CPU tensors."""

    in_place = frozenset({ALL_REDUCE, BROADCAST, REDUCE})

    def __init__(self, options: argparse.Namespace, backend: str, suite: str = "") -> None:
        import torch
        import torch.distributed
        from torch._C._distributed_c10d import FileStore

        torch.set_num_threads(1)
        self.rank, self.size = options.rank, options.size
        self._called = f"{backend}, {suite}," if suite else backend
        self._torch, self._dist = torch, torch.distributed
        store = FileStore(str(options.meet / "store"), options.size)
        given: dict[str, object] = {"store": store, "rank": options.rank, "world_size": options.size}
        if suite:
            from securecoll.torch import SecureCollOptions

            given["pg_options"] = SecureCollOptions(suite=suite)
        torch.distributed.init_process_group(backend, **given)

    def version(self) -> str:
        return f"{self._called} through torch {self._torch.__version__}"

    def barrier(self) -> None:
        self._dist.barrier()

    def bind(self, collective: Collective, send: Array, recv: Array) -> Callable[[], object]:
        source, target, dist = self._torch.from_numpy(send), self._torch.from_numpy(recv), self._dist
        return {
            ALL_REDUCE: lambda: dist.all_reduce(source),
            ALL_GATHER: lambda: dist.all_gather_into_tensor(target, source),
            REDUCE_SCATTER: lambda: dist.reduce_scatter_tensor(target, source),
            BROADCAST: lambda: dist.broadcast(source, 0),
            REDUCE: lambda: dist.reduce(source, 0),
            ALL_TO_ALL: lambda: dist.all_to_all_single(target, source),
        }[collective]

    def close(self) -> None:
        self._dist.destroy_process_group()


class Mpi(Contender):
    """MPI through mpi4py's buffer calls."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._mpi, self._world = MPI, MPI.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size

    def version(self) -> str:
        return " ".join(self._mpi.Get_library_version().split(",")[0].split("\n")[0].split())

    def barrier(self) -> None:
        self._world.Barrier()

    def bind(self, collective: Collective, send: Array, recv: Array) -> Callable[[], object]:
        world = self._world
        return {
            ALL_REDUCE: lambda: world.Allreduce(send, recv),
            ALL_GATHER: lambda: world.Allgather(send, recv),
            REDUCE_SCATTER: lambda: world.Reduce_scatter_block(send, recv),
            BROADCAST: lambda: world.Bcast(send, 0),
            REDUCE: lambda: world.Reduce(send, recv if world.rank == 0 else None, root=0),
            ALL_TO_ALL: lambda: world.Alltoall(send, recv),
        }[collective]

    def close(self) -> None:
        self._mpi.Finalize()


class Session:
    """Runs the driver's commands on one contender. One case at a time is set up."""

    def __init__(self, contender: Contender, held: int) -> None:
        self._contender = contender
        self._held = held
        self._run: Callable[[], object] | None = None
        self._buffers: tuple[Array, Array] | None = None

    def answer(self, command: Message) -> Message:
        """Carries out one command and returns what to tell the driver."""
        what = command["do"]
        if what == "begin":
            return self._begin(command)
        if what == "time":
            return self._time(command["iters"])
        if what == "end":
            self._run = self._buffers = None
            return {}
        if what == "memory":
            private = private_bytes() - self._held
            return {"private_bytes": private, "shared_bytes": owned_shared_bytes()}
        raise ValueError(f"unknown command {what!r}")

    def _begin(self, command: Message) -> Message:
        """Sets a case up and runs it once, checked: whoever computes the wrong thing is no peer."""
        contender, collective = self._contender, COLLECTIVES[command["op"]]
        self._run = self._buffers = None
        pattern = Pattern(ELEMENT, "sum" if collective.reduces else None, contender.size)
        count = max(1, command["bytes"] // (ELEMENT.itemsize * collective.parts(contender.size)))
        case = Case(collective, pattern, contender.rank, count)
        in_place = collective in contender.in_place
        send = np.zeros(case.send_count, ELEMENT.dtype)
        recv = send if in_place else np.zeros(case.recv_count, ELEMENT.dtype)
        run = contender.bind(collective, send, recv)
        result = send if collective is BROADCAST else recv
        case.prepare(send, result)
        before = contender.ciphered()
        run()
        after = contender.ciphered()
        wrong = case.count_wrong(result)
        # In place, sums would grow from call to call; zeros stay.
        send[:] = 0
        self._run, self._buffers = run, (send, recv)
        return {
            "bytes": case.nbytes,
            "wrong": wrong,
            "sealed": after[0] - before[0],
            "opened": after[1] - before[1],
        }

    def _time(self, iters: int) -> Message:
        """When each of ``iters`` calls began and ended on this rank; a barrier precedes each, and a tenth as many all.

        In seconds of the host's monotonic clock, which all ranks read alike.
        """
        run, barrier = self._run, self._contender.barrier
        if run is None:
            raise ValueError("no case is set up")
        for _ in range(max(2, iters // 10)):
            run()
        begun, ended = [], []
        for _ in range(iters):
            barrier()
            begun.append(time.monotonic())
            run()
            ended.append(time.monotonic())
        return {"begun": begun, "ended": ended}


def make(options: argparse.Namespace) -> Contender:
    """Joins the group of the contender that was asked for."""
    name = options.contender
    if name in DIRECT:
        return SecureColl(options, DIRECT[name])
    if name in ("mpich", "openmpi"):
        return Mpi()
    return Torch(options, "gloo") if name == "gloo" else Torch(options, "securecoll", THROUGH_TORCH[name])


def preload(name: str) -> None:
    """Imports what the contender needs, so that memory held before it joins counts no code."""
    if name in DIRECT:
        import securecoll.rendezvous  # noqa: F401
    elif name in ("mpich", "openmpi"):
        import mpi4py  # noqa: F401
    else:
        import torch.distributed  # noqa: F401


def main() -> None:
    """Serves commands until the driver hangs up or says quit."""
    parser = argparse.ArgumentParser(description="Started by peers.py and hosts.py.")
    parser.add_argument("contender")
    parser.add_argument("--control", type=Path, required=True, help="the driver's socket")
    parser.add_argument("--meet", type=Path, required=True, help="an empty folder where the ranks find each other")
    parser.add_argument("--rank", type=int, default=-1)
    parser.add_argument("--size", type=int, default=-1)
    parser.add_argument("--algorithm", help="securecoll: of all_reduce, in place of the tuner's choice")
    options = parser.parse_args()
    channel = Channel.connect(options.control)
    preload(options.contender)
    held = private_bytes()
    contender = make(options)
    channel.send({"rank": contender.rank, "pid": os.getpid(), "version": contender.version()})
    session = Session(contender, held)
    try:
        while (command := channel.receive())["do"] != "quit":
            channel.send(session.answer(command))
    except EOFError:
        os._exit(1)  # the driver is gone: nobody is left to agree with on how to leave
    contender.close()
    channel.send({})


if __name__ == "__main__":
    main()
