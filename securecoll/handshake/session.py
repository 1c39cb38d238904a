"""What a finished handshake leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from securecoll._engine import Secret

PAIR_ROOTS = (
    ("link", "link_tx", "link_rx"),
    ("p2p", "p2p_tx", "p2p_rx"),
    ("ctl", "control_tx", "control_rx"),
    ("conn", "conn_tx", "conn_rx"),
)
"""Label of each pairwise root in the key schedule, and its two lists in a :class:`Session`."""


def empty_roots(size: int) -> dict[str, list[Secret | None]]:
    """The lists of a session of ``size`` ranks, without any key."""
    return {name: [None] * size for name in ("sender", *(list_ for _, *lists in PAIR_ROOTS for list_ in lists))}


def root_count(size: int) -> int:
    """Secrets in a session of ``size`` ranks: two for each label and peer, one for each sender, one for children."""
    return 2 * len(PAIR_ROOTS) * (size - 1) + size + 1


@dataclass(slots=True)
class Session:
    """The roots of a group's keys, as handles into the engine's memory.

    Lists are indexed by group rank. Pairwise ones have ``None`` at this rank's own place: nobody has a link to itself.
    ``tx`` is from this rank to the peer, ``rx`` from the peer to this rank. In a group of one all lists are empty.
    """

    rank: int
    size: int
    id: bytes
    """32 public bytes that name this session: ``parent`` of communicators made from it."""
    epoch: int
    endpoints: list[bytes]
    """What each rank announced, authenticated."""
    link_tx: list[Secret | None] = field(repr=False)
    link_rx: list[Secret | None] = field(repr=False)
    p2p_tx: list[Secret | None] = field(repr=False)
    p2p_rx: list[Secret | None] = field(repr=False)
    control_tx: list[Secret | None] = field(repr=False)
    control_rx: list[Secret | None] = field(repr=False)
    conn_tx: list[Secret | None] = field(repr=False)
    conn_rx: list[Secret | None] = field(repr=False)
    sender: list[Secret | None] = field(repr=False)
    """One root for each rank, this one included."""
    child: Secret | None = field(default=None, repr=False)
    """What the keys of children are derived from; None once a communicator took it over."""

    def erase(self) -> None:
        """Wipes every root. Idempotent."""
        for name in empty_roots(0):
            for root in getattr(self, name):
                if root is not None:
                    root.erase()
        if self.child is not None:
            self.child.erase()
