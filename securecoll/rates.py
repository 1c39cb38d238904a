"""What the tuner chooses plans by, from a file: rates of a job's cores and network, as JSON.

Rates decide which of the proven plans serves a call, and in which chunks. They have no say in what is sealed, so a
file may come from where the launcher's environment comes from. All ranks must choose alike: what was read goes into
the handshake, and ranks with different rates do not join.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from struct import pack
from typing import Any, Final

from securecoll.errors import ConfigError
from securecoll.plan.cost import Network, Rates
from securecoll.plan.tuner import AEGIS_HOST, HOST
from securecoll.suites import Suite

MEASURE: Final = "measure"
"""In place of a path: measured by the ranks when they have joined."""

_MOST_BYTES = 64 << 10
_BOUNDS = {"cores": (1, 1 << 20), "seconds": (1e-9, 1e3), "rate": (1e3, 1e15)}
"""What a number may be: of cores, of those that are seconds, and of all others, which are bytes per second."""


def usual(suite: Suite) -> Rates:
    """The package's own table for a suite."""
    return AEGIS_HOST if suite is Suite.AEGIS_256X4 else HOST


def load(path: str | os.PathLike[str], suite: Suite = Suite.AES_256_GCM) -> Rates:
    """Reads a file. What it does not give is as in the package's own table for the suite.

    Raises:
        ConfigError: says what is wrong with which file.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as e:
        raise ConfigError(f"the file of rates {os.fspath(path)!r} cannot be read: {e.strerror}") from None
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"the file of rates {os.fspath(path)!r} has more than {_MOST_BYTES} bytes")
    try:
        return parse(data.decode(), suite)
    except (ValueError, RecursionError) as e:  # also JSON that is none, or nested, and text that is no UTF-8
        raise ConfigError(f"the file of rates {os.fspath(path)!r} is not one: {e}") from None


def parse(text: str, suite: Suite = Suite.AES_256_GCM) -> Rates:
    """The rates that a file's text gives. Raises :class:`ValueError`."""
    table = usual(suite)
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("it must hold a JSON object")
    network = given.pop("network", {})
    if not isinstance(network, dict):
        raise ValueError("network must be a JSON object")
    own = _checked(given, table, "")
    return replace(table, **own, network=replace(table.network, **_checked(network, table.network, "network.")))


def _checked(given: Mapping[str, Any], table: Rates | Network, prefix: str) -> dict[str, Any]:
    known = [f.name for f in fields(table) if f.name != "network"]
    for name, value in given.items():
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ValueError(f"there is no rate {(prefix + name)[:60]!r}: did you mean {prefix + nearest!r}?")
        least, most = _BOUNDS["cores" if name == "cores" else "seconds" if name.endswith("seconds") else "rate"]
        wanted = int if name == "cores" else (int, float)
        if isinstance(value, bool) or not isinstance(value, wanted):
            raise ValueError(f"{prefix}{name} must be a number{' of cores' * (name == 'cores')}, not {value!r:.60}")
        if not (math.isfinite(value) and least <= value <= most):
            raise ValueError(f"{prefix}{name} must be from {least:g} to {most:g}, not {value!r:.60}")
    return {name: value if name == "cores" else float(value) for name, value in given.items()}


def spell(rates: Rates) -> str:
    """The text of a file. Reading it gives the same rates, bit for bit."""
    return json.dumps(asdict(rates), indent=2) + "\n"


def bounded(rates: Rates) -> Rates:
    """The nearest rates that a file may hold: a clock may say that something took no time."""

    def near(name: str, value: float) -> float:
        least, most = _BOUNDS["seconds" if name.endswith("seconds") else "rate"]
        return min(max(value, least), most)

    def each(table: Rates | Network) -> dict[str, float]:
        return {
            f.name: near(f.name, getattr(table, f.name)) for f in fields(table) if f.name not in ("cores", "network")
        }

    cores = min(max(rates.cores, 1), 1 << 20)
    return replace(rates, **each(rates), cores=cores, network=replace(rates.network, **each(rates.network)))


def table_hash(shape_hash: bytes, rates: Rates | None, suite: Suite = Suite.AES_256_GCM) -> bytes:
    """32 bytes for the transcript: what generators are given, and what the tuner chooses by. ``rates`` None: what the
    ranks will measure. The suite's own table needs no mention: the suite stands in the transcript itself."""
    if rates == usual(suite):
        return shape_hash
    if rates is None:
        return hashlib.sha256(b"SCOLL/1 measured rates\0" + shape_hash).digest()
    own = [getattr(rates, f.name) for f in fields(rates) if f.name not in ("cores", "network")]
    afar = [getattr(rates.network, f.name) for f in fields(rates.network)]
    numbers = pack(f">{len(own) + len(afar)}dI", *own, *afar, rates.cores)
    return hashlib.sha256(b"SCOLL/1 rates\0" + shape_hash + numbers).digest()
