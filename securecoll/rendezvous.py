"""All-gather of opaque blobs: how members meet before they share keys.

An exchange carries bytes between ranks that do not trust it. It may lose, alter or invent blobs; the handshake
notices. What an exchange promises is modest: blobs within their limit, a deadline that holds, and, where everyone
behaves, the right bytes in the right places.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import stat
import time
from array import array
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from securecoll.errors import ConfigError, HandshakeError, SecureCollError

MAX_RANKS = 1 << 16
_VERDICT_SECONDS = 1.0
_CLOCK_SLACK = 0.05


class Exchange(Protocol):
    """All-gathers one blob a rank, round by round."""

    @property
    def rank(self) -> int:
        """This rank, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many ranks there are."""
        ...

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        """Publishes ``blob`` for ``round`` and returns every rank's, in rank order.

        Rounds count from 1; round 1 begins a new attempt, whose blobs are never mixed up with an earlier one's. All
        ranks go through the same rounds. A blob may be empty: then its rank gave up. ``deadline`` is on
        :func:`time.monotonic`'s clock; past it, ``blob`` is still published where that needs no waiting. Raises
        :class:`HandshakeError` when blobs are missing at the deadline or one has more than ``max_len`` bytes.
        """
        ...


def _check_place(rank: int, size: int) -> None:
    if not 1 <= size <= MAX_RANKS:
        raise ConfigError(f"a group of {size} ranks: give 1 to {MAX_RANKS}")
    if not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size}: give a rank from 0 to {size - 1}")


def _check_name(what: str, text: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", text) or text.startswith("."):
        raise ConfigError(f"{what} {text[:80]!r}: use 1 to 64 letters, digits, '_', '-' and '.', not a '.' in front")


def _check_lengths(round: int, lengths: Iterable[int], max_len: int) -> None:
    large = [rank for rank, length in enumerate(lengths) if length > max_len]
    if large:
        raise HandshakeError(f"ranks {large[:8]} published more than {max_len} bytes in round {round}")


def _missing(round: int, ranks: list[int]) -> HandshakeError:
    who = f"ranks {ranks[:8]}{' and more' if len(ranks) > 8 else ''}" if ranks else "some ranks"
    return HandshakeError(
        f"{who} did not appear in round {round} before the deadline: are all ranks started, and alive?"
    )


class StoreExchange:
    """Over a key-value store with torch's interface: ``set(key, value)``, ``get(key)``, ``wait(keys, timeout)`` and,
    where the store has them, ``multi_get(keys)`` and ``check(keys)``.

    Rank 0 collects the blobs and publishes them as one value, so a round costs at most 3N + 1 store operations, not
    N². ``prefix`` keeps groups apart that share a store. When ranks are missing at the deadline, rank 0 publishes
    what it has, so that the others end too.
    """

    def __init__(self, store: Any, rank: int, size: int, prefix: str = "securecoll") -> None:
        _check_place(rank, size)
        _check_name("prefix", prefix)
        self._store = store
        self._rank = rank
        self._size = size
        self._prefix = prefix
        self._attempt = 0

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @property
    def host(self) -> str | None:
        """The host through which the ranks meet, where the store tells: the way there is the way to the others."""
        store = self._store
        while hasattr(store, "underlying_store"):  # torch's PrefixStore
            store = store.underlying_store
        return getattr(store, "host", None)

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        """See :class:`Exchange`."""
        if round == 1:
            self._attempt += 1
        key = f"{self._prefix}/{self._attempt}/{round}"
        try:
            if self._rank == 0:
                if round == 1 and hasattr(self._store, "check") and self._store.check([f"{key}/all"]):
                    raise ConfigError(
                        f"a group has met in this store under prefix {self._prefix!r} before: give each its own prefix"
                    )
                return self._collect(key, round, blob, max_len, deadline)
            self._store.set(f"{key}/{self._rank}", _framed(blob))
            self._wait([f"{key}/all"], deadline)
            # The store hands over whatever it has; nothing is taken from it before its length is known to fit.
            packed = bytes(self._store.get(f"{key}/all"))
        except SecureCollError:
            raise
        except Exception as e:
            if time.monotonic() >= deadline - _CLOCK_SLACK:
                raise _missing(round, [0]) from None
            raise HandshakeError(f"the store failed in round {round}: {_brief(e)}") from None
        return _unpack(packed, round, self._size, max_len)

    def _collect(self, key: str, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        keys = [f"{key}/{rank}" for rank in range(1, self._size)]
        missing: set[int] = set()
        # A little early, so that the others learn from rank 0 who is missing before their own deadline.
        left = deadline - time.monotonic()
        deadline -= min(max(left, 0.0) / 10, _VERDICT_SECONDS)
        try:
            if keys:
                self._wait(keys, deadline)
        except Exception as e:
            if time.monotonic() < deadline - _CLOCK_SLACK:
                raise HandshakeError(f"the store failed in round {round}: {_brief(e)}") from None
            if not hasattr(self._store, "check"):
                raise _missing(round, []) from None
            missing = {rank for rank, k in enumerate(keys, 1) if not self._store.check([k])}
        framed = iter(self._get_all([k for rank, k in enumerate(keys, 1) if rank not in missing]))
        blobs = [blob]
        for rank in range(1, self._size):
            value = b"" if rank in missing else next(framed)
            # A misframed or oversized blob becomes a goodbye: the group cannot go on without it.
            fits = 4 <= len(value) <= 4 + max_len and int.from_bytes(value[:4], "big") == len(value) - 4
            blobs.append(value[4:] if fits else b"")
        self._store.set(f"{key}/all", b"".join(map(_framed, blobs)))
        if missing:
            raise _missing(round, sorted(missing))
        return blobs

    def _wait(self, keys: list[str], deadline: float) -> None:
        self._store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 0.001)))

    def _get_all(self, keys: list[str]) -> list[bytes]:
        if not keys:
            return []
        if hasattr(self._store, "multi_get"):
            return [bytes(value) for value in self._store.multi_get(keys)]
        return [bytes(self._store.get(key)) for key in keys]


class MPIExchange:
    """Over an mpi4py communicator, which is duplicated: constructing this is collective.

    Lengths are gathered first and checked before anything is allocated for the blobs. All calls are non-blocking, so
    the deadline holds even where a rank never comes; MPI cannot take back a collective, so the communicator is then
    lost.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        if comm.Is_inter():
            raise ConfigError("an inter-communicator has no single group: merge it first")
        self._byte = MPI.BYTE
        self._word = MPI.UINT64_T
        self._comm = comm.Dup()
        # MPI may still write into the buffers of a collective that was given up.
        self._abandoned: list[object] = []

    @property
    def rank(self) -> int:
        """This rank."""
        return int(self._comm.Get_rank())

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return int(self._comm.Get_size())

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        """See :class:`Exchange`."""
        if self._abandoned:
            raise HandshakeError("an earlier round on this MPI communicator was given up: make a new exchange")
        mine, lengths = array("Q", [len(blob)]), array("Q", [0] * self.size)
        request = self._comm.Iallgather([mine, self._word], [lengths, self._word])
        self._finish(round, request, (mine, lengths), deadline)
        _check_lengths(round, lengths, max_len)
        offsets = [0, *itertools.accumulate(lengths)]
        gathered = bytearray(offsets.pop())
        request = self._comm.Iallgatherv([blob, self._byte], [gathered, lengths.tolist(), offsets, self._byte])
        self._finish(round, request, (blob, gathered), deadline)
        return [bytes(gathered[offset : offset + length]) for offset, length in zip(offsets, lengths, strict=True)]

    def close(self) -> None:
        """Frees the duplicate. Collective."""
        if not self._abandoned:
            self._comm.Free()

    def _finish(self, round: int, request: Any, buffers: object, deadline: float) -> None:
        for pause in _pauses():
            if request.Test():
                return
            if time.monotonic() >= deadline:
                self._abandoned.append((request, buffers))
                raise _missing(round, [])
            time.sleep(pause)


