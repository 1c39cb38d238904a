"""What joining costs as groups grow: the whole handshake of N ranks in one process, round by round.

    .venv/bin/python benchmarks/handshake_scale.py --ranks 2 64 512 4096 --plot joining.svg --json joining.json

Every rank runs the state machine that it runs in a job, and verifies every other one; the exchange between them is a
list. So what is measured is CPU time of the handshake alone, rank by rank, and the bytes that a rank publishes and
reads; waiting, stores and networks come on top. All members run on one core in turn, so a group takes N times as long
as a rank.

That is N² verifications and key agreements: half an hour of CPU time and more for 4096 ranks. So of groups larger than
512 only a sample does all that a rank does: rank 0, the last one, and others spread between them (`--sample`). Every
other rank still takes part: it draws its own share and nonce, proves that it holds the key, takes the group's secret
out of its own wrap and confirms; but it verifies nobody, and derives no roots. The sampled ranks verify all of those
messages, so a group ends in a session only if every member answered right.

In the end the roots of sampled ranks are compared, pair by pair.

Exit status: 0; 1 where a rank did not finish with the session of rank 0, or two of them have other roots.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from securecoll._engine import Secret, arena_used_bytes, hmac_sha256, unwrap
from securecoll.cli.units import sized
from securecoll.errors import SecureCollError
from securecoll.handshake import Params, Session, group_params, schedule
from securecoll.handshake.member import Member
from securecoll.handshake.session import PAIR_ROOTS
from securecoll.handshake.wire import Auth, Fin, Hello, wrap_for
from securecoll.identity import Policy

ROUNDS = ("hello", "auth", "wrap", "fin", "finish")
ENDPOINT_BYTES = 144
"""As long as those that ranks announce."""
WHOLE = 512
"""Ranks of the largest group of which everyone does everything."""
SAMPLE = 16
"""Ranks that do everything in larger groups."""
COMPARED = 16
"""Ranks whose roots are compared, at most."""


@dataclass(frozen=True)
class Cost:
    """Of one group."""

    ranks: int
    sampled: int
    """Ranks that did everything. What follows is of these alone, but for bytes on the exchange, which are of all."""
    cpu_ms: float
    """Of a rank, the median."""
    slowest_cpu_ms: float
    """Of rank 0, which wraps the group's secret for everyone, or of another one that took longer."""
    by_round_ms: dict[str, float]
    """Of a rank, the mean."""
    published_bytes: int
    """By a rank other than 0."""
    published_bytes_rank_0: int
    read_bytes: int
    """By each rank: what all published."""
    handed_out_bytes: int
    """By the exchange, to all ranks together."""
    key_bytes: int
    """Locked memory that a rank's roots take."""


class Bystander:
    """A member that answers as it should, and verifies nobody."""

    def __init__(self, params: Params, key: Secret, rank: int, endpoints: bytes) -> None:
        self._ph = schedule.params_hash(params)
        self._rank = rank
        self._endpoints = endpoints
        self._early = schedule.early_secret(key)
        self._e = X25519PrivateKey.generate()

    def hello(self) -> bytes:
        """Round 1."""
        share = self._e.public_key().public_bytes_raw()
        return Hello(self._ph, self._rank, os.urandom(32), share, bytes(32), schedule.sha256(b"")).encode()

    def auth(self, t1: bytes) -> bytes:
        """Round 2."""
        core = schedule.auth_core(self._rank, t1, b"", b"", self._endpoints)
        mac = hmac_sha256(schedule.auth_key(self._early, t1), schedule.auth_mac_message(core, b""))
        return Auth(self._rank, b"", b"", self._endpoints, b"", mac).encode()

    def fin(self, t2: bytes, share: bytes, wraps: bytes) -> bytes:
        """Round 4, from the share of rank 0 and its wraps."""
        shared = Secret.absorb(self._e.exchange(X25519PublicKey.from_public_bytes(share)))
        key = schedule.wrap_key(self._early, t2, shared, self._rank)
        z = unwrap(key, schedule.wrap_aad(t2, self._rank), wrap_for(wraps, self._rank))
        if z is None:
            raise RuntimeError(f"rank {self._rank} cannot open its wrap")
        confirm = schedule.confirm_key(schedule.master_secret(self._early, t2, z), t2)
        return Fin(self._rank, hmac_sha256(confirm, schedule.fin_message(self._rank, t2))).encode()


