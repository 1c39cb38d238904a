"""Runs of the suite inside torch's wheel: which there are, and how one test after another is run in them.

A run is a process of its own, since the suite looks at the environment when it is imported. It forks a child for each
test, the head of a process group, which forks the ranks: so a test that hangs can be ended with all that it started,
and what a test leaves behind does not reach the next.
"""

from __future__ import annotations

import enum
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import unittest
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import tests.torch.ranks  # noqa: F401 (the fork server has torch imported)


@dataclass(frozen=True)
class Setting:
    """What a run tells the suite, and what it gives it."""

    name: str
    """Of the backend, in the suite's eyes: what it skips, and what it expects, goes by that."""
    ranks: int
    groups: str = "securecoll"
    """The backend that process groups are really made of."""

    def over(self, groups: str) -> Setting:
        """The same run over another backend's groups."""
        return replace(self, groups=groups)

    def __str__(self) -> str:
        return f"{self.groups} as {self.name}, {self.ranks} ranks"


SETTINGS = (Setting("securecoll", 2), Setting("securecoll", 4), Setting("gloo", 4))
"""As a third party, whose name the suite has not heard of, and made to believe that it runs gloo."""


class Status(enum.Enum):
    """How a test ended."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Outcome:
    """Of one test."""

    status: Status
    seconds: float = 0.0
    why: str = ""
    """Why it was skipped, or its traceback."""
    output: str = ""
    """What it and its ranks printed."""

    @property
    def reason(self) -> str:
        """One line of why: what was raised on the first rank that failed."""
        raised: list[str] = re.findall(r"^[\w.]+: .+$", self.why, re.MULTILINE)
        of_ranks = [line for line in raised if "exited with error code" not in line]
        return of_ranks[0] if of_ranks else self.why.strip().rpartition("\n")[2]


class Run:
    """The process of one setting. A context manager."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        context = multiprocessing.get_context("forkserver")
        self._pipe, self._theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(setting, self._theirs))

    def __enter__(self) -> Run:
        self._process.start()
        self._theirs.close()  # so that reading ends when the process does
        self.names: list[str] = self._pipe.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(10)
        self._process.kill()
        self._process.join()

    def test(self, name: str, timeout: float) -> Outcome:
        """Runs one test, for at most ``timeout`` seconds."""
        self._pipe.send((name, timeout))
        outcome: Outcome = self._pipe.recv()
        return outcome


def _serve(setting: Setting, pipe: Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="torch-suite-") as folder:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        key = Path(folder, "key")
        key.write_bytes(os.urandom(32))
        key.chmod(0o600)
        os.environ.update(
            BACKEND=setting.name,
            GROUPS=setting.groups,
            WORLD_SIZE=str(setting.ranks),
            INIT_METHOD=Path(folder, "store").as_uri(),  # a test of timeouts runs with a file only
            SECURECOLL_KEY_FILE=str(key),
            OMP_NUM_THREADS="1",
        )
        from tests.torch_suite.suite import Suite

        pipe.send(unittest.TestLoader().getTestCaseNames(Suite))
        while True:
            try:
                name, timeout = pipe.recv()
            except EOFError:
                return
            pipe.send(_run(Suite(name), timeout))


def _run(test: unittest.TestCase, timeout: float) -> Outcome:
    began = time.monotonic()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        child = os.fork()
        if child == 0:
            _child(test, theirs, output.fileno())
        theirs.close()
        try:
            outcome = _await(ours, timeout)
        finally:
            with suppress(ProcessLookupError):  # it died before it had a group of its own
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ours.close()
        output.seek(0)
        return replace(outcome, seconds=time.monotonic() - began, output=output.read())


def _await(pipe: Connection, timeout: float) -> Outcome:
    if not pipe.poll(timeout):
        return Outcome(Status.FAILED, why=f"still running after {timeout:.0f} s")
    try:
        outcome: Outcome = pipe.recv()
    except EOFError:
        return Outcome(Status.FAILED, why="the process that runs the test died")
    return outcome


def _child(test: unittest.TestCase, pipe: Connection, output: int) -> None:
    try:
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        result = unittest.TestResult()
        test.run(result)
        sys.stdout.flush()
        problems = [text for _, text in result.failures + result.errors]
        if problems:
            pipe.send(Outcome(Status.FAILED, why="\n".join(problems)))
        elif result.skipped:
            pipe.send(Outcome(Status.SKIPPED, why=result.skipped[0][1]))
        else:
            pipe.send(Outcome(Status.PASSED))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)
