"""AES-256-GCM as the ``cryptography`` package has it, or, where that is not installed, the package's host kernels."""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType

NAME = "cryptography.hazmat.primitives.ciphers.aead"


class AESGCM:
    """The part of ``cryptography``'s class that tests of kernels use."""

    def __init__(self, key: bytes) -> None:
        from securecoll import _engine

        self._aead = _engine.Aead(_engine.aead_name(), key)

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None) -> bytes:
        return self._aead.seal(nonce, associated_data or b"", data)


def provide() -> str:
    """Makes ``from cryptography... import AESGCM`` work, and says whose it is."""
    try:
        return f"cryptography {metadata.version('cryptography')}"
    except metadata.PackageNotFoundError:
        parts = NAME.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules[".".join(parts[:end])] = ModuleType(".".join(parts[:end]))
        sys.modules[NAME].AESGCM = AESGCM  # type: ignore[attr-defined]
        return "the package's host kernels (cryptography is not installed)"
