"""``securecoll plan --topology``: what plans cost on hosts that need not exist, by closed forms.

Nothing is simulated or proven here, so that groups of thousands of ranks take a moment. Bytes are those that the
checker holds plans to, of the ranks of the first and the last host; the root is rank 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from securecoll import plan as plans
from securecoll.cli.fabric import Fabric
from securecoll.cli.units import sized
from securecoll.codes import Collective
from securecoll.plan import Topology, tuner
from securecoll.plan.cost import Rates
from securecoll.plan.estimate import estimate
from securecoll.plan.peers import DEEPER, is_small, met, peers, socket_bytes
from securecoll.plan.traffic import traffic


@dataclass(frozen=True, slots=True)
class Row:
    """One algorithm's price."""

    collective: str
    algorithm: str
    default: bool
    """Whether the tuner picks it."""
    chunk_bytes: int
    seconds: float
    sealed_bytes: tuple[int, int]
    """The least and the most that a rank seals."""
    opened_bytes: tuple[int, int]
    carried_bytes: tuple[int, int]
    """To other hosts."""
    link_bytes: int
    """What the busiest host's ranks carry to other hosts together."""
    sockets: int
    """The most that a rank uses."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Prices on one fabric, and what default plans take of a rank."""

    fabric: Fabric
    nbytes: int
    rows: tuple[Row, ...]
    sockets: int
    """The most that a rank uses in default plans of collectives that involve everyone."""
    slot_bytes: int

    @property
    def socket_bytes(self) -> int:
        """Of the slots behind these sockets."""
        return socket_bytes(self.sockets, self.slot_bytes, tuner.DEPTH)


def survey(fabric: Fabric, collective: Collective | None, nbytes: int, algorithm: str | None) -> Survey:
    """Of a collective, each algorithm; else the default one of every collective.

    Raises:
        ValueError: when the collective has no such algorithm.
    """
    topology = fabric.topology
    wanted = [(kind, None) for kind in Collective] if collective is None else _algorithms(collective, algorithm)
    rows = tuple(_row(fabric, topology, kind, nbytes, name) for kind, name in wanted)
    sockets = max(len(peers(topology, rank)) for rank in _sample(topology))
    return Survey(fabric, nbytes, rows, sockets, tuner.default_chunk(fabric.gpus))


def _algorithms(collective: Collective, algorithm: str | None) -> list[tuple[Collective, str | None]]:
    names: Sequence[str] = plans.ALGORITHMS[collective] if algorithm is None else (algorithm,)
    return [(collective, name) for name in names]


def _rates(fabric: Fabric) -> Rates:
    return replace(fabric.rates, network=fabric.network)


def _sample(topology: Topology) -> tuple[int, ...]:
    """Ranks of the first and the last host."""
    return tuple(dict.fromkeys((*topology.groups[0], *topology.groups[-1])))


def _row(fabric: Fabric, topology: Topology, kind: Collective, nbytes: int, algorithm: str | None) -> Row:
    size, rates = len(topology), _rates(fabric)
    moved = 0 if kind is Collective.BARRIER else nbytes
    wave = tuner.WAVE * tuner.stretch(topology)
    default = tuner.choose(kind, size, moved, wave=wave, rates=rates, topology=topology)
    name, chunk, wave = default
    if algorithm is not None and algorithm != name:
        name, chunk, wave = tuner.choose(
            kind, size, moved, wave=wave, rates=rates, topology=topology, algorithm=algorithm
        )
    ranks = _sample(topology)
    # The first rank leads its host and is the root: none has more sockets.
    made = plans.plan(
        kind, 0, size, nbytes=moved, itemsize=1, chunk=chunk, wave=wave, algorithm=name, topology=topology
    )
    moves = [traffic(replace(made.call, rank=rank), name) for rank in ranks if made.call is not None]
    carried = {rank: move.carried for rank, move in zip(ranks, moves, strict=True)}
    return Row(
        kind.name.lower(),
        name,
        name == default.algorithm,
        chunk,
        estimate(kind, name, topology, moved, chunk, wave, rates),
        _range(move.sealed for move in moves),
        _range(move.opened for move in moves),
        _range(carried.values()),
        max(sum(carried[rank] for rank in group) for group in (topology.groups[0], topology.groups[-1])),
        len(met(made)),
    )


