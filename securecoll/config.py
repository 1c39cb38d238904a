"""Every knob.

The launcher's environment is attacker input, so a variable may only tighten what the program asks for, and none
weakens anything: there is no variable that turns sealing or verification off. A variable whose name begins with
``SECURECOLL_`` and is not one of these is an error, so that a misspelt one is not silently without effect.
"""

from __future__ import annotations

import difflib
import logging
import os
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, fields
from typing import Any

from securecoll._engine import Secret
from securecoll.errors import ConfigError
from securecoll.identity.psk import KeyDescriptor, KeyFile, KeySource, KeyText, MemoryKey

PREFIX = "SECURECOLL_"
_JOB_BYTES = 256
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}


def _descriptor(name: str, text: str) -> int:
    return _whole(name, text, 0, 1 << 20)


def _path(name: str, text: str) -> str:
    if not text:
        raise ConfigError(f"{name} is empty: give a path, or unset it")
    return text


def _key(name: str, text: str) -> Secret:
    return KeyText(text, name).psk()


def _job(name: str, text: str) -> str:
    if len(text.encode(errors="surrogateescape")) > _JOB_BYTES or not text.isprintable():
        raise ConfigError(f"{name} must be printable text of at most {_JOB_BYTES} bytes")
    return text


def _level(name: str, text: str) -> int:
    try:
        return _LEVELS[text.lower()]
    except KeyError:
        raise ConfigError(f"{name}={text[:40]!r}: use one of {', '.join(_LEVELS)}") from None


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1e6:  # also refuses NaN
        raise ConfigError(f"{name}={text[:40]!r}: give seconds, more than 0 and at most 1000000")
    return value


def _interface(name: str, text: str) -> str:
    if not 0 < len(text) <= 64 or not text.isprintable():
        raise ConfigError(f"{name}={text[:40]!r}: give the name of a network interface, or unset it")
    return text


def _transport(name: str, text: str) -> str:
    if text not in ("auto", "tcp"):
        raise ConfigError(f"{name}={text[:40]!r}: use auto or tcp")
    return text


def _threads(name: str, text: str) -> int:
    return _whole(name, text, 1, 1024)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most):
        raise ConfigError(f"{name}={text[:40]!r}: give a whole number from {least} to {most}")
    return int(text)


def _knob(
    default: Any,
    parse: Callable[[str, str], Any],
    meaning: str,
    unit: str,
    *,
    shown: str = "not set",
    secret: bool = False,
) -> Any:
    metadata = {"parse": parse, "meaning": meaning, "unit": unit, "shown": shown}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Config:
    """What the environment asks for. Field ``x`` is the variable ``SECURECOLL_X``; ``None`` means that it is not
    set."""

    key_fd: int | None = _knob(
        None,
        _descriptor,
        "Inherited descriptor to read the pre-shared key from (raw bytes); wins over the other two.",
        "file descriptor",
    )
    key_file: str | None = _knob(
        None, _path, "File that holds the pre-shared key: raw bytes, own uid, mode 0600, no symbolic link.", "path"
    )
    key: Secret | None = _knob(  # noqa: RUF009 (a field, by another name)
        None,
        _key,
        "The pre-shared key itself, for development only. Removed from the environment once read.",
        "64 or more hexadecimal digits",
        secret=True,
    )
    job: str = _knob(
        "",
        _job,
        "Name of the job. Part of the handshake: ranks of differently named jobs never join.",
        "text, at most 256 bytes",
    )
    timeout: float | None = _knob(
        None,
        _seconds,
        "Shortens the deadline of joining and of each collective; never lengthens what the program set.",
        "seconds",
    )
    threads: int | None = _knob(
        None,
        _threads,
        "The most threads of the process-wide progress pool; never more than the engine would take.",
        "threads",
    )
    ifname: str | None = _knob(
        None,
        _interface,
        "Network interface that this rank listens on and connects from; without it, the one that leads to where the "
        "ranks meet, else the default route's, else loopback.",
        "name",
    )
    transport: str = _knob(
        "auto",
        _transport,
        "How records travel: auto, through shared memory between ranks that share it and else through TCP; tcp, "
        "through TCP alone.",
        "auto or tcp",
        shown="auto",
    )
    network: str | None = _knob(
        None,
        _path,
        "What plans are chosen by, the same on all ranks: a file of rates, or the word measure, which has the ranks "
        "measure them when they have joined.",
        "path, or measure",
        shown="the package's own rates",
    )
    log: int = _knob(
        logging.WARNING,
        _level,
        "Least severe messages that are logged. No level logs keys, nonces or payloads.",
        "error, warning, info or debug",
        shown="warning",
    )

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Config:
        """Reads ``environ`` and removes SECURECOLL_KEY and SECURECOLL_KEY_FD from it, so that children inherit
        neither a key nor a number that may meanwhile name another file. Raises :class:`ConfigError`."""
        knobs = {PREFIX + f.name.upper(): f for f in fields(cls)}
        given = {name: environ[name] for name in sorted(environ) if name.startswith(PREFIX)}
        for name in (PREFIX + "KEY", PREFIX + "KEY_FD"):
            environ.pop(name, None)
        for name in given:
            if name not in knobs:
                nearest = difflib.get_close_matches(name, knobs, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"{name} is not a variable of securecoll: did you mean {nearest}? Otherwise unset it"
                )
        return cls(**{knobs[name].name: knobs[name].metadata["parse"](name, text) for name, text in given.items()})

    def key_source(self) -> KeySource:
        """Where the pre-shared key comes from: the descriptor, else the file, else the variable."""
        if self.key_fd is not None:
            return KeyDescriptor(self.key_fd)
        if self.key_file is not None:
            return KeyFile(self.key_file)
        if self.key is not None:
            return MemoryKey(self.key)
        raise ConfigError(
            "there is no key: write one with `securecoll keygen PATH`, give it to every rank, and set "
            f"{PREFIX}KEY_FILE to its path"
        )

    def shorten(self, seconds: float) -> float:
        """The program's deadline, or the environment's where that is shorter. Seconds."""
        return seconds if self.timeout is None else min(seconds, self.timeout)


@dataclass(frozen=True, slots=True)
class Knob:
    """A row of the documentation: a variable, what it takes, what holds without it, what it does."""

    name: str
    unit: str
    default: str
    meaning: str


def knobs() -> tuple[Knob, ...]:
    """Every variable, in the order of :class:`Config`."""
    return tuple(
        Knob(
            name=PREFIX + f.name.upper(),
            unit=f.metadata["unit"],
            default=f.metadata["shown"],
            meaning=f.metadata["meaning"],
        )
        for f in fields(Config)
    )


_lock = threading.Lock()
_current: tuple[Config, KeySource | None] | None = None


def current() -> Config:
    """The process's configuration, read from ``os.environ`` at the first call."""
    return _read_once()[0]


def current_key_source() -> KeySource:
    """The process's key source. One object for the process's life, since a descriptor can be read only once."""
    config, source = _read_once()
    return source if source is not None else config.key_source()


def _read_once() -> tuple[Config, KeySource | None]:
    global _current
    with _lock:
        if _current is None:
            config = Config.from_environment(os.environ)
            known = (config.key_fd, config.key_file, config.key) != (None, None, None)
            _current = (config, config.key_source() if known else None)
            _show_log(config.log)
        return _current


def _show_log(level: int) -> None:
    """A program that sets up logging itself decides where messages go; for any other they go to stderr."""
    if level == logging.WARNING:  # what Python does by itself
        return
    log = logging.getLogger("securecoll")
    log.setLevel(level)
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        log.addHandler(handler)
