"""The tuner: which algorithm, chunk and wave serve a call.

All ranks must choose alike, so a choice is a pure function of what the handshake's transcript or the call's
descriptor binds: the collective, the topology, the sizes, the largest chunk that a slot holds, and a table of rates:
the one below, which is part of the package and not measured, or another that all ranks were given. The estimates use
additions, multiplications, divisions and comparisons of IEEE 754 doubles only, in one order, so they are the same on
every machine.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from securecoll.codes import Collective
from securecoll.plan import ALGORITHMS, serves
from securecoll.plan.call import ALIGNMENT
from securecoll.plan.cost import Rates
from securecoll.plan.estimate import estimate
from securecoll.plan.peers import DEEPER, is_small
from securecoll.plan.topology import Topology

HOST = Rates(
    seal=9.1e9,
    open=11.0e9,
    reduce=40.0e9,
    copy=10.0e9,
    record_seconds=0.25e-6,
    hop_seconds=1.0e-6,
    cores=1 << 20,
)
"""Ranks of one host over shared memory, a core each, and hosts on :class:`~securecoll.plan.cost.Network`'s defaults.
Rates of a VAES core through a small ring; ``reduce`` is what adding to a buffer in cache takes beside opening."""

AEGIS_HOST = replace(HOST, seal=15.0e9, open=13.5e9)
"""The same with AEGIS-256X4 as the cipher, on 256-bit registers through a ring of 1 MiB."""

DEPTH = 16
"""Slots of a lane."""

WAVE = 8
"""Chunks in a wave: half a lane's slots, so that a wave is read while the next one is written."""

_LARGEST_CHUNK = 64 << 10
_SMALLEST_CHUNK = 4 << 10
_CHUNKS_OF_ALL = 512 << 10
_BETTER = 0.98
"""Of the price so far: what another algorithm must come to across hosts, where two often cost nearly the same."""

_EVERYONE = ("one_shot", "direct")
"""Algorithms by which everyone meets everyone."""


class Choice(NamedTuple):
    """What :func:`securecoll.plan.plan` is to use."""

    algorithm: str
    chunk: int
    """Bytes."""
    wave: int
    """Chunks."""


def default_chunk(size: int) -> int:
    """Bytes of payload in a slot, for lanes between ``size`` ranks of a host.

    64 KiB, until the chunks of one rank for all its peers would pass 512 KiB; never under 4 KiB. So what a rank's
    lanes take of the caches stays bounded as groups grow.
    """
    share = max(1, _CHUNKS_OF_ALL // size)
    return max(_SMALLEST_CHUNK, min(_LARGEST_CHUNK, 1 << (share.bit_length() - 1)))


def stretch(topology: Topology) -> int:
    """How many times as long waves are: as lanes are deeper, where every lane is a socket.

    A rank may be a wave ahead of the peer whose records it waits for. So longer waves keep a link busy that has more
    under way, and hide more of what makes ranks uneven.
    """
    return DEEPER if len(topology.groups) == len(topology) > 1 else 1


@lru_cache(maxsize=4096)
def choose(
    collective: Collective,
    size: int,
    nbytes: int,
    *,
    counts: tuple[int, ...] | None = None,
    max_chunk: int | None = None,
    algorithm: str | None = None,
    wave: int = WAVE,
    rates: Rates = HOST,
    topology: Topology | None = None,
) -> Choice:
    """The cheapest way to serve a call.

    Chunks are powers of two below ``max_chunk`` (or it, where it is none). A call of which no rank knows all sizes
    (all_to_all) always takes ``max_chunk``.

    Args:
        collective: What the group does.
        size: Ranks in the group.
        nbytes: Bytes, as for :func:`securecoll.plan.plan`.
        counts: Bytes of each rank's part where they are uneven; the choice is made for their mean.
        max_chunk: Bytes that a slot holds; the ``default_chunk`` of the largest host where not given.
        algorithm: Pins the algorithm; all ranks must pin the same one.
        wave: Chunks in a wave.
        rates: For other machines than ``HOST`` describes; the same on all ranks.
        topology: The host of each rank; all on one where not given.

    Raises:
        ValueError: when ``algorithm`` is none of the collective's, or ``max_chunk`` no multiple of 64.
    """
    if topology is None:
        topology = Topology.single(size)
    largest = default_chunk(max(map(len, topology.groups))) if max_chunk is None else max_chunk
    if largest < ALIGNMENT or largest % ALIGNMENT:
        raise ValueError(f"max_chunk must be a positive multiple of {ALIGNMENT} bytes, not {largest}")
    offered = ALGORITHMS[collective]
    if algorithm is not None and algorithm not in offered:
        raise ValueError(f"{collective.name.lower()} has the algorithms {', '.join(offered)}, not {algorithm!r}")
    names = candidates(collective, topology) if algorithm is None else (algorithm,)
    if collective is Collective.ALL_TO_ALL:
        return Choice(names[0], largest, wave)
    if counts is not None:
        nbytes = -(-sum(counts) // size)
    best, least = Choice(names[0], largest, wave), float("inf")
    for name in names:
        if not serves(collective, name, topology, wave):
            continue
        chunks = _chunks(largest, max(nbytes, _SMALLEST_CHUNK) * size)
        prices = [_price(collective, name, topology, nbytes, chunk, wave, rates) for chunk in chunks]
        price = min(prices)
        if price < (least if topology.is_single else least * _BETTER):
            best, least = Choice(name, chunks[prices.index(price)], wave), price
    return best


def _chunks(largest: int, total: int) -> list[int]:
    """Chunks worth a price for a call of about ``total`` bytes: the largest one, and the powers of two below it."""
    chunks = [largest]
    while chunks[-1] < 4 * total:
        smaller = 1 << ((chunks[-1] - 1).bit_length() - 1)
        if smaller < _SMALLEST_CHUNK:
            break
        chunks.append(smaller)
    return chunks


def candidates(collective: Collective, topology: Topology) -> tuple[str, ...]:
    """The algorithms that a choice is made among, those that share out their work best first.

    On one host every rank reaches every other one at the same cost: other algorithms only add hops. Across hosts those
    that meet few ranks, and in small groups also those by which everyone meets everyone. A flat ring is never better
    than a hierarchical one of equal hosts.
    """
    offered = ALGORITHMS[collective]
    if topology.is_single:
        return tuple(name for name in offered if name in _EVERYONE) or offered[:1]
    shared = not serves(collective, "hierarchical", topology, 1)
    names = ("hierarchical", *(("ring",) if shared else ()), "recursive_doubling", "tree")
    if is_small(topology):
        names += _EVERYONE
    return tuple(name for name in names if name in offered) or offered[:1]


def _price(
    collective: Collective, algorithm: str, topology: Topology, nbytes: int, chunk: int, wave: int, rates: Rates
) -> float:
    """The estimate, and a wait for one chunk: ranks are never quite in step, so a rank that needs a record often comes
    upon its peer in the middle of it. This is what makes medium messages take several records where one would do."""
    in_hand = min(chunk, nbytes)
    return estimate(collective, algorithm, topology, nbytes, chunk, wave, rates) + in_hand / rates.seal
