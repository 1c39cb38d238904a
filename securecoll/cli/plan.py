"""``securecoll plan``: what one rank does for a collective, what was proven of it, and a picture; and what plans cost
on many hosts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from securecoll import plan as plans
from securecoll import suites
from securecoll.cli import survey
from securecoll.cli.fabric import Fabric, FabricType
from securecoll.cli.suite import suite_option
from securecoll.cli.units import Size, sized
from securecoll.codes import Collective
from securecoll.plan import Topology, picture, tuner
from securecoll.plan.check import Proof, check
from securecoll.plan.cost import Rates, simulate
from securecoll.plan.estimate import estimate
from securecoll.plan.ir import INPUT, Block, Plan, Record, Step, StepOp, Stream, records
from securecoll.plan.traffic import traffic
from securecoll.rates import usual

MOST_PROVEN = 20_000
"""Chunks of the largest call that is proven as it is; about two seconds' work."""
MOST_SOURCES = 4
"""Sources of a step that are all listed."""
MOST_DRAWN = 600
"""Chunks of the largest call that is drawn as it is: more would be too thin to see."""
NAMES = {collective.name.lower(): collective for collective in Collective}


@dataclass(frozen=True)
class Shown:
    """What the command shows of a call."""

    plans: tuple[Plan, ...]
    """Of all ranks."""
    proof: Proof
    proven_bytes: int
    """Bytes of the call that was proven: those asked for, or fewer where that would take minutes. Larger calls only
    have more chunks."""
    sealed: tuple[int, ...]
    """Bytes that each rank seals in the call asked for: what the proof held the plans to."""
    opened: tuple[int, ...]
    carried: tuple[int, ...]
    """To other hosts."""
    predicted_seconds: float
    rates: Rates
    """That this was predicted with."""


@dataclass(frozen=True)
class Asked:
    """A call as it was asked for."""

    collective: Collective
    topology: Topology
    choice: tuner.Choice
    root: int
    rates: Rates

    def plans(self, nbytes: int) -> tuple[Plan, ...]:
        """The plans of all ranks."""
        size = len(self.topology)
        return tuple(
            plans.plan(
                self.collective,
                rank,
                size,
                nbytes=nbytes,
                itemsize=1,
                root=self.root,
                topology=self.topology,
                **self.choice._asdict(),
            )
            for rank in range(size)
        )

    def reduced(self, nbytes: int, most: int) -> tuple[int, tuple[Plan, ...]]:
        """The same call with at most ``most`` chunks, or as few as there are steps: its bytes halved until it has."""
        made = self.plans(nbytes)
        least = sum(len(plan.steps) for plan in made)
        while chunks_of(made) > max(most, least):
            nbytes //= 2
            made = self.plans(nbytes)
        return nbytes, made


def chunks_of(ranks: Sequence[Plan]) -> int:
    """Chunks that all ranks run together."""
    return sum(records(step.length, plan.chunk) for plan in ranks for step in plan.steps)


def prove(asked: Asked, nbytes: int) -> Shown:
    """Plans of a call, proven and priced."""
    proven_bytes, proven = asked.reduced(nbytes, MOST_PROVEN)
    depth = tuner.DEPTH * tuner.stretch(asked.topology)
    proof = check(proven, depth)
    if proven_bytes == nbytes:
        seconds = simulate(proven, asked.rates, depth).seconds
    else:
        name, chunk, wave = asked.choice
        seconds = estimate(asked.collective, name, asked.topology, nbytes, chunk, wave, asked.rates)
    made = asked.plans(nbytes)
    moved = [traffic(plan.call, plan.algorithm) for plan in made if plan.call is not None]
    sealed, opened, carried = zip(*moved, strict=True)
    return Shown(made, proof, proven_bytes, sealed, opened, carried, seconds, asked.rates)


def offset(count: int) -> str:
    """A place in a buffer: exact, in the largest unit that is."""
    return sized(count) if count % 1024 == 0 else f"{count} B"


def run_of_records(stream: Stream, first: int, plan: Plan, length: int) -> str:
    """The records of a step: their stream and numbers."""
    name = f"sender {stream.writer}" if stream.reader < 0 else f"link {stream.writer}→{stream.reader}"
    last = first + records(length, plan.chunk) - 1
    return f"{name} #{first}" if first == last else f"{name} #{first}-{last}"


