"""Someone in the middle: a relay that two ranks' socket passes through, and that sees and changes what is on it; and a
detour that many pass through, late and in another order.

Endpoints are authenticated, so the host cannot redirect a rank by lying about them; it can by routing. A test plays
that in the connecting rank's process: :func:`through` lets it connect to the relay, and tell the relay where it wanted
to go.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from securecoll import network

ADDRESSES_AT = 96
"""Of an endpoint: u16 IPv4 port | u16 IPv6 port | IPv4 address ..."""
HEADER = struct.Struct(">BBHII")
RECORD, CREDIT = 1, 2
DATA, ALL, CONTROL = 0, 1, 2
CONNECTOR, ACCEPTOR = 0, 1
"""Who sent a frame."""
_GREETING = {CONNECTOR: (74,), ACCEPTOR: (32, 32)}
"""Bytes of the messages of the proof that each end sends before its first frame."""


@dataclass
class Frame:
    """A frame on its way."""

    kind: int
    lane: int
    zero: int
    number: int
    bytes: int
    payload: bytearray

    def encode(self) -> bytes:
        return HEADER.pack(self.kind, self.lane, self.zero, self.number, self.bytes) + bytes(self.payload)


Alter = Callable[[int, int, Frame], "bytes | None"]
"""Gets who sent it, its number in that direction, and the frame; returns what to pass on, or None to reset the
connection."""


@dataclass
class Relay:
    """Listens on loopback until it is closed."""

    folder: Path
    alter: Alter | None = None
    seen: bytearray = field(default_factory=bytearray)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        (self.folder / "relay").write_text(str(self.port))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for s in (self._listener, *self._sockets):
            s.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, port = (self.folder / "target").read_text().split()
            try:
                far = socket.create_connection((host, int(port)))
            except OSError:
                near.close()
                continue
            self._sockets += [near, far]
            for source, to, who in ((near, far, CONNECTOR), (far, near, ACCEPTOR)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(source, to, who), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, who: int) -> None:
        try:
            for part in _GREETING[who]:
                to.sendall(self._read(source, part))
            number = 0
            while True:
                frame = Frame(*HEADER.unpack(self._read(source, HEADER.size)), bytearray())
                frame.payload = bytearray(self._read(source, frame.bytes))
                out = frame.encode() if self.alter is None else self.alter(who, number, frame)
                number += 1
                if out is None:
                    reset(source)
                    reset(to)
                    return
                to.sendall(out)
        except EOFError:
            with_suppressed(lambda: to.shutdown(socket.SHUT_WR))
        except OSError:
            with_suppressed(source.close)
            with_suppressed(to.close)
        except BaseException as e:
            self.errors.append(e)

    def _read(self, source: socket.socket, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = source.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
            self.seen += part
        return bytes(data)


@dataclass
class Detour:
    """Takes the connections to one rank, and lets them through late, the last one first, and piece by piece.

    Of the first connections as many as ``resets`` has entries are reset, each once so many bytes came from the rank:
    at 0 before any did; it sends a challenge of 32 bytes, and its proof when it has the other's.
    """

    folder: Path
    rank: int
    seed: int
    resets: Sequence[int] = ()
    accepted: int = 0
    overtook: int = 0
    """Connections that were let through before an earlier one."""

    GATHER_SECONDS = 0.25

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        (self.folder / f"detour{self.rank}").write_text(str(self._listener.getsockname()[1]))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for s in (self._listener, *self._sockets):
            s.close()

    def _accept(self) -> None:
        while True:
            batch = []
            try:
                self._listener.settimeout(None)
                batch.append(self._listener.accept()[0])
                self._listener.settimeout(self.GATHER_SECONDS)
                while True:
                    batch.append(self._listener.accept()[0])
            except TimeoutError:
                pass
            except OSError:
                return
            self.overtook += len(batch) - 1
            for near in reversed(batch):
                self._let_through(near)

    def _let_through(self, near: socket.socket) -> None:
        limit = self.resets[self.accepted] if self.accepted < len(self.resets) else None
        self.accepted += 1
        try:
            far = socket.create_connection(("127.0.0.1", int((self.folder / f"port{self.rank}").read_text())))
        except OSError:
            near.close()
            return
        self._sockets += [near, far]
        for source, to, bytes_left in ((near, far, None), (far, near, limit)):
            seed = self._rng.random()
            threading.Thread(target=self._pass, args=(source, to, bytes_left, seed), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, left: int | None, seed: float) -> None:
        rng = random.Random(seed)
        try:
            while left is None or left > 0:
                part = source.recv(rng.choice((1, 100, 5000, 1 << 16)) if left is None else left)
                if not part:
                    to.shutdown(socket.SHUT_WR)
                    return
                if rng.random() < 0.1:
                    time.sleep(rng.uniform(0, 0.003))
                to.sendall(part)
                left = None if left is None else left - len(part)
            time.sleep(0.05)  # what was passed on is read
            reset(source)
            reset(to)
        except OSError:
            with_suppressed(source.close)
            with_suppressed(to.close)


def with_suppressed(call: Callable[[], object]) -> None:
    """What may fail because the other thread was first."""
    with contextlib.suppress(OSError):
        call()


def reset(s: socket.socket) -> None:
    """Closes with RST."""
    with_suppressed(lambda: s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
    with_suppressed(lambda: s.shutdown(socket.SHUT_RD))
    with_suppressed(s.close)


def sockets_only(rank: int, folder: Path) -> None:
    """For ``prepare``: TCP, on loopback."""
    os.environ["SECURECOLL_TRANSPORT"] = "tcp"
    os.environ["SECURECOLL_IFNAME"] = "lo"


def same_host() -> None:
    """This process's ranks make the plans of ranks that share a host, with lanes to all, whatever connects them."""
    network.host = lambda shared: bytes(network.HOST_BYTES)


