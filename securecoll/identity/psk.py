"""Pre-shared keys, and where they come from.

A key is at least 32 random bytes, never a password: whoever records a handshake could try guesses offline. Any
holder of the key can be any rank. A source moves the key into the engine's locked memory and overwrites the copy it
read; what stays visible to Python is a handle. Each refusal is a :class:`ConfigError` that says what to do, and
never quotes the key.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import threading
from typing import Protocol

from securecoll._engine import Secret
from securecoll.errors import ConfigError

MIN_BYTES = 32
MAX_BYTES = 1024
_DESCRIPTOR_SECONDS = 10.0

_MAKE_ONE = "make one with `securecoll keygen PATH`"


class KeySource(Protocol):
    """Where a pre-shared key comes from."""

    def psk(self) -> Secret:
        """The key. The handle may be the source's own: do not erase it. Raises :class:`ConfigError`."""
        ...


class KeyFile:
    """A file of 32 to 1024 raw bytes, as ``securecoll keygen`` writes it.

    It must be a regular file, not a symbolic link, owned by this user, and closed to everyone else (0600 or less):
    otherwise someone else may have chosen or read the key.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def __repr__(self) -> str:
        return f"KeyFile({self._path!r})"

    def psk(self) -> Secret:
        """Reads the file. Raises :class:`ConfigError`."""
        what = f"key file {self._path!r}"
        try:
            # O_NONBLOCK: a FIFO put in its place must not hang us before fstat sees it.
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as e:
            if e.errno == errno.ELOOP:
                raise ConfigError(f"{what} is a symbolic link: give the path of the file itself") from None
            if e.errno == errno.ENOENT:
                raise ConfigError(f"{what} does not exist: {_MAKE_ONE}") from None
            raise ConfigError(f"{what} cannot be opened: {os.strerror(e.errno or 0)}") from None
        except ValueError:
            raise ConfigError(f"{what} is not a path") from None
        try:
            _check_file(what, os.fstat(fd))
            return _admit(what, _read(fd, MAX_BYTES + 1))
        finally:
            os.close(fd)


class KeyDescriptor:
    """An inherited file descriptor (a pipe, memfd or open file) that holds 32 to 1024 raw bytes.

    It is read to its end and closed, once; the source keeps the handle. A pipe's writer must close its end within 10
    seconds.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._read = False
        self._key: Secret | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"KeyDescriptor({self._fd})"

    def psk(self) -> Secret:
        """Reads the descriptor at the first call. Raises :class:`ConfigError`."""
        with self._lock:
            if self._key is None:
                self._key = self._take()
            return self._key

    def _take(self) -> Secret:
        what = f"key descriptor {self._fd}"
        if self._read:  # by now its number may name another file
            raise ConfigError(f"{what} was read before, and held no key")
        self._read = True
        try:
            data = _read(self._fd, MAX_BYTES + 1, _DESCRIPTOR_SECONDS)
        except TimeoutError:
            raise ConfigError(
                f"{what} did not end within {_DESCRIPTOR_SECONDS:g} seconds: close its writing end"
            ) from None
        except (OSError, ValueError) as e:
            reason = os.strerror(e.errno) if isinstance(e, OSError) and e.errno else "it is no descriptor"
            raise ConfigError(
                f"{what} cannot be read ({reason}): pass it on to this process, for example with subprocess's pass_fds"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        return _admit(what, data)


class KeyText:
    """64 or more hexadecimal digits, for development: environments are seen by the launcher, by every child, and in
    ``/proc``. The text itself is Python's and cannot be overwritten."""

    def __init__(self, text: str, what: str = "key") -> None:
        try:
            if not text.isascii() or any(c.isspace() for c in text):
                raise ValueError
            data = bytearray.fromhex(text)
        except ValueError:
            # No cause: its text might quote the key.
            raise ConfigError(
                f"{what} is not hexadecimal: use {2 * MIN_BYTES} or more digits (`openssl rand -hex 32`)"
            ) from None
        self._key = _admit(what, data)

    def __repr__(self) -> str:
        return f"KeyText({self._key!r})"

    def psk(self) -> Secret:
        """The key."""
        return self._key


class MemoryKey:
    """A key that is already in the engine's memory."""

    def __init__(self, key: Secret) -> None:
        self._key = key

    def __repr__(self) -> str:
        return f"MemoryKey({self._key!r})"

    def psk(self) -> Secret:
        """The key."""
        return self._key


def _check_file(what: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{what} is not a regular file")
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{what} belongs to uid {status.st_uid}, not to this process's uid {os.geteuid()}: chown it")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~0o600:
        raise ConfigError(
            f"{what} has mode {mode:04o}, which lets others at the key: `chmod 600` it, and make a new key"
        )


def _read(fd: int, most: int, seconds: float | None = None) -> bytearray:
    """Up to ``most`` bytes to the end of ``fd``. Raises :class:`TimeoutError` when it stays silent for ``seconds``."""
    # Read in place: a bytes object in between would be a copy of the key that nobody overwrites.
    data = bytearray(most)
    done = 0
    with memoryview(data) as view:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while done < most:
            if seconds is not None and not poll.poll(1000 * seconds):
                _wipe(data)
                raise TimeoutError
            got = os.readv(fd, [view[done:]])
            if got == 0:
                break
            done += got
    del data[done:]
    return data


def _admit(what: str, data: bytearray) -> Secret:
    """Moves a key that is long enough and not all zeros into the arena; overwrites ``data`` in any case."""
    try:
        if len(data) == 0:
            raise ConfigError(f"{what} is empty: {_MAKE_ONE}")
        if len(data) < MIN_BYTES:
            raise ConfigError(
                f"{what} has {len(data)} bytes; at least {MIN_BYTES} random ones are needed: {_MAKE_ONE}"
            )
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{what} has more than {MAX_BYTES} bytes: it is not a key; {_MAKE_ONE}")
        if not any(data):
            raise ConfigError(f"{what} is all zeros: {_MAKE_ONE}")
        return Secret.absorb(data)
    finally:
        _wipe(data)


def _wipe(data: bytearray) -> None:
    data[:] = bytes(len(data))