def spelled(source: Block | Record, plan: Plan, length: int) -> str:
    """A block, or a run of records and where it comes from."""
    if isinstance(source, Block):
        return f"{'input' if source.buffer == INPUT else 'output'} at {offset(source.offset)}"
    peer = source.lane % plan.size
    lane = f"rank {peer}" if source.lane < plan.size else f"rank {peer} to all"
    return f"{lane}: {run_of_records(source.stream, source.record, plan, length)}"


def taken(step: Step, plan: Plan) -> list[str]:
    """What a step works on, in order; of many, the first two and the last."""
    sources = step.sources or ((step.block,) if step.block is not None else ())
    lines = [spelled(source, plan, step.length) for source in sources]
    return lines if len(lines) <= MOST_SOURCES else [*lines[:2], f"… {len(lines) - 3} more, by rank", lines[-1]]


def written(step: Step, plan: Plan) -> list[str]:
    """Where a step's result goes."""
    lines = [] if step.block is None or step.op is StepOp.SEAL else [spelled(step.block, plan, step.length)]
    if step.lanes:
        lanes = "all" if plan.size in step.lanes else f"rank {', '.join(map(str, step.lanes))}"
        sealed = "" if step.stream is None else f": {run_of_records(step.stream, step.record, plan, step.length)}"
        lines.append(f"to {lanes}{sealed}")
    return lines


def table_of(plan: Plan) -> Table:
    """One row per step of a rank."""
    table = Table(title=f"rank {plan.rank} of {plan.size}", title_justify="left", box=None)
    waits = any(step.after for step in plan.steps)
    for name in ("step", "does", "bytes", "from", "to", *(["after"] if waits else [])):
        table.add_column(name, no_wrap=True, justify="right" if name in ("step", "bytes") else "left")
    for index, step in enumerate(plan.steps):
        cells = [step.op.name, sized(step.length), "\n".join(taken(step, plan)), "\n".join(written(step, plan))]
        cells += [", ".join(map(str, step.after))] if waits else []
        table.add_row(str(index), *map(escape, cells))
    return table


def span(counts: Sequence[int]) -> str:
    """What ranks seal or open, as a range where they differ."""
    low, high = min(counts), max(counts)
    return sized(low) if low == high else f"{sized(low)} to {sized(high)}"


def summary(shown: Shown, nbytes: int) -> list[str]:
    """The proof and the price, a line each."""
    plan, proof = shown.plans[0], shown.proof
    at = "" if shown.proven_bytes == nbytes else f" at {sized(shown.proven_bytes)} (more only repeats)"
    rates = shown.rates
    carries = f", and carries {span(shown.carried)} to other hosts" if any(shown.carried) else ""
    link = f", and links of {rates.network.link / 1e9:g} GB/s" if any(shown.carried) else ""
    seconds = f"{shown.predicted_seconds * 1e3:.3f} ms"
    return [
        f"{plan.collective.name.lower()} of {sized(nbytes)} among {plan.size} ranks, {plan.algorithm}: "
        f"chunks of {sized(plan.chunk)} in waves of {plan.wave}, lanes of {proof.depth} slots",
        f"proven{at}: computes the collective, in place or not; no deadlock; no nonce twice; {proof.chunks} chunks",
        f"each rank seals {span(shown.sealed)} and opens {span(shown.opened)}{carries}",
        f"predicted: {seconds}, with a core for each rank that seals {rates.seal / 1e9:g} and opens "
        f"{rates.open / 1e9:g} GB/s{link}",
    ]


def to_json(shown: Shown, rank: int, nbytes: int) -> str:
    """Everything that the command prints, as an object."""
    plan = shown.plans[rank]
    steps = [{**asdict(step), "op": step.op.name} for step in plan.steps]
    return json.dumps(
        {
            "collective": plan.collective.name.lower(),
            "algorithm": plan.algorithm,
            "ranks": plan.size,
            "bytes": nbytes,
            "chunk_bytes": plan.chunk,
            "wave_chunks": plan.wave,
            "identity": plan.identity.hex(),
            "rank": rank,
            "steps": steps,
            "proof": {**asdict(shown.proof), "collective": plan.collective.name.lower(), "bytes": shown.proven_bytes},
            "sealed_bytes": shown.sealed,
            "opened_bytes": shown.opened,
            "carried_bytes": shown.carried,
            "predicted_seconds": shown.predicted_seconds,
        },
        indent=2,
    )


