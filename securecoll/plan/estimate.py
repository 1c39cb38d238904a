"""Closed forms of what plans cost in time: cheap enough to compare every algorithm and chunk when a call is planned,
and to price groups that nobody could simulate.

With ``k`` chunks of a slice or part, and a rank's work multiplied by the slowdown of too few cores, a time is

* the work of the busiest rank or the time of the busiest link, whichever is longer, and one chunk of the other;
* plus, where ranks work in parallel, one hop for each dependent step, less what the other chunks of a wave hide of it:
  ``ceil(k / wave) * max(0, hop - (min(k, wave) - 1) * t)`` where t is a chunk's part of a step's time;
* plus, where they work in turn (a chain, a tree, one root), a hop and a chunk's time for each turn before the last.

Only additions, multiplications, divisions and comparisons of doubles, in one order: the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from securecoll.codes import Collective
from securecoll.plan.call import ALIGNMENT
from securecoll.plan.cost import Rates
from securecoll.plan.ir import records
from securecoll.plan.topology import Topology


def estimate(
    collective: Collective, algorithm: str, topology: Topology, nbytes: int, chunk: int, wave: int, rates: Rates
) -> float:
    """Seconds for even parts.

    ``nbytes`` is as for :func:`securecoll.plan.plan`.

    Raises:
        ValueError: when the collective has no such algorithm.
    """
    size = len(topology)
    if size == 1:
        return nbytes / rates.copy
    whole = collective is Collective.ALL_REDUCE and algorithm in ("direct", "ring", "hierarchical")
    if algorithm == "hierarchical":
        wave = max(1, wave // topology.crowding)
    shares = size if whole or (collective is Collective.REDUCE and algorithm == "direct") else 1
    if collective is Collective.REDUCE and algorithm == "hierarchical":
        shares = size // len(topology.groups)
    piece = _Piece(-(-nbytes // shares), chunk, wave, rates)
    owners = min(shares, -(-nbytes // ALIGNMENT))
    if topology.is_single:
        return _on_one_host(collective, algorithm, size, owners, piece, rates)
    return _across_hosts(collective, algorithm, _sketch(topology), owners, piece, rates)


class _Piece:
    """What it takes to move the bytes of a slice, part or buffer: seconds, for all its chunks."""

    def __init__(self, length: int, chunk: int, wave: int, rates: Rates) -> None:
        self.k = records(length, chunk)
        self.wave = wave
        self.fixed = self.k * rates.record_seconds
        self.seal = self.fixed + length / rates.seal
        self.open = self.fixed + length / rates.open
        self.add = length / rates.reduce
        self.copy = length / rates.copy
        self.forward = self.fixed + self.copy
        """To one lane."""
        self.socket = self.k * rates.network.record_seconds + length / rates.network.socket
        """At either end."""
        self.link = self.k * rates.network.cost(length / self.k)

    def copies(self, lanes: int) -> float:
        """What is sealed for several lanes is copied to each."""
        return lanes * self.copy if lanes > 1 else 0.0

    def side_by_side(self, work: float, link: float, steps: float, hop: float, among: int = 1) -> float:
        """Ranks that work in parallel, in dependent steps. ``among``: peers whose records wait for no others'."""
        longer, shorter = max(work, link), min(work, link)
        together = min(self.k, self.wave)
        hidden = (together - 1) * longer / steps / self.k
        return longer + shorter / (self.k * among) + steps * -(-self.k // self.wave) * max(0.0, hop - hidden)

    def in_turn(self, *stages: tuple[float, float], among: int = 1) -> float:
        """A pipeline of (seconds for all chunks, turns): the slowest one, and a chunk of each other."""
        slowest = max(seconds for seconds, turns in stages if turns > 0)
        rest = sum(seconds * turns for seconds, turns in stages if turns > 0) - slowest
        return slowest + rest / (self.k * among)


def _on_one_host(collective: Collective, algorithm: str, size: int, owners: int, p: _Piece, rates: Rates) -> float:
    slow, peers, hop = max(1.0, size / rates.cores), size - 1, rates.hop_seconds
    direct = owners * p.seal + (peers + owners - 1) * p.open + size * p.add
    match collective, algorithm:
        case Collective.BARRIER, "one_shot":
            return slow * (peers + 1) * rates.record_seconds + hop
        case Collective.BARRIER, "hierarchical":
            return slow * (peers + 3) * rates.record_seconds + 2 * hop
        case Collective.ALL_REDUCE, "one_shot":
            return slow * (p.seal + peers * p.open + (size + 1) * p.add) + hop
        case (Collective.ALL_REDUCE, "direct" | "hierarchical") | (Collective.REDUCE, "direct" | "hierarchical"):
            return slow * direct + 2 * hop
        case Collective.ALL_REDUCE, "ring":
            work = peers * (p.seal + p.open + 2 * p.add) + p.seal + (peers - 1) * (p.open + p.forward) + p.open
            return p.side_by_side(slow * work, 0.0, 2 * peers, hop)
        case Collective.ALL_REDUCE, "recursive_doubling":
            leader = peers * p.open + size * p.add + p.seal
            return slow * p.in_turn((p.seal, 1), (leader, 1), (p.open, 1)) + 2 * hop
        case Collective.REDUCE_SCATTER, "one_shot" | "hierarchical":
            return slow * (peers * (p.seal + p.open) + size * p.add) + hop
        case Collective.REDUCE_SCATTER, "ring":
            return p.side_by_side(slow * peers * (p.seal + p.open + 2 * p.add), 0.0, peers, hop)
        case Collective.ALL_GATHER, "one_shot" | "hierarchical":
            return slow * (p.seal + p.copy + peers * p.open) + hop
        case Collective.ALL_GATHER, "ring":
            work = p.seal + p.copy + (peers - 1) * (p.open + p.forward) + p.open
            return p.side_by_side(slow * work, 0.0, peers, hop)
        case Collective.BROADCAST, "one_shot" | "tree" | "hierarchical":
            return slow * p.in_turn((p.seal + p.copy, 1), (p.open, 1)) + hop
        case Collective.BROADCAST, "ring":
            chain = p.in_turn((p.seal + p.copy, 1), (p.open + p.forward, peers - 1), (p.open, 1))
            return slow * chain + peers * hop
        case Collective.REDUCE, "one_shot" | "tree":
            return slow * p.in_turn((p.seal, 1), (peers * p.open + size * p.add, 1)) + hop
        case Collective.REDUCE, "ring":
            add = p.open + 2 * p.add
            return slow * p.in_turn((p.seal, 1), (add + p.seal, peers - 1), (add, 1)) + peers * hop
        case Collective.GATHER, "one_shot":
            return slow * p.in_turn((p.seal, 1), (p.copy + peers * p.open, 1)) + hop
        case Collective.SCATTER, "one_shot":
            return slow * p.in_turn((p.copy + peers * p.seal, 1), (p.open, 1)) + hop
        case Collective.ALL_TO_ALL, "one_shot":
            return slow * (peers * (p.seal + p.open) + p.copy) + hop
    raise ValueError(f"{collective.name.lower()} has no algorithm {algorithm!r}")


@dataclass(frozen=True, slots=True)
class _Sketch:
    """What the closed forms take of a topology. ``n`` is always the ranks of one host."""

    size: int
    hosts: int
    kinds: tuple[tuple[int, int, int, int, int], ...]
    """Of each different host: its ranks, those of the host after it, and of the slices that its first rank collects
    their number, those owned by the host before, and those owned by the host after."""


@lru_cache(maxsize=64)
def _sketch(topology: Topology) -> _Sketch:
    lengths = [len(group) for group in topology.groups]
    counts = {n: lengths.count(n) for n in sorted(set(lengths))}
    collected = {n: sum(count * -(-other // n) for other, count in counts.items()) for n in counts}
    kinds = {
        (n, after, collected[n], -(-before // n), -(-after // n))
        for before, n, after in zip(lengths[-1:] + lengths[:-1], lengths, lengths[1:] + lengths[:1], strict=True)
    }
    return _Sketch(len(topology), len(lengths), tuple(sorted(kinds)))


def _across_hosts(collective: Collective, algorithm: str, at: _Sketch, owners: int, p: _Piece, rates: Rates) -> float:
    """The slowest of the different hosts sets the pace."""
    return max(_of_host(collective, algorithm, at, kind, owners, p, rates) for kind in at.kinds)


def _of_host(
    collective: Collective,
    algorithm: str,
    at: _Sketch,
    kind: tuple[int, int, int, int, int],
    owners: int,
    p: _Piece,
    rates: Rates,
) -> float:
    n, after, column, behind, ahead = kind
    size, hosts, peers = at.size, at.hosts, at.size - 1
    slow, afar, network = max(1.0, n / rates.cores), size - n, rates.network
    near, far = rates.hop_seconds, network.hop_seconds
    inside = near if n > 1 else 0.0
    to_host = 1 if n > 1 else 0
    """Lanes to all."""
    share = owners / size
    """Of the slices, those that hold something."""
    rounds = (hosts - 1).bit_length()
    depth = hosts.bit_length() - 1
    """Of a binomial tree, whose root has ``rounds`` children."""
    fixed = rates.record_seconds + network.record_seconds
    # Around a ring of ranks, the hops that cross to another host, and the sockets of its busiest rank.
    crossing = hosts / size
    mean_hop = crossing * far + (1 - crossing) * near
    ends = 2 if n == 1 else 1
    add = p.open + 2 * p.add
    local = (n - 1) * p.open + n * p.add
    """Of a rank that adds up what its host contributes."""

    match collective, algorithm:
        case Collective.BARRIER, "one_shot":
            work = slow * ((peers + 1) * rates.record_seconds + 2 * afar * network.record_seconds)
            return work + n * afar * network.cost(0) + far
        case Collective.BARRIER, "hierarchical":
            inner = slow * (n + 2) * rates.record_seconds + 2 * near if n > 1 else 0.0
            return inner + rounds * (slow * 2 * fixed + network.cost(0) + far)

        case Collective.ALL_REDUCE, "one_shot":
            work = p.seal + p.copies(afar + to_host) + peers * p.open + (size + 1) * p.add + 2 * afar * p.socket
            return p.side_by_side(slow * work, n * afar * p.link, 1, far)
        case Collective.ALL_REDUCE, "direct":
            relayed = (column - 1) * share
            work = owners * p.seal + (peers + owners - 1) * p.open + size * p.add + p.copies(hosts - 1 + to_host)
            work += relayed * to_host * p.forward
            work += (afar * share + afar + hosts - 1 + relayed) * p.socket
            link = n * (afar * share + (hosts - 1) * share) * p.link
            return p.side_by_side(slow * work, link, 2, far) + inside
        case Collective.ALL_REDUCE, "ring":
            work = peers * (p.seal + add) + p.seal + (peers - 1) * (p.open + p.forward) + p.open
            work += 2 * peers * ends * p.socket
            return p.side_by_side(slow * work, 2 * peers * p.link, 2 * peers, mean_hop)
        case Collective.ALL_REDUCE, "recursive_doubling":
            folded = hosts != 1 << (hosts.bit_length() - 1)
            exchanges = hosts.bit_length() - 1
            work = local + (add if folded else 0.0) + exchanges * (p.seal + add)
            work += (2 * exchanges + 2 * folded) * p.socket
            if folded or n > 1:
                work += p.seal
            link = (exchanges + folded) * p.link
            ends_of_it = slow * (p.seal + p.open) / p.k + 2 * inside if n > 1 else 0.0
            return p.side_by_side(slow * work, link, exchanges + 2 * folded, far) + ends_of_it
        case Collective.ALL_REDUCE, "hierarchical":
            collected = max(1.0, column * share)
            own = collected / column
            work = owners * p.seal + collected * local
            work += (collected - behind * own) * (p.open + p.add) + (owners - own) * p.open + p.copies(1 + to_host)
            work += (collected - own) * to_host * p.forward + (collected - own - ahead * own) * p.forward
            work += (4 * collected - 2 * own - (behind + ahead) * own) * p.socket
            link = (2 * size - n - after) * share * p.link
            return p.side_by_side(slow * work, link, 2 * (hosts - 1), far) + 2 * inside

        case Collective.REDUCE_SCATTER, "one_shot":
            work = peers * (p.seal + p.open) + size * p.add + 2 * afar * p.socket
            return p.side_by_side(slow * work, n * afar * p.link, 1, far)
        case Collective.REDUCE_SCATTER, "ring":
            work = peers * (p.seal + add + ends * p.socket)
            return p.side_by_side(slow * work, peers * p.link, peers, mean_hop)
        case Collective.REDUCE_SCATTER, "hierarchical":
            work = peers * p.seal + column * local + (column - behind) * (p.open + p.add)
            work += (2 * column - behind - 1) * p.socket
            return p.side_by_side(slow * work, afar * p.link, hosts - 1, far) + inside

        case Collective.ALL_GATHER, "one_shot":
            work = p.seal + p.copy + p.copies(hosts - 1 + to_host) + peers * p.open
            work += (column - 1) * (to_host * p.forward + p.socket) + (hosts - 1) * p.socket
            link = max(n * (hosts - 1), afar) * p.link
            return p.side_by_side(slow * work, link, 1, far) + inside
        case Collective.ALL_GATHER, "ring":
            work = p.seal + p.copy + (peers - 1) * (p.open + p.forward) + p.open + peers * ends * p.socket
            return p.side_by_side(slow * work, peers * p.link, peers, mean_hop)
        case Collective.ALL_GATHER, "hierarchical":
            work = p.seal + p.copy + p.copies(1 + to_host) + peers * p.open
            work += ((column - 1) * (1 + to_host) - ahead) * p.forward + (2 * column - 1 - ahead) * p.socket
            link = (size - after) * p.link
            return p.side_by_side(slow * work, link, hosts - 1, far) + inside

        case Collective.BROADCAST, "one_shot":
            root = slow * (p.seal + p.copy + p.copies(hosts - 1 + to_host) + (hosts - 1) * p.socket)
            relay = slow * (p.open + p.socket + to_host * p.forward)
            link = (hosts - 1) * p.link
            return p.in_turn((root, 1), (link, 1), (relay, 1), (slow * p.open, to_host)) + far + inside
        case Collective.BROADCAST, "ring":
            edge = slow * (p.open + p.forward + ends * p.socket)
            middle = slow * (p.open + p.forward)
            first, last = slow * (p.seal + p.copy + (ends - 1) * p.socket), slow * (p.open + (ends - 1) * p.socket)
            edges = 2 * (hosts - 1) if n > 1 else hosts - 2
            through = p.in_turn((first, 1), (middle, peers - 1 - edges), (edge, edges), (last, 1), (p.link, hosts - 1))
            return through + (hosts - 1) * far + (size - hosts) * near
        case Collective.BROADCAST, "tree":
            root = slow * (p.seal + p.copy + p.copies(rounds + to_host) + rounds * p.socket)
            relay = slow * (p.open + 2 * p.socket + (1 + to_host) * p.forward)
            leaf = slow * (p.open + p.socket + to_host * p.forward)
            through = p.in_turn(
                (root, 1), (rounds * p.link, 1), (relay, depth - 1), (leaf, 1), (slow * p.open, to_host)
            )
            return through + depth * far + inside
        case Collective.BROADCAST, "hierarchical":
            root = slow * (p.seal + p.copy + p.copies(1 + to_host) + p.socket)
            relay = slow * (p.open + 2 * p.socket + (1 + to_host) * p.forward)
            leaf = slow * (p.open + p.socket + to_host * p.forward)
            through = p.in_turn(
                (root, 1), (p.link, hosts - 1), (relay, hosts - 2), (leaf, 1), (slow * p.open, to_host)
            )
            return through + (hosts - 1) * far + inside

        case Collective.REDUCE, "one_shot":
            root = slow * (peers * p.open + size * p.add + afar * p.socket)
            return p.in_turn((slow * (p.seal + p.socket), 1), (afar * p.link, 1), (root, 1)) + far
        case Collective.REDUCE, "direct":
            work = owners * p.seal + (peers + owners - 1) * p.open + size * p.add
            work += (2 * afar * share + afar) * p.socket
            link = (n * share * afar + afar * share) * p.link
            return p.side_by_side(slow * work, link, 2, far)
        case Collective.REDUCE, "ring":
            edges = 2 * (hosts - 1) if n > 1 else hosts - 2
            first, last = slow * (p.seal + (ends - 1) * p.socket), slow * (add + (ends - 1) * p.socket)
            middle, edge = slow * (add + p.seal), slow * (add + p.seal + ends * p.socket)
            through = p.in_turn((first, 1), (middle, peers - 1 - edges), (edge, edges), (last, 1), (p.link, hosts - 1))
            return through + (hosts - 1) * far + (size - hosts) * near
        case Collective.REDUCE, "tree":
            first = slow * (p.seal if n > 1 else 0.0)
            leaf = slow * ((local if n > 1 else 0.0) + p.seal + p.socket)
            middle = slow * (local + add + p.seal + 2 * p.socket)
            root = slow * (local + rounds * (p.open + p.add + p.socket))
            through = p.in_turn((first, 1), (leaf, 1), (middle, depth - 1), (root, 1), (rounds * p.link, 1))
            return through + depth * far + inside
        case Collective.REDUCE, "hierarchical":
            collected = -(-owners // n)
            first = slow * ((owners - collected) * p.seal + collected * (local + p.seal + p.socket))
            middle = first + slow * collected * (p.open + p.add + p.socket)
            root = slow * ((2 * owners - 2) * p.open + (owners - 1) * p.seal + (n + 1) * p.add + add + p.socket)
            through = p.in_turn((first, 1), (middle, hosts - 2), (root, 1), (owners * p.link, hosts - 1))
            return through + (hosts - 1) * far + 2 * inside

        case Collective.GATHER, "one_shot":
            root = slow * (p.copy + peers * p.open + afar * p.socket)
            through = p.in_turn((slow * (p.seal + p.socket), 1), (afar * p.link, 1), (root, 1), among=peers)
            return through + far
        case Collective.SCATTER, "one_shot":
            root = slow * (p.copy + peers * p.seal + afar * p.socket)
            through = p.in_turn((root, 1), (afar * p.link, 1), (slow * (p.open + p.socket), 1), among=peers)
            return through + far
        case Collective.ALL_TO_ALL, "one_shot":
            work = peers * (p.seal + p.open) + p.copy + 2 * afar * p.socket
            return p.side_by_side(slow * work, n * afar * p.link, 1, far, among=peers)
    raise ValueError(f"{collective.name.lower()} has no algorithm {algorithm!r}")