def _range(counts: Iterable[int]) -> tuple[int, int]:
    listed = list(counts)
    return min(listed), max(listed)


def text(found: Survey) -> str:
    """A table, and what default plans take."""
    fabric, network = found.fabric, found.fabric.network
    table = Table(title_justify="left", box=None)
    for name in ("collective", "algorithm", "predicted", "seals", "opens", "carries", "a host's link", "sockets"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("collective", "algorithm") else "right")
    for row in found.rows:
        spans = (row.sealed_bytes, row.opened_bytes, row.carried_bytes)
        marked = row.algorithm + (" *" if row.default and len(found.rows) > 1 else "")
        cells = [_time(row.seconds), *map(_spelled, spans), sized(row.link_bytes), str(row.sockets)]
        table.add_row(row.collective, marked, *cells)
    console = Console()
    console.width = max(console.width, table.__rich_measure__(console, console.options.update(width=400)).maximum)
    with console.capture() as captured:
        console.print(table)
    rates = fabric.rates
    size = fabric.hosts * fabric.gpus
    lines = [
        f"{size} ranks, {fabric.gpus} on each of {fabric.hosts} hosts; a link of {network.link / 1e9:g} GB/s for each "
        f"host, {_time(network.hop_seconds)} a hop; {sized(found.nbytes)}",
        "",
        captured.get().rstrip(),
        "",
        "* what the tuner picks; bytes are a rank's, from the least to the most of the first and the last host",
        f"predicted by closed forms, with a core for each rank that seals {rates.seal / 1e9:g} and opens "
        f"{rates.open / 1e9:g} GB/s",
        f"default plans use at most {found.sockets} sockets a rank, and {sized(found.socket_bytes)} for their slots: "
        f"{DEEPER * tuner.DEPTH} of {sized(found.slot_bytes)} each way"
        + ("" if is_small(fabric.topology) else "; gather, scatter and all_to_all one for each peer"),
    ]
    return "\n".join(lines)


def to_json(found: Survey) -> str:
    """Everything that the command prints, as an object."""
    return json.dumps({**asdict(found), "socket_bytes": found.socket_bytes}, indent=2)


def _spelled(span: tuple[int, int]) -> str:
    low, high = map(sized, span)
    return low if low == high else f"{low} to {high}"


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"


# The picture


Curve = tuple[list[int], list[float]]
"""Ranks, and seconds."""


def curves(fabric: Fabric, collective: Collective, nbytes: int) -> dict[str, Curve]:
    """Cost over the number of ranks: hosts double up to those asked for. By algorithm, each at its best chunk."""
    counts = sorted({*(1 << bit for bit in range(fabric.hosts.bit_length())), fabric.hosts})
    found: dict[str, Curve] = {name: ([], []) for name in plans.ALGORITHMS[collective]}
    for hosts in counts:
        if hosts * fabric.gpus == 1:
            continue
        topology = Topology.even(hosts, fabric.gpus)
        size, rates = len(topology), _rates(fabric)
        for name, (ranks, seconds) in found.items():
            wave = tuner.WAVE * tuner.stretch(topology)
            choice = tuner.choose(collective, size, nbytes, wave=wave, rates=rates, topology=topology, algorithm=name)
            ranks.append(size)
            seconds.append(estimate(collective, name, topology, nbytes, choice.chunk, choice.wave, rates))
    return found


def draw(path: Path, fabric: Fabric, collective: Collective, nbytes: int) -> None:
    """An SVG of the curves.

    Raises:
        click.ClickException: without matplotlib.
        OSError: when the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise click.ClickException("the picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(8.5, 5.2), layout="constrained")
    axes = figure.add_subplot()
    for (name, (ranks, seconds)), marker in zip(curves(fabric, collective, nbytes).items(), "osD^v", strict=False):
        axes.plot(ranks, seconds, marker=marker, markersize=4, linewidth=1.6, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: _time(value))
    axes.set_xlabel(f"ranks, {fabric.gpus} a host")
    axes.set_ylabel("predicted time")
    moved = "" if collective is Collective.BARRIER else f" of {sized(nbytes)}"
    axes.set_title(f"{collective.name.lower()}{moved}, links of {fabric.network.link / 1e9:g} GB/s", loc="left")
    axes.grid(True, which="major", color="#e3e6ea")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    FigureCanvasSVG(figure)
    figure.savefig(path, format="svg")