@click.command()
@click.argument("collective", type=click.Choice(list(NAMES), case_sensitive=False), required=False)
@click.option("--ranks", type=click.IntRange(1, 64), help="Ranks in the group, at most 64.")
@click.option("--hosts", type=click.IntRange(1, 64), default=1, show_default=True, help="Hosts that share the ranks.")
@click.option(
    "--topology",
    type=FabricType(),
    help="Instead of --ranks and --hosts: hosts=512,gpus=8,net=50GB/s prices all algorithms of the collective, or the "
    "default ones of all collectives, on groups of any size.",
)
@click.option(
    "--bytes",
    "nbytes",
    type=Size(),
    default="64M",
    show_default=True,
    help="Of the buffer; of one rank's part where a buffer holds a part for each.",
)
@suite_option("Whose cipher it is priced with, as the tuner does.")
@click.option("--algorithm", help="One that the collective has. [default: the tuner's choice]")
@click.option("--chunk", type=Size(), help="Bytes that a record carries at most. [default: the tuner's choice]")
@click.option("--root", type=click.IntRange(min=0), default=0, show_default=True, help="Root, where there is one.")
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, show_default=True, help="The rank whose steps are shown."
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a picture: of all ranks, or with --topology of cost over the number of ranks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    collective: str | None,
    ranks: int | None,
    hosts: int,
    topology: Fabric | None,
    nbytes: int,
    suite: str,
    algorithm: str | None,
    chunk: int | None,
    root: int,
    rank: int,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show the plan of a COLLECTIVE: a rank's steps, what was proven, and what it costs."""
    kind = None if collective is None else NAMES[collective.lower()]
    priced = usual(suites.named(suite))
    if topology is not None:
        if ranks is not None or hosts > 1 or chunk is not None or root or rank:
            raise click.UsageError("--topology goes with --bytes, --suite, --algorithm, --svg and --json only")
        price(replace(topology, rates=priced), kind, nbytes, algorithm, svg, as_json)
        return
    if kind is None:
        raise click.UsageError("Missing argument 'COLLECTIVE'; only --topology does without")
    if ranks is None:
        raise click.UsageError("Missing option '--ranks', or '--topology'")
    if rank >= ranks:
        raise click.UsageError(f"--rank {rank} is not one of {ranks} ranks")
    if hosts > ranks:
        raise click.UsageError(f"--hosts {hosts} are more than {ranks} ranks")
    if kind is Collective.BARRIER:
        nbytes = 0
    try:
        placed = Topology.of(each * hosts // ranks for each in range(ranks))
        wave = tuner.WAVE * tuner.stretch(placed)
        choice = tuner.choose(
            kind, ranks, nbytes, algorithm=algorithm, max_chunk=chunk, wave=wave, rates=priced, topology=placed
        )
        if chunk is not None:
            choice = choice._replace(chunk=chunk)
        asked = Asked(kind, placed, choice, root, priced)
        shown = prove(asked, nbytes)
        drawn_bytes, drawn = asked.reduced(nbytes, MOST_DRAWN)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    written_at = ""
    if svg is not None:
        try:
            svg.write_text(picture.svg(drawn))
        except OSError as error:
            raise click.ClickException(f"cannot write {svg}: {error.strerror}") from None
        written_at = f"picture: {svg}" + (
            "" if drawn_bytes == nbytes else f", of {sized(drawn_bytes)}: more only repeats"
        )
    if as_json:
        click.echo(to_json(shown, rank, nbytes))
        return
    table = table_of(shown.plans[rank])
    console = Console()
    console.width = max(console.width, table.__rich_measure__(console, console.options.update(width=400)).maximum)
    console.print(table)
    for line in ["", *summary(shown, nbytes), *([written_at] if written_at else [])]:
        click.echo(line)


def price(
    fabric: Fabric, kind: Collective | None, nbytes: int, algorithm: str | None, svg: Path | None, as_json: bool
) -> None:
    """Prints the survey of a fabric, and draws cost over the number of ranks: of an all_reduce if none is named."""
    if kind is None and algorithm is not None:
        raise click.UsageError("--algorithm needs a COLLECTIVE")
    try:
        found = survey.survey(fabric, kind, nbytes, algorithm)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if svg is not None:
        try:
            survey.draw(svg, fabric, kind or Collective.ALL_REDUCE, nbytes)
        except OSError as error:
            raise click.ClickException(f"cannot write {svg}: {error.strerror}") from None
    click.echo(survey.to_json(found) if as_json else survey.text(found))
    if svg is not None and not as_json:
        click.echo(f"picture: {svg}")