class DirectoryExchange:
    """Over files in a directory that all ranks see.

    Each blob is one file, written under another name and renamed, so that readers see all of it or nothing. Symbolic
    links are refused, and so is a directory that still holds messages of this ``attempt``: ``attempt`` names one
    start of the job, and a restart takes another name or directory. :meth:`close` removes this rank's files.
    """

    def __init__(self, path: str | os.PathLike[str], rank: int, size: int, attempt: str = "0") -> None:
        _check_place(rank, size)
        _check_name("attempt", attempt)
        self._path = Path(path)
        self._rank = rank
        self._size = size
        self._name = attempt
        self._attempt = 0
        self._published: list[str] = []
        try:
            self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as e:
            raise ConfigError(
                f"{str(self._path)!r} cannot be used to meet ({os.strerror(e.errno or 0)}): give an existing "
                "directory, not a symbolic link"
            ) from None
        mine = re.compile(rf"\.?{re.escape(attempt)}\.\d+\.\d+\.{rank}(\.draft)?")
        with os.scandir(self._directory) as entries:
            stale = any(mine.fullmatch(entry.name) for entry in entries)
        if stale:
            os.close(self._directory)
            raise ConfigError(
                f"{str(self._path)!r} holds messages of an earlier start as rank {rank} in attempt {attempt!r}: give "
                "each start its own directory or attempt"
            )

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def exchange(self, round: int, blob: bytes, max_len: int, deadline: float) -> list[bytes]:
        """See :class:`Exchange`."""
        if round == 1:
            self._attempt += 1
        earlier = list(self._published)
        try:
            self._publish(self._file(round, self._rank), blob)
            blobs: list[bytes | None] = [None] * self._size
            for pause in _pauses():
                for rank in range(self._size):
                    if blobs[rank] is None:
                        blobs[rank] = self._read(round, rank, max_len)
                missing = [rank for rank in range(self._size) if blobs[rank] is None]
                if not missing:
                    break
                if time.monotonic() >= deadline:
                    raise _missing(round, missing)
                if not os.fstat(self._directory).st_nlink:
                    raise HandshakeError(f"{str(self._path)!r} was removed in round {round}")
                time.sleep(pause)
        except OSError as e:
            raise HandshakeError(f"{str(self._path)!r} failed in round {round}: {os.strerror(e.errno or 0)}") from None
        # Whoever published this round has read the earlier ones.
        self._remove(earlier)
        return [b for b in blobs if b is not None]

    def close(self) -> None:
        """Removes this rank's files. Call it once the group has joined, or joining failed. Idempotent."""
        if self._directory >= 0:
            self._remove(list(self._published))
            os.close(self._directory)
            self._directory = -1

    def _file(self, round: int, rank: int) -> str:
        return f"{self._name}.{self._attempt}.{round}.{rank}"

    def _publish(self, name: str, blob: bytes) -> None:
        draft = f".{name}.draft"
        fd = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._directory
        )
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(blob)
            os.rename(draft, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError:
            os.unlink(draft, dir_fd=self._directory)
            raise
        self._published.append(name)

    def _read(self, round: int, rank: int, max_len: int) -> bytes | None:
        try:
            fd = os.open(
                self._file(round, rank),
                os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
                dir_fd=self._directory,
            )
        except FileNotFoundError:
            return None
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise HandshakeError(f"rank {rank}'s message in round {round} is a symbolic link") from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise HandshakeError(f"rank {rank}'s message in round {round} is not a regular file")
        with os.fdopen(fd, "rb") as file:
            blob = file.read(max_len + 1)
        if len(blob) > max_len:
            raise HandshakeError(f"rank {rank} published more than {max_len} bytes in round {round}")
        return blob

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self._directory)
            self._published.remove(name)


def _pauses() -> Iterator[float]:
    """Seconds to sleep between looks: at first only giving way, then longer, up to 20 ms."""
    pause = 0.0
    while True:
        yield pause
        pause = min(max(1.5 * pause, 1e-5), 0.02)


def _framed(blob: bytes) -> bytes:
    """With its length in front: some stores take no empty values."""
    return len(blob).to_bytes(4, "big") + blob


def _unpack(packed: bytes, round: int, size: int, max_len: int) -> list[bytes]:
    """The ``size`` framed blobs that ``packed`` holds, exactly. Raises :class:`HandshakeError`."""
    malformed = HandshakeError(f"rank 0's collection of round {round} is malformed: someone changed it on the way")
    blobs = []
    at = 0
    for _ in range(size):
        length = int.from_bytes(packed[at : at + 4], "big")
        if len(packed) - at < 4 or length > max_len or len(packed) - at - 4 < length:
            raise malformed
        blobs.append(packed[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(packed):
        raise malformed
    return blobs


def _brief(error: Exception) -> str:
    """The first line of a foreign error, which may be long."""
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
