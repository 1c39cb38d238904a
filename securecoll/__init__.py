"""securecoll: collectives for machines and networks you do not trust.

Every byte between ranks is AES-256-GCM ciphertext, and every byte that arrives is verified before it is used::

    import numpy as np, securecoll

    exchange = securecoll.DirectoryExchange("/tmp/job-7", rank=rank, size=2)
    with securecoll.init(key="job.key", exchange=exchange) as comm:
        x = np.ones(1 << 20, np.float32)
        comm.all_reduce(x)

``torch.distributed.init_process_group("securecoll")`` works too, without importing this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securecoll.codes import ReduceOp
    from securecoll.communicator import Communicator, Stats, Work, init
    from securecoll.errors import (
        AuthenticationError,
        CollectiveTimeout,
        CommunicatorClosed,
        ConfigError,
        HandshakeError,
        MismatchError,
        PeerLostError,
        SecureCollError,
    )
    from securecoll.rendezvous import DirectoryExchange, Exchange, MPIExchange, StoreExchange

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CollectiveTimeout",
    "Communicator",
    "CommunicatorClosed",
    "ConfigError",
    "DirectoryExchange",
    "Exchange",
    "HandshakeError",
    "MPIExchange",
    "MismatchError",
    "PeerLostError",
    "ReduceOp",
    "SecureCollError",
    "Stats",
    "StoreExchange",
    "Work",
    "__version__",
    "init",
]

_HOMES = {
    "codes": ("ReduceOp",),
    "communicator": ("Communicator", "Stats", "Work", "init"),
    "rendezvous": ("DirectoryExchange", "Exchange", "MPIExchange", "StoreExchange"),
}


def __getattr__(name: str) -> object:
    """Loads what is asked for at its first use: torch imports this package at every start, to offer the backend."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "errors")
    value: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
