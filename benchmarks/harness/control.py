"""How the driver of peers.py and the ranks that it started talk: one JSON object a line over a Unix socket.

A rank that is waiting for its next command is blocked in ``recv``: it takes no time from the contender that is being
measured.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Channel:
    """One connection. ``receive`` raises EOFError when the other side is gone, TimeoutError after the timeout."""

    def __init__(self, connection: socket.socket, timeout: float | None = None) -> None:
        connection.settimeout(timeout)
        self._connection = connection
        self._received = b""

    @classmethod
    def connect(cls, path: Path) -> Channel:
        """Connects to a listening socket."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(str(path))
        return cls(connection)

    def send(self, message: Message) -> None:
        """Sends one message."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message:
        """Waits for one message."""
        while b"\n" not in self._received:
            data = self._connection.recv(1 << 16)
            if not data:
                raise EOFError("the other side closed the connection")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self._connection.close()
