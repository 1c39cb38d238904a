"""The policy: which factors every member must prove.

It is fixed before the handshake, and its hash is part of the transcript: members with different policies never join.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from securecoll import _engine
from securecoll.errors import ConfigError
from securecoll.identity.psk import MIN_BYTES

_VERSION = 1
_PSK = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """Factors that must all hold. The sizes below are those of the parts that each factor adds to a member's proof."""

    psk: bool = True
    """Every member proves that it holds the pre-shared key."""

    def encode(self) -> bytes:
        """``u8 version | u8 factors``, bit 0 of factors being the pre-shared key."""
        return bytes([_VERSION, _PSK if self.psk else 0])

    @property
    def hash(self) -> bytes:
        """SHA-256 of the encoding: ``policy_hash`` of the handshake's parameters."""
        return hashlib.sha256(self.encode()).digest()

    @property
    def mac_bytes(self) -> int:
        """Exact size of the MAC in a member's proof."""
        return 32 if self.psk else 0

    @property
    def signature_bytes(self) -> int:
        """Exact size of the signature in a member's proof."""
        return 0

    @property
    def credential_bytes(self) -> int:
        """Exact size of the credential in a member's proof."""
        return 0

    @property
    def evidence_limit(self) -> int:
        """The most bytes of attestation evidence in a member's proof."""
        return 0

    def validate(self, psk: _engine.Secret | None) -> None:
        """Raises :class:`ConfigError` unless this policy has a factor and ``psk`` is what it asks for."""
        if not self.psk:
            raise ConfigError("the policy requires no factor, so anyone could join: require a pre-shared key")
        if psk is None or psk.empty:
            raise ConfigError(
                "the policy requires a pre-shared key and there is none: write one with `securecoll keygen PATH` "
                "and set SECURECOLL_KEY_FILE to its path"
            )
        if psk.size < MIN_BYTES:
            raise ConfigError(
                f"the key has {psk.size} bytes; use at least {MIN_BYTES} random ones (`securecoll keygen`)"
            )
        zeros = _engine.Secret.absorb(bytearray(psk.size))
        if _engine.hmac_verify(psk, b"", _engine.hmac_sha256(zeros, b"")):
            raise ConfigError("the key is all zeros: make a random one with `securecoll keygen`")
