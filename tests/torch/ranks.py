"""Ranks of a process group that live as long as a test module and run functions on demand.

Starting a rank means importing torch, which takes seconds. So ranks are forked from a server process that has it
imported (not from pytest itself: secrets do not survive a fork, and another test may have made some), join one group
per world size, and then run the body of test after test.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.groups import configure  # tests.groups sets the fork server's list, see below

GROUP_SECONDS = 20
WATCHDOG_SECONDS = 60

_context = multiprocessing.get_context("forkserver")
# One server serves all tests of a run, so this list holds what tests/groups.py wants too, and is set after it.
_context.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook",
        "torch.distributed.checkpoint.state_dict",
        "torch.distributed.fsdp",
        "torch.distributed.nn.functional",
        "torch.distributed.tensor.parallel",
        "securecoll.torch",
        "tests.torch.training",
    ]
)


TRANSPORTS = {"shared memory": {}, "sockets": {"SECURECOLL_TRANSPORT": "tcp", "SECURECOLL_IFNAME": "lo"}}
"""What ranks are connected by, and the settings that say so."""


def on_ranks(*sizes: int, over_both: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a test of a function ``body(rank, size)`` that every rank runs, once for each world size, in shared memory
    or over both transports."""
    cells = [pytest.param(size, "shared memory", id=f"{size}") for size in sizes]
    if over_both:
        cells = [pytest.param(size, name, id=f"{size}-{name}") for size in sizes for name in TRANSPORTS]

    def decorate(body: Callable[[int, int], None]) -> Callable[..., None]:
        @pytest.mark.parametrize(("size", "over"), cells)
        def test(size: int, over: str, ranks: Callable[[int, str], Ranks]) -> None:
            ranks(size, over).run(body.__module__, body.__name__)

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        test.body = body  # type: ignore[attr-defined]
        return test

    return decorate


class Ranks:
    """``size`` processes in one process group."""

    def __init__(self, size: int, folder: Path, over: str) -> None:
        self.size = size
        self._over = over
        self._folder = folder
        self._starts = 0
        self._processes: list[Any] = []
        self._pipes: list[multiprocessing.connection.Connection] = []

    def run(self, module: str, name: str) -> None:
        """Runs ``module.name.body(rank, size)`` on every rank; fails with every rank's traceback."""
        if not self._processes:
            self._start()
        self._ask(pickle.dumps((module, name)), name)

    def stop(self) -> None:
        """Lets the ranks leave their group; kills those that do not."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        self._starts += 1
        store, key = self._folder / f"store {self.size} {self._over} {self._starts}", self._folder / "key"
        settings = {**TRANSPORTS[self._over], "SECURECOLL_KEY_FILE": str(key)}
        if not key.exists():
            key.write_bytes(os.urandom(32))
            key.chmod(0o600)
        for rank in range(self.size):
            ours, theirs = _context.Pipe()
            arguments = (rank, self.size, str(store), settings, theirs)
            process = _context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._ask(b"", "joining")

    def _ask(self, message: bytes, what: str) -> None:
        deadline = time.monotonic() + WATCHDOG_SECONDS
        answers: dict[int, str] = {}
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(message)
            except OSError:
                answers[rank] = "the process is gone"
        while len(answers) < self.size:
            open_pipes = [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers]
            ready = multiprocessing.connection.wait(open_pipes, deadline - time.monotonic())
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                try:
                    answers[rank] = pickle.loads(self._pipes[rank].recv_bytes())
                except (EOFError, OSError):
                    answers[rank] = "the process died"
        for rank in range(self.size):
            if rank not in answers:
                answers[rank] = f"still running after {WATCHDOG_SECONDS} s"
                os.kill(self._processes[rank].pid, signal.SIGUSR1)  # its stack, on stderr
        failures = [f"rank {rank}: {answers[rank]}" for rank in range(self.size) if answers[rank]]
        if failures:
            time.sleep(0.5 if any("still running" in failure for failure in failures) else 0)
            for process in self._processes:
                process.kill()
            self.stop()  # the next test gets a new group
            pytest.fail(f"{what}\n" + "\n".join(failures), pytrace=False)


def _serve(
    rank: int, size: int, store: str, settings: dict[str, str], pipe: multiprocessing.connection.Connection
) -> None:
    import faulthandler

    import torch
    import torch.distributed as dist

    import securecoll.torch  # noqa: F401 (registers the backend where torch has not)

    faulthandler.register(signal.SIGUSR1)
    configure(settings)
    torch.set_num_threads(1)
    while True:
        try:
            message = pipe.recv_bytes()
        except EOFError:
            break
        answer = ""
        try:
            if message:
                module, name = pickle.loads(message)
                getattr(importlib.import_module(module), name).body(rank, size)
            else:
                dist.init_process_group(
                    "securecoll",
                    init_method=f"file://{store}",
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=GROUP_SECONDS),
                )
        except BaseException:
            answer = traceback.format_exc()
        pipe.send_bytes(pickle.dumps(answer))
    if dist.is_initialized():
        dist.destroy_process_group()


@functools.cache
def key_for(folder: Path) -> Path:
    """A key file in ``folder``, for processes that a test starts itself."""
    path = folder / "own_key"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return path
