"""SC-GKA/1, the authenticated group key exchange of docs/protocol.md.

Nothing in here does I/O: :mod:`~securecoll.handshake.wire` holds the messages, :mod:`~securecoll.handshake.schedule`
what is derived, :mod:`~securecoll.handshake.member` one member's state machine, and
:mod:`~securecoll.handshake.driver` runs it over a :class:`securecoll.rendezvous.Exchange`.
"""

from __future__ import annotations

from securecoll.handshake.driver import establish, give_up
from securecoll.handshake.member import MAX_ENDPOINTS
from securecoll.handshake.schedule import child_key, group_params
from securecoll.handshake.session import Session
from securecoll.handshake.wire import Params

__all__ = ["MAX_ENDPOINTS", "Params", "Session", "child_key", "establish", "give_up", "group_params"]
