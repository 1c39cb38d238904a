"""The whole error tree.

Every error says what happened, where (rank, collective, sequence), what was expected and what to do; never a key,
nonce or payload. All derive from :class:`SecureCollError`, which is a :class:`RuntimeError`, because that is what
launchers and training loops catch.
"""

from __future__ import annotations


class SecureCollError(RuntimeError):
    """The root of the tree."""


class ConfigError(SecureCollError, ValueError):
    """Bad arguments, environment or key. Nothing was sent."""


class HandshakeError(SecureCollError):
    """Joining failed: a peer gave up, is missing, or joined with other parameters. A new attempt may succeed."""


class AuthenticationError(SecureCollError):
    """Something did not verify: a member's proof, or a record. Someone altered bytes, or keys differ."""


class MismatchError(SecureCollError):
    """Ranks made different calls at the same place of their sequence."""


class PeerLostError(SecureCollError):
    """A peer died or left."""


class CollectiveTimeout(SecureCollError, TimeoutError):
    """The deadline passed."""


class CommunicatorClosed(SecureCollError):
    """The communicator is closed, was aborted, or belongs to the parent of a fork."""


# By ErrorKind of kernels/engine/codes.hpp.
_BY_KIND: tuple[type[SecureCollError], ...] = (
    SecureCollError,
    ConfigError,
    HandshakeError,
    AuthenticationError,
    MismatchError,
    PeerLostError,
    CollectiveTimeout,
    CommunicatorClosed,
)


def from_kind(kind: int, message: str) -> SecureCollError:
    """The error of an engine's ``ErrorKind``. Kinds outside the table give the root class."""
    return _BY_KIND[kind if 0 < kind < len(_BY_KIND) else 0](message)