def sample_of(size: int, count: int) -> list[int]:
    """``count`` ranks of ``size``, at least 2: the first, the last, and others evenly between."""
    count = min(count, size)
    return sorted({place * (size - 1) // (count - 1) for place in range(count)})


class Group:
    """``size`` members, of which those of ``sample`` do everything, and rank 0 is one."""

    def __init__(self, size: int, sample: Sequence[int]) -> None:
        policy = Policy()
        params = group_params(
            policy_hash=policy.hash,
            ranks=range(size),
            channels=1,
            max_chunk=65536,
            plan_table_hash=hashlib.sha256(b"handshake_scale").digest(),
            job_id=b"handshake_scale",
        )
        key = Secret.random(32)
        endpoints = bytes(ENDPOINT_BYTES)
        self.size = size
        self.spent = dict.fromkeys(sample, 0.0)
        """Seconds of CPU time of each sampled rank."""
        self.by_round = dict.fromkeys(ROUNDS, 0.0)
        """The same, summed over ranks."""
        self._ph = schedule.params_hash(params)
        self._members: dict[int, Member] = {}
        for rank in sample:
            with self._timed("hello", rank):
                self._members[rank] = Member(params, policy, key, rank, endpoints)
        self._bystanders = {
            rank: Bystander(params, key, rank, endpoints) for rank in range(size) if rank not in self._members
        }

    def run(self, tick: Callable[[], None]) -> Cost:
        """Joins. Calls ``tick`` once for each sampled rank and round."""
        published = [0] * self.size
        hellos = self._round("hello", [], lambda b: b.hello(), published, tick)
        t1 = schedule.hello_transcript(self._ph, hellos)
        auths = self._round("auth", hellos, lambda b: b.auth(t1), published, tick)
        t2 = schedule.auth_transcript(t1, auths)
        wraps = self._round("wrap", auths, lambda b: b"", published, tick)
        share = Hello.decode(hellos[0]).share
        fins = self._round("fin", wraps, lambda b: b.fin(t2, share, wraps[0]), published, tick)
        key_bytes = self._finish(fins, tick)
        read = sum(published)
        return Cost(
            self.size,
            len(self.spent),
            median(self.spent.values()) * 1e3,
            max(self.spent.values()) * 1e3,
            {name: seconds / len(self.spent) * 1e3 for name, seconds in self.by_round.items()},
            published[1],
            published[0],
            read,
            read * self.size,
            key_bytes,
        )

    @contextmanager
    def _timed(self, name: str, rank: int) -> Iterator[None]:
        began = time.process_time()
        yield
        seconds = time.process_time() - began
        self.spent[rank] += seconds
        self.by_round[name] += seconds

    def _round(
        self,
        name: str,
        blobs: list[bytes],
        answer: Callable[[Bystander], bytes],
        published: list[int],
        tick: Callable[[], None],
    ) -> list[bytes]:
        """Everyone's message, in rank order, after ``blobs`` of the round before."""
        following = [b""] * self.size
        for rank, member in self._members.items():
            with self._timed(name, rank):
                following[rank] = getattr(member, name)(*([blobs] if blobs else []))
            tick()
        for rank, bystander in self._bystanders.items():
            following[rank] = answer(bystander)
        for rank, blob in enumerate(following):
            published[rank] += len(blob)
        return following

    def _finish(self, fins: list[bytes], tick: Callable[[], None]) -> int:
        """Bytes of a rank's roots. Raises RuntimeError where two ranks do not have the same."""
        compared = list(self._members)[:: -(-len(self._members) // COMPARED)]
        found: dict[tuple[int, int], bytes] = {}
        sessions = set()
        key_bytes = 0
        for rank, member in self._members.items():
            with self._timed("finish", rank):
                session = member.finish(fins)
            sessions.add(session.id)
            if rank in compared:
                found.update(fingerprints(session, compared))
            used = arena_used_bytes()
            session.erase()
            key_bytes = used - arena_used_bytes()
            tick()
        if len(sessions) != 1:
            raise RuntimeError(f"{self.size} ranks ended in {len(sessions)} sessions")
        for (rank, peer), theirs in found.items():
            if found[peer, rank] != theirs:
                raise RuntimeError(f"ranks {rank} and {peer} of {self.size} have other roots than each other")
        return key_bytes


def fingerprints(session: Session, ranks: Sequence[int]) -> dict[tuple[int, int], bytes]:
    """Public values by which a rank and each of ``ranks`` compare what they share: equal at both ends of a pair."""
    found = {}
    for peer in ranks:
        if peer == session.rank:
            continue
        low_to_high, high_to_low = (0, 1) if session.rank < peer else (1, 0)
        roots = [getattr(session, lists[way])[peer] for _, *lists in PAIR_ROOTS for way in (low_to_high, high_to_low)]
        roots += [session.sender[session.rank], session.sender[peer]][:: 1 if session.rank < peer else -1]
        found[session.rank, peer] = b"".join(hmac_sha256(root, b"fingerprint") for root in roots)
    return found


def table(costs: Sequence[Cost]) -> Table:
    """One row for each group."""
    shown = Table(title="joining: CPU time of a rank, and bytes over the exchange", title_justify="left")
    rounds = (f"{name} ms" for name in ROUNDS)
    for column in (
        *("ranks", "in full", "CPU ms", "a peer", "slowest", *rounds),
        *("publishes", "rank 0", "reads", "all read", "keys"),
    ):
        shown.add_column(column, justify="right")
    for c in costs:
        times = [f"{c.by_round_ms[name]:.2f}" for name in ROUNDS]
        sizes = (c.published_bytes, c.published_bytes_rank_0, c.read_bytes, c.handed_out_bytes, c.key_bytes)
        shown.add_row(
            *(str(c.ranks), "all" if c.sampled == c.ranks else str(c.sampled)),
            *(f"{c.cpu_ms:.1f}", f"{c.cpu_ms / c.ranks * 1e3:.0f} µs", f"{c.slowest_cpu_ms:.1f}"),
            *(*times, *map(sized, sizes)),
        )
    return shown


def draw(costs: Sequence[Cost], path: Path) -> None:
    """Writes the plot: over the number of ranks, CPU time of a rank, and bytes that a rank and all ranks read."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasSVG(figure)
    times, sizes = figure.subplots(1, 2)
    ranks = [c.ranks for c in costs]
    times.plot(ranks, [c.cpu_ms for c in costs], marker="o", label="a rank")
    times.plot(ranks, [c.slowest_cpu_ms for c in costs], marker="s", label="the slowest, mostly rank 0")
    times.set_ylabel("ms of CPU time")
    sizes.plot(ranks, [c.read_bytes for c in costs], marker="o", label="a rank reads")
    sizes.plot(ranks, [c.handed_out_bytes for c in costs], marker="s", label="all ranks read")
    sizes.plot(ranks, [c.key_bytes for c in costs], marker="^", label="a rank's keys")
    sizes.yaxis.set_major_formatter(lambda value, _: sized(int(value)))
    for axes in (times, sizes):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("ranks that join")
        axes.grid(True, which="major", color="#e3e6ea")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, format="svg")


def measure(size: int) -> Cost:
    """Of a group of ``size`` ranks that all do everything."""
    Group(2, [0, 1]).run(lambda: None)  # the first use of libcrypto takes longer
    return Group(size, range(size)).run(lambda: None)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[2, 16, 64, 256], help="sizes of groups (default 2 16 64 256)"
    )
    parser.add_argument(
        "--sample",
        type=int,
        help=f"ranks that do everything, in every group (default: all up to {WHOLE} ranks, else {SAMPLE})",
    )
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    parser.add_argument("--plot", metavar="FILE", help="draw them here, as SVG")
    options = parser.parse_args(arguments)
    if min(options.ranks) < 2:
        parser.error("a group that joins has at least 2 ranks")
    if options.sample is not None and options.sample < 2:
        parser.error("--sample takes at least 2 ranks: the first and the last")
    Group(2, [0, 1]).run(lambda: None)  # the first use of libcrypto takes longer
    costs = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for size in options.ranks:
            sample = sample_of(size, options.sample or (size if size <= WHOLE else SAMPLE))
            bar = progress.add_task(f"{size} ranks", total=len(sample) * len(ROUNDS))
            try:
                costs.append(Group(size, sample).run(partial(progress.advance, bar)))
            except (RuntimeError, SecureCollError) as e:
                print(e, file=sys.stderr)
                return 1
    Console(width=max(160, Console().width)).print(table(costs))
    if any(c.sampled < c.ranks for c in costs):
        print(
            "in full: ranks that verified everyone and derived all roots, and whose times these are; every message of "
            "the others was made, and verified by those"
        )
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(c) for c in costs], indent=1))
    if options.plot:
        draw(costs, Path(options.plot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