def through(rank: int, folder: Path) -> None:
    """For ``prepare``: rank 1's connection to rank 0 passes through the relay of this folder."""
    sockets_only(rank, folder)
    same_host()
    if rank == 0:
        return

    def redirect(endpoints: list[bytes]) -> list[bytes]:
        first = endpoints[0]
        (port,) = struct.unpack(">H", first[ADDRESSES_AT : ADDRESSES_AT + 2])
        host = socket.inet_ntoa(first[ADDRESSES_AT + 4 : ADDRESSES_AT + 8])
        (folder / "target").write_text(f"{host} {port}")
        return [listening_at(first, int((folder / "relay").read_text())), *endpoints[1:]]

    on_connect(redirect)


def by_detours(rank: int, folder: Path) -> None:
    """For ``prepare``: every connection takes the detour of the rank that it goes to."""
    sockets_only(rank, folder)
    announce(folder, rank)

    def redirect(endpoints: list[bytes]) -> list[bytes]:
        ports = [int((folder / f"detour{peer}").read_text()) for peer in range(len(endpoints))]
        return [
            endpoint if peer == rank else listening_at(endpoint, port)
            for peer, (endpoint, port) in enumerate(zip(endpoints, ports, strict=True))
        ]

    on_connect(redirect)


def listening_at(endpoint: bytes, port: int) -> bytes:
    """The endpoint of a rank that listens there, on loopback."""
    there = struct.pack(">HH", port, 0) + socket.inet_aton("127.0.0.1") + bytes(24)
    return endpoint[:ADDRESSES_AT] + there + endpoint[ADDRESSES_AT + 32 :]


def on_connect(change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Changes what this process's ranks believe of where the others are, behind the handshake's back."""
    from securecoll import handshake

    real = handshake.establish

    def establish(params: Any, policy: Any, psk: Any, exchange: Any, own: bytes, connect: Any, deadline: float) -> Any:
        return real(params, policy, psk, exchange, own, lambda all_: connect(change(all_)), deadline)

    handshake.establish = establish


def on_session(change: Callable[[Any], None]) -> None:
    """Changes a finished handshake's keys before they are used."""
    from securecoll import handshake

    real = handshake.establish

    def establish(*args: Any) -> Any:
        session = real(*args)
        change(session)
        return session

    handshake.establish = establish


def announce(folder: Path, rank: int) -> None:
    """Writes down where this rank listens, as soon as it does."""
    from securecoll import handshake

    real = handshake.establish

    def establish(params: Any, policy: Any, psk: Any, exchange: Any, own: bytes, *rest: Any) -> Any:
        (port,) = struct.unpack(">H", own[ADDRESSES_AT : ADDRESSES_AT + 2])
        draft = folder / f"port{rank}.draft"
        draft.write_text(str(port))
        draft.rename(folder / f"port{rank}")
        return real(params, policy, psk, exchange, own, *rest)

    handshake.establish = establish


def wait_for(path: Path, seconds: float = 20.0) -> str:
    """What is in a file, once it is there."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.005)
    return path.read_text()
