"""Who may join: what a member must prove (:class:`Policy`), and where its shared key comes from
(:class:`KeySource`)."""

from __future__ import annotations

from securecoll.identity.policy import Policy
from securecoll.identity.psk import KeyDescriptor, KeyFile, KeySource, KeyText, MemoryKey

__all__ = ["KeyDescriptor", "KeyFile", "KeySource", "KeyText", "MemoryKey", "Policy"]
