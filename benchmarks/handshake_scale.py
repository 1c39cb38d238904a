"""What joining costs as groups grow: the whole handshake of N ranks in one process, round by round.

    .venv/bin/python benchmarks/handshake_scale.py --ranks 2,64,512 --json out.json

Every rank runs the state machine that it runs in a job, and verifies every other one; the exchange between them is a
list. So what is measured is CPU time of the handshake alone, rank by rank, and the bytes that a rank publishes and
reads; waiting, stores and networks come on top. All members run on one core in turn, so a group takes N times as long
as a rank.

Exit status: 0; 1 where a rank did not finish with the session of rank 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from securecoll._engine import Secret
from securecoll.handshake import group_params
from securecoll.handshake.member import Member
from securecoll.identity import Policy

ROUNDS = ("hello", "auth", "wrap", "fin", "finish")
ENDPOINT_BYTES = 144
"""As long as those that ranks announce."""


@dataclass(frozen=True)
class Cost:
    """Of one group."""

    ranks: int
    cpu_ms: float
    """Of a rank, the median over all."""
    slowest_cpu_ms: float
    """Of rank 0, which wraps the group's secret for everyone, or of another one that took longer."""
    by_round_ms: dict[str, float]
    published_bytes: int
    """By a rank other than 0."""
    published_bytes_rank_0: int
    read_bytes: int
    """By each rank: what all published."""


def measure(size: int, tick: Callable[[], None] = lambda: None) -> Cost:
    """Runs a group of ``size`` ranks, at least 2. Raises RuntimeError when it does not end in one session."""
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
    members = [Member(params, policy, key, rank, bytes(ENDPOINT_BYTES)) for rank in range(size)]
    spent = [0.0] * size
    by_round = dict.fromkeys(ROUNDS, 0.0)
    published = [0] * size
    blobs: list[bytes] = []
    sessions = set()
    for name in ROUNDS:
        following = []
        for rank, member in enumerate(members):
            began = time.process_time()
            result: Any = getattr(member, name)(*([blobs] if blobs else []))
            seconds = time.process_time() - began
            spent[rank] += seconds
            by_round[name] += seconds
            tick()
            if name == "finish":
                sessions.add(result.id)
                result.erase()
                continue
            published[rank] += len(result)
            following.append(result)
        blobs = following
    if len(sessions) != 1:
        raise RuntimeError(f"{size} ranks ended in {len(sessions)} sessions")
    return Cost(
        size,
        median(spent) * 1e3,
        max(spent) * 1e3,
        {name: seconds / size * 1e3 for name, seconds in by_round.items()},
        published[1],
        published[0],
        sum(published),
    )


def table(costs: Sequence[Cost]) -> Table:
    """One row for each group."""
    shown = Table(title="joining: CPU time of a rank, and bytes over the exchange", title_justify="left")
    for column in ("ranks", "CPU ms", "slowest", *(f"{name} ms" for name in ROUNDS), "publishes", "rank 0", "reads"):
        shown.add_column(column, justify="right")
    for c in costs:
        rounds = [f"{c.by_round_ms[name]:.2f}" for name in ROUNDS]
        sizes = [f"{n:,} B" for n in (c.published_bytes, c.published_bytes_rank_0, c.read_bytes)]
        shown.add_row(str(c.ranks), f"{c.cpu_ms:.1f}", f"{c.slowest_cpu_ms:.1f}", *rounds, *sizes)
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,16,64,256", help="sizes of groups (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results here")
    options = parser.parse_args(arguments)
    try:
        sizes = [int(word) for word in options.ranks.split(",")]
    except ValueError:
        parser.error(f"--ranks takes numbers with commas between, not {options.ranks!r}")
    if min(sizes) < 2:
        parser.error("a group that joins has at least 2 ranks")
    costs = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        for size in sizes:
            bar = progress.add_task(f"{size} ranks", total=size * len(ROUNDS))
            try:
                costs.append(measure(size, partial(progress.advance, bar)))
            except RuntimeError as e:
                print(e, file=sys.stderr)
                return 1
    Console(width=max(120, Console().width)).print(table(costs))
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(c) for c in costs], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
