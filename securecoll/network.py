"""Which host a rank is on, and which of its network interfaces it listens on."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from securecoll import _engine
from securecoll.errors import ConfigError

HOST_BYTES = 16
"""Of what :func:`host` returns."""

_ELSEWHERE = ("192.0.2.1", "2001:db8::1")
"""Addresses for documentation: nobody's, so the default route leads to them. Nothing is sent there."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface, with at most one address of each family."""

    name: str
    addresses: tuple[str, ...]
    why: str = field(default="", compare=False)
    """What chose it."""


def host(shared: bool) -> bytes:
    """What ranks that may share memory have in common, and no others: a hash of the kernel's boot, what is mounted at
    /dev/shm, and the user. A rank that shares none (``shared`` false, or no /dev/shm) is a host of its own.

    It is a rank's own word, and decides which plans are made, alike on all ranks. Whether two ranks
    really share memory they prove to each other; where they cannot, they use a socket.
    """
    try:
        memory = Path("/dev/shm").stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        shared = False
    if not shared:
        return os.urandom(HOST_BYTES)
    return hashlib.sha256(
        b"SCOLL/1 host\0" + boot + struct.pack(">QQQ", memory.st_dev, memory.st_ino, os.geteuid())
    ).digest()[:HOST_BYTES]


def choose(name: str | None, meeting: str | None) -> Interface | None:
    """The interface to listen on; None where this host has none that is up.

    ``name`` decides if given. Else ``meeting``, the host through which the ranks find each other: the interface that
    leads there. Else the one of the default route. Else the first that is up. Else loopback.

    Raises :class:`ConfigError` for a name that no interface has.
    """
    known = _engine.interfaces()
    if name is not None:
        if not any(n == name for n, _, _ in known):
            there = ", ".join(dict.fromkeys(n for n, _, _ in known)) or "none"
            raise ConfigError(
                f"SECURECOLL_IFNAME={name!r}: no interface of that name is up with an address; there are {there}"
            )
        return _of(name, known, "SECURECOLL_IFNAME names it")
    targets = [(target, f"it leads to {meeting}, where the ranks meet") for target in _resolved(meeting)]
    targets += [(target, "the default route leaves by it") for target in _ELSEWHERE]
    for target, why in targets:
        local = _source(target)
        # A host's own name may resolve to its loopback, which says nothing about where the others are.
        if local is not None and (not ipaddress.ip_address(local).is_loopback or meeting in _LOOPBACK):
            found = next((n for n, address, _ in known if address == local), None)
            if found is not None:
                return _of(found, known, why, local)
    last = sorted(known, key=lambda entry: entry[2])
    if not last:
        return None
    name, _, loopback = last[0]
    return _of(name, known, "no other is up with an address" if loopback else "it is the first that is up")


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _of(name: str, known: list[tuple[str, str, bool]], why: str, preferred: str | None = None) -> Interface:
    """The first address of each family, ``preferred`` before others."""
    own = sorted((a for n, a, _ in known if n == name), key=lambda a: a != preferred)
    chosen = [next((a for a in own if (":" in a) == six), None) for six in (False, True)]
    return Interface(name, tuple(a for a in chosen if a is not None), why)


def _resolved(host: str | None) -> list[str]:
    if not host:
        return []
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)]
    except OSError:
        return []


def _source(target: str) -> str | None:
    """The local address from which packets to ``target`` would go. Sends none."""
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            s.connect((target.partition("%")[0], 9))
            return str(s.getsockname()[0])
    except OSError:
        return None
