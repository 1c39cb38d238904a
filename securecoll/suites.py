"""Suites: the cryptography that a group uses, each pinned as a whole (docs/protocol.md).

Only the program chooses one, equally on all ranks. There is no variable for it and nothing is negotiated: whoever can
change the environment, or what ranks tell each other, must not choose a group's cipher.
"""

from __future__ import annotations

from enum import IntEnum

from securecoll import _engine
from securecoll.errors import ConfigError


class Suite(IntEnum):
    """A suite, by its number in the handshake's parameters."""

    AES_256_GCM = 1
    """The default: algorithms of NIST. Runs on every CPU, and on GPUs."""
    AEGIS_256X4 = 4
    """AEGIS-256X4 in the place of AES-256-GCM. For CPU memory, on CPUs with AES instructions (AES-NI and AVX)."""

    @property
    def title(self) -> str:
        """What a program calls it."""
        return self.name.lower().replace("_", "-")


def named(name: str) -> Suite:
    """The suite that a program calls ``name``. Raises :class:`ConfigError`."""
    for suite in Suite:
        if suite.title == name:
            return suite
    raise ConfigError(f"there is no suite {name!r:.60}: give one of {', '.join(suite.title for suite in Suite)}")


def check_runs_here(suite: Suite) -> None:
    """Raises :class:`ConfigError` where this CPU has no kernels of a suite."""
    if not _engine.aead_names(suite):
        raise ConfigError(
            f"this CPU cannot run the suite {suite.title}: it has no AES instructions (AES-NI and AVX). Use "
            f"{Suite.AES_256_GCM.title}, on all ranks"
        )
