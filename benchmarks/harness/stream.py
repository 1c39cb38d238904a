"""What one plain TCP connection makes of a link: the rate that any transport over TCP has for its ceiling.

    ip netns exec HOST python stream.py receive ADDRESS
    ip netns exec OTHER python stream.py send ADDRESS BYTES

The receiver prints bytes a second, from the first megabyte's arrival to the last.
"""

from __future__ import annotations

import socket
import sys
import time

PORT = 7707
_PIECE = 1 << 20
_PATIENCE = 10.0


def receive(address: str) -> float:
    """Takes one connection and everything that comes. Bytes a second."""
    with socket.create_server((address, PORT)) as listener:
        listener.settimeout(_PATIENCE)
        connection, _ = listener.accept()
    room = bytearray(_PIECE)
    total = counted = 0
    began = ended = 0.0
    with connection:
        connection.settimeout(_PATIENCE)
        while count := connection.recv_into(room):
            total += count
            ended = time.monotonic()
            if not began and total >= _PIECE:
                began, counted = ended, total
    return (total - counted) / (ended - began)


def send(address: str, total: int) -> None:
    """Connects, once somebody listens, and sends."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            connection = socket.create_connection((address, PORT), _PATIENCE)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    piece = memoryview(bytes(_PIECE))
    with connection:
        for begin in range(0, total, _PIECE):
            connection.sendall(piece[: total - begin])


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        print(receive(sys.argv[2]))
    else:
        send(sys.argv[2], int(sys.argv[3]))
